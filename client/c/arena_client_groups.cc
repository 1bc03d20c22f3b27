// Groups: made and given up by all ranks, used by their members.
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/signature.h"

namespace ringd::client {
namespace {

constexpr uint32_t kAll = 0;

int CheckRanks(const int32_t* ranks, uint32_t n, int world_size) {
  if (n == 0 || ranks == nullptr) return Fail(Code::kInvalidArgument, "a group has no ranks");
  for (uint32_t i = 0; i < n; ++i) {
    if (ranks[i] < 0 || ranks[i] >= world_size) {
      return FailFormat(Code::kInvalidArgument, "group: %d is not a rank of a job of %d", ranks[i],
                        world_size);
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return Fail(Code::kInvalidArgument, "group: its ranks are not ascending, each once");
    }
  }
  return RINGD_OK;
}

}  // namespace

int ArenaClient::AgreeOnGroup(Operation operation, uint32_t id, const std::vector<int32_t>& ranks,
                              int64_t timeout_us) {
  const arena::Meta meta{.ndim = 0, .count_count = static_cast<uint32_t>(ranks.size())};
  const std::vector<int64_t> counts(ranks.begin(), ranks.end());
  const size_t bytes = sizeof(meta) + counts.size() * sizeof(int64_t);
  const arena::Ref block = AllocateBlock(bytes, Slab::Holder::kOperation);
  if (block == arena::kNullRef) return LastError().code;
  std::byte* const record = memory_->Pointer(block);
  std::memcpy(record, &meta, sizeof(meta));
  std::memcpy(record + sizeof(meta), counts.data(), counts.size() * sizeof(int64_t));
  Prepared prepared;
  ringd_operation plain{.size = sizeof(plain)};
  plain.operation = static_cast<uint32_t>(operation);
  prepared.descriptor = DescribeOperation(plain);
  prepared.descriptor.root = static_cast<int32_t>(id);
  prepared.descriptor.meta = block;
  prepared.descriptor.meta_bytes = static_cast<uint32_t>(bytes);
  prepared.holdings.meta_block = block;
  ringd_handle handle = 0;
  const int code = SubmitPrepared(&prepared, 1, &handle);
  if (code == RINGD_OK) return Wait(handle, timeout_us);
  memory_->Release(block);
  return code;
}

int ArenaClient::RegisterGroup(const int32_t* ranks, uint32_t n, int64_t timeout_us,
                               uint32_t* group) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  if (const int code = CheckRanks(ranks, n, info_.world_size); code != RINGD_OK) return code;
  const std::vector<int32_t> members(ranks, ranks + n);
  std::lock_guard lock(group_mu_);
  uint32_t id = 0;
  if (!groups_.Choose(members, &id)) {
    return FailFormat(Code::kResourceExhausted,
                      "there are %u groups, the limit: unregister those that are no longer used",
                      arena::kMaxGroups);
  }
  const int code = AgreeOnGroup(Operation::kGroupRegister, id, members, timeout_us);
  if (code != RINGD_OK) return code;
  groups_.Add(id, members);
  *group = id;
  return RINGD_OK;
}

int ArenaClient::UnregisterGroup(uint32_t group, int64_t timeout_us) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  if (group == kAll) return Fail(Code::kInvalidArgument, "group 0, all ranks, stays");
  std::lock_guard lock(group_mu_);
  const std::vector<int32_t> ranks = groups_.RanksOf(group);
  if (ranks.empty()) return FailFormat(Code::kInvalidArgument, "there is no group %u", group);
  if (groups_.Release(group)) return RINGD_OK;
  const int code = AgreeOnGroup(Operation::kGroupUnregister, group, ranks, timeout_us);
  if (code == RINGD_OK) groups_.Remove(group);
  return code;
}

int ArenaClient::FindGroup(uint32_t group, ringd_info* info) const {
  *info = info_;
  if (group == kAll) return RINGD_OK;
  if (!groups_.Find(group, info_.rank, &info->rank, &info->world_size)) {
    return FailFormat(Code::kInvalidArgument, "there is no group %u", group);
  }
  if (info->rank >= 0) return RINGD_OK;
  return FailFormat(Code::kInvalidArgument, "rank %d is not a member of group %u", info_.rank,
                    group);
}

}  // namespace ringd::client
