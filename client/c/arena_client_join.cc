// Join: this rank waits for the others, which go on without it.
#include <cstring>
#include <mutex>

#include "client/c/arena_client.h"
#include "client/c/error.h"

namespace ringd::client {

int ArenaClient::FailJoined() {
  return Fail(Code::kInvalidArgument,
              "this rank has joined: it can't call anything until ringd.join() has returned");
}

int ArenaClient::Join(int64_t timeout_us, int32_t* last_rank) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  *last_rank = info_.rank;
  if (standalone_) return RINGD_OK;
  ringd_handle handle = 0;
  if (const int code = BeginJoin(&handle); code != RINGD_OK) return code;
  const int code = Wait(handle, timeout_us);
  if (code == RINGD_INTERRUPTED || code == RINGD_DEADLINE_EXCEEDED) return code;
  std::lock_guard lock(submit_mu_);
  std::memcpy(last_rank, memory_->Pointer(join_result_), sizeof(*last_rank));
  memory_->Release(join_result_);
  join_ = 0;
  return code;
}

int ArenaClient::BeginJoin(ringd_handle* handle) {
  {
    std::lock_guard lock(submit_mu_);
    *handle = join_;
  }
  if (*handle != 0) return RINGD_OK;
  Prepared prepared;
  ringd_operation plain{.size = sizeof(plain)};
  plain.operation = static_cast<uint32_t>(Operation::kJoin);
  prepared.descriptor = DescribeOperation(plain);
  const arena::Ref block = AllocateBlock(sizeof(int32_t), Slab::Holder::kOperation);
  if (block == arena::kNullRef) return LastError().code;
  prepared.descriptor.input = prepared.descriptor.output = block;
  const int code = SubmitPrepared(&prepared, 1, handle);
  if (code != RINGD_OK) {
    memory_->Release(block);
    return code;
  }
  std::lock_guard lock(submit_mu_);
  join_ = *handle;
  join_result_ = block;
  return RINGD_OK;
}

}  // namespace ringd::client
