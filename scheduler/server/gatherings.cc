#include "scheduler/server/gatherings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ringd::scheduler {
namespace {

using ringd::cluster::v1::GatherRequest;
using ringd::cluster::v1::JobSpec;

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

std::string RanksText(int32_t first, int32_t end) {
  return end - first == 1 ? absl::StrCat("rank ", first)
                          : absl::StrCat("ranks ", first, " to ", end - 1);
}

std::string PartText(const GatherRequest& part) {
  return absl::StrCat(RanksText(part.first_rank(), part.first_rank() + part.rank_count()),
                      " on node ", part.node());
}

absl::Duration TimeoutOf(const GatherRequest& part) {
  return absl::Seconds(part.timeout().seconds()) + absl::Nanoseconds(part.timeout().nanos());
}

}  // namespace

absl::Status Gatherings::Check(const Waiting& waiting, const GatherRequest& part) {
  const int64_t end = static_cast<int64_t>(part.first_rank()) + part.rank_count();
  if (part.first_rank() < 0 || part.rank_count() < 1 || end > part.spec().ranks() ||
      part.name().empty() || part.node().empty() || TimeoutOf(part) <= absl::ZeroDuration()) {
    return Invalid(absl::StrCat("a part of ", part.rank_count(), " ranks from ", part.first_rank(),
                                " on, of ", part.spec().ranks(), ", can't be"));
  }
  for (const auto& [first, other] : waiting.parts) {
    const GatherRequest& there = other.request;
    if (there.spec().ranks() != part.spec().ranks()) {
      return Invalid(absl::StrCat("the nodes' sizes differ: ", PartText(part), " are of ",
                                  part.spec().ranks(), ", ", PartText(there), " of ",
                                  there.spec().ranks(),
                                  ": start all ranks by one command of the launcher"));
    }
    if (first < end && part.first_rank() < first + there.rank_count()) {
      return Invalid(absl::StrCat(
          PartText(part), " and ", PartText(there),
          " are the same ranks: ringd fills one node after the other; have the launcher do so, too "
          "(mpirun --map-by slot, srun --distribution=block), and start them by one command"));
    }
    if (there.node() == part.node()) {
      return Invalid(absl::StrCat(PartText(part), " and ", PartText(there),
                                  " meet one daemon: what the launcher calls two nodes is one of "
                                  "ringd's; name each one's by daemon_socket in ringd.toml or "
                                  "RINGD_DAEMON_SOCKET"));
    }
  }
  return absl::OkStatus();
}

std::vector<Gatherings::Outcome> Gatherings::Add(Part part, absl::Duration now) {
  const Key key{part.uid, part.request.name()};
  const auto found = waiting_.find(key);
  absl::Status status = Check(found == waiting_.end() ? Waiting() : found->second, part.request);
  if (status.ok() && keys_.size() >= kMaxParts) {
    status = absl::ResourceExhaustedError(
        absl::StrCat(kMaxParts, " nodes wait for others of their jobs; try again later"));
  }
  if (!status.ok()) return {{{part.id}, status}};
  Waiting& waiting = waiting_[key];
  waiting.deadline = std::min(waiting.deadline, now + TimeoutOf(part.request));
  keys_[part.id] = key;
  const int32_t first = part.request.first_rank();
  waiting.parts[first] = std::move(part);
  int64_t ranks = 0;
  for (const auto& [rank, other] : waiting.parts) ranks += other.request.rank_count();
  JobSpec spec = waiting.parts.begin()->second.request.spec();
  if (ranks < spec.ranks()) return {};
  Outcome outcome;
  for (const auto& [rank, other] : waiting.parts) {
    auto* const host = spec.add_hosts();
    host->set_node(other.request.node());
    host->set_slots(other.request.rank_count());
    outcome.parts.push_back(other.id);
    keys_.erase(other.id);
  }
  outcome.spec = std::move(spec);
  waiting_.erase(key);
  return {std::move(outcome)};
}

void Gatherings::Remove(PartId id) {
  const auto key = keys_.find(id);
  if (key == keys_.end()) return;
  const auto waiting = waiting_.find(key->second);
  std::erase_if(waiting->second.parts, [id](const auto& part) { return part.second.id == id; });
  if (waiting->second.parts.empty()) waiting_.erase(waiting);
  keys_.erase(key);
}

std::vector<Gatherings::Outcome> Gatherings::Expire(absl::Duration now) {
  std::vector<Outcome> outcomes;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto& [parts, deadline] = it->second;
    if (now < deadline) {
      ++it;
      continue;
    }
    Outcome outcome;
    std::vector<std::string> here, missing;
    int32_t next = 0;
    for (const auto& [first, part] : parts) {
      if (first > next) missing.push_back(RanksText(next, first));
      next = first + part.request.rank_count();
      here.push_back(PartText(part.request));
      outcome.parts.push_back(part.id);
      keys_.erase(part.id);
    }
    const int32_t size = parts.begin()->second.request.spec().ranks();
    if (next < size) missing.push_back(RanksText(next, size));
    outcome.spec = absl::DeadlineExceededError(absl::StrCat(
        "only ", absl::StrJoin(here, " and "), " have come, ", absl::StrJoin(missing, " and "),
        " of ", size,
        " are missing: all ranks call init(), and ringd runs on all their nodes with the same "
        "scheduler; init(timeout=...) waits longer"));
    outcomes.push_back(std::move(outcome));
    it = waiting_.erase(it);
  }
  return outcomes;
}

}  // namespace ringd::scheduler
