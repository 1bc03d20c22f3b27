#include "client/c/groups.h"

#include <algorithm>
#include <numeric>

#include "proto/arena.h"

namespace ringd::client {

Groups::Groups(int world_size) {
  Group& everyone = groups_[0];
  everyone.ranks.resize(static_cast<size_t>(world_size));
  std::iota(everyone.ranks.begin(), everyone.ranks.end(), 0);
  everyone.references = 1;
}

bool Groups::Choose(const std::vector<int32_t>& ranks, uint32_t* id) {
  std::lock_guard lock(mu_);
  for (const auto& [existing, group] : groups_) {
    if (group.ranks != ranks) continue;
    *id = existing;
    return true;
  }
  if (!freed_.empty()) {
    *id = freed_.front();
    freed_.pop_front();
    return true;
  }
  if (last_id_ == arena::kMaxGroups) return false;
  *id = ++last_id_;
  return true;
}

void Groups::Add(uint32_t id, const std::vector<int32_t>& ranks) {
  std::lock_guard lock(mu_);
  Group& group = groups_[id];
  group.ranks = ranks;
  ++group.references;
}

bool Groups::Release(uint32_t id) {
  std::lock_guard lock(mu_);
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.references <= 1) return false;
  --found->second.references;
  return true;
}

void Groups::Remove(uint32_t id) {
  std::lock_guard lock(mu_);
  if (id != 0 && groups_.erase(id) > 0) freed_.push_back(id);
}

bool Groups::Find(uint32_t id, int job_rank, int32_t* rank, int32_t* size) const {
  std::lock_guard lock(mu_);
  const auto group = groups_.find(id);
  if (group == groups_.end()) return false;
  const std::vector<int32_t>& ranks = group->second.ranks;
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), job_rank);
  const bool is_member = found != ranks.end() && *found == job_rank;
  *rank = is_member ? static_cast<int32_t>(found - ranks.begin()) : -1;
  *size = static_cast<int32_t>(ranks.size());
  return true;
}

std::vector<int32_t> Groups::RanksOf(uint32_t id) const {
  std::lock_guard lock(mu_);
  const auto group = groups_.find(id);
  return group == groups_.end() ? std::vector<int32_t>{} : group->second.ranks;
}

}  // namespace ringd::client
