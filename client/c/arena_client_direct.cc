// The client's part of the direct path: what is published there, waited for, or handed over to the
// daemon after all.
#include <sched.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/wait_policy.h"
#include "common/base/futex.h"
#include "proto/operations.h"

namespace ringd::client {
namespace {

// A wait that is longer than this becomes the daemon's: it knows who is missing and why.
constexpr int64_t kDirectMicros = 50'000;

// Whether the operation has a number in group 0's own sequence.
bool IsNumbered(const arena::Descriptor& descriptor) {
  if ((descriptor.flags & arena::kFlagNamed) != 0) return false;
  if (descriptor.operation == Operation::kJoin) return false;
  return descriptor.group == 0 && descriptor.operation != Operation::kNoop &&
         descriptor.operation != Operation::kPlanBucket && !IsMessage(descriptor.operation);
}

}  // namespace

int ArenaClient::OpenDirectPath(UniqueFd segment) {
  const arena::ArenaHeader& header = memory_->header();
  incarnation_ = header.incarnation.load(std::memory_order_acquire);
  return DirectPath::Create(std::move(segment), info_, &direct_);
}

int ArenaClient::Run(const ringd_operation& operation, int64_t timeout_us, ringd_handle* handle) {
  *handle = 0;
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  const int64_t deadline_us = DeadlineOf(timeout_us);
  uint64_t sequence = 0;
  if (direct_ != nullptr) {
    const int code = BeginDirect(operation, false, handle, &sequence);
    if (code != RINGD_OK) return code;
  }
  if (sequence == 0) {
    if (const int code = SubmitBatch(&operation, 1, handle); code != RINGD_OK) return code;
  } else {
    const WaitResult result = AwaitDirect(sequence, deadline_us);
    if (result == WaitResult::kDone) return RINGD_OK;
    *handle = HandleOf(handle);
    if (result == WaitResult::kInterrupted) return Fail(Code::kInterrupted, "a signal arrived");
  }
  const int64_t left_us =
      deadline_us == INT64_MAX ? -1 : std::max<int64_t>(0, deadline_us - MonotonicMicros());
  const int code = Wait(*handle, left_us);
  if (code != RINGD_INTERRUPTED && code != RINGD_DEADLINE_EXCEEDED) *handle = 0;
  return code;
}

int ArenaClient::BeginDirect(const ringd_operation& operation, bool wants_handle,
                             ringd_handle* handle, uint64_t* sequence) {
  if (operation.group != 0 || operation.name != nullptr) return RINGD_OK;
  bool rings = false;
  CountThread();
  {
    std::lock_guard lock(submit_mu_);
    const bool is_known = direct_->IsLikeTheLast(operation);
    OperationBytes bytes;
    if (!is_known) {
      const int code = CheckOperation(operation, info_, &bytes);
      if (code != RINGD_OK || !IsDirect(operation, bytes)) return code;
    }
    if (join_ != 0 || !slots_.Has(1) || !MayBeginDirectLocked()) return RINGD_OK;
    if (!is_known) direct_->Learn(operation, bytes);
    *sequence = NextSequenceLocked();
    if (wants_handle) *handle = slots_.Acquire(Holdings{});
    direct_waiter_ = wants_handle ? nullptr : handle;
    rings = direct_->Publish(operation, *sequence, wants_handle ? *handle : 0);
  }
  if (rings) RingDoorbell();
  return RINGD_OK;
}

bool ArenaClient::MayBeginDirectLocked() {
  if (memory_->header().incarnation.load(std::memory_order_relaxed) != incarnation_) return false;
  if (!direct_->idle()) {
    // A submission that nobody has waited for yet. Its result may be there.
    const ringd_handle handle = direct_->handle();
    const uint64_t sequence = handle == 0 ? 0 : direct_->SequenceOf(handle);
    uint32_t waits_for = 0;
    const bool is_ready =
        sequence != 0 && direct_->Look(sequence, &waits_for) == DirectPath::State::kReady;
    if (!is_ready || !FinishDirect(sequence)) return false;
  }
  std::erase_if(indirect_, [this](ringd_handle handle) {
    const uint32_t word = memory_->slot(Slots::SlotOf(handle)).word.load(std::memory_order_acquire);
    return static_cast<int32_t>(word - Slots::NumberOf(handle)) >= 0;
  });
  return indirect_.empty() && direct_->MayPublish();
}

uint64_t ArenaClient::NextSequenceLocked() {
  const uint64_t known = memory_->header().sequence.load(std::memory_order_relaxed);
  sequence_ = std::max(sequence_, known) + 1;
  return sequence_;
}

bool ArenaClient::HasRoomLocked(size_t n) const {
  const bool is_promised = direct_ != nullptr && !direct_->idle() && direct_->handle() == 0;
  return slots_.Has(n + (is_promised ? 1 : 0));
}

bool ArenaClient::FinishDirect(uint64_t sequence) {
  if (!direct_->BeginFinish(sequence)) return false;
  const ringd_handle handle = direct_->handle();
  if (!direct_->Finish()) return false;
  if (handle != 0) {
    arena::Slot& slot = memory_->slot(Slots::SlotOf(handle));
    slot.code.store(0, std::memory_order_relaxed);
    slot.error.store(0, std::memory_order_relaxed);
    slot.word.store(Slots::NumberOf(handle));
    if (slot.waiters.load() > 0) FutexWakeAll(&slot.word);
  }
  direct_->EndFinish();
  return true;
}

int ArenaClient::HandOver(uint64_t sequence) {
  {
    std::lock_guard lock(submit_mu_);
    if (!direct_->IsPending(sequence)) return RINGD_OK;
    if (const int code = HandOverLocked(); code != RINGD_OK) return code;
  }
  RingDoorbell();
  return RINGD_OK;
}

int ArenaClient::HandOverLocked() {
  if (direct_ == nullptr || !direct_->HandOver()) return RINGD_OK;
  const DirectOperation& pending = direct_->operation();
  const arena::Descriptor& description = pending.description;
  int64_t shape[arena::kMaxInlineDims];
  std::copy(description.dims, description.dims + arena::kMaxInlineDims, shape);
  ringd_operation operation{.size = sizeof(ringd_operation)};
  operation.operation = static_cast<uint32_t>(description.operation);
  operation.input = pending.input;
  operation.output = pending.output;
  operation.flags = description.flags;
  operation.shape = shape;
  operation.ndim = description.ndim;
  operation.site = pending.site[0] == '\0' ? nullptr : pending.site;
  Prepared prepared;
  prepared.descriptor = description;
  prepared.is_direct = true;
  int code = PlaceBuffers(operation, pending.bytes, &prepared);
  if (code == RINGD_OK) code = WriteMeta(operation, &prepared);
  if (code != RINGD_OK) {
    ReleaseHoldings(prepared.holdings);
    direct_->TakeBack();
    return code;
  }
  ringd_handle handle = direct_->handle();
  if (handle == 0) {
    handle = slots_.Acquire(prepared.holdings);
    *direct_waiter_ = handle;
  } else {
    slots_.SetHoldings(handle, prepared.holdings);
  }
  PublishAsLocked(&prepared, handle);
  direct_->EndHandOver();
  return RINGD_OK;
}

void ArenaClient::NumberLocked(const Prepared& prepared, ringd_handle handle,
                               arena::Descriptor* descriptor) {
  if (!IsNumbered(*descriptor)) return;
  if (arena::SequenceOf(*descriptor) == 0) arena::SetSequence(NextSequenceLocked(), descriptor);
  if (!prepared.is_direct) return;
  indirect_.push_back(handle);
  direct_->ForgetSlots();
}

ringd_handle ArenaClient::HandleOf(ringd_handle* handed_over) {
  std::lock_guard lock(submit_mu_);
  if (*handed_over != 0) return *handed_over;
  const ringd_handle handle = slots_.Acquire(Holdings{});
  direct_->SetHandle(handle);
  direct_waiter_ = nullptr;
  return handle;
}

int ArenaClient::PollDirect(uint64_t sequence) {
  uint32_t waits_for = 0;
  const DirectPath::State state = direct_->Look(sequence, &waits_for);
  if (state == DirectPath::State::kReady) return 1;
  const int64_t now_us = MonotonicMicros();
  if (polled_sequence_.exchange(sequence, std::memory_order_relaxed) != sequence) {
    polled_since_us_.store(now_us, std::memory_order_relaxed);
  }
  const bool is_late = now_us - polled_since_us_.load(std::memory_order_relaxed) > kDirectMicros;
  if (state == DirectPath::State::kTrouble || is_late) HandOver(sequence);
  return 0;
}

ArenaClient::WaitResult ArenaClient::AwaitDirect(uint64_t sequence, int64_t deadline_us) {
  uint32_t waits_for = 0;
  DirectPath::State state = DirectPath::State::kWaiting;
  const auto look = [&] {
    state = direct_->Look(sequence, &waits_for);
    return state != DirectPath::State::kWaiting;
  };
  if (!look() && WaitAwake(spin_, deadline_us, look) == EarlyEnd::kTimedOut)
    return WaitResult::kTimedOut;
  const int64_t start_us = state == DirectPath::State::kWaiting ? MonotonicMicros() : 0;
  while (state == DirectPath::State::kWaiting) {
    const int64_t now_us = MonotonicMicros();
    if (now_us >= deadline_us) return WaitResult::kTimedOut;
    const int64_t left_us = std::min(deadline_us, start_us + kDirectMicros) - now_us;
    if (left_us <= 0 || direct_->closed()) break;
    if (direct_->Sleep(sequence, waits_for, left_us) == FutexResult::kInterrupted) {
      return WaitResult::kInterrupted;
    }
    look();
  }
  if (state == DirectPath::State::kReady && FinishDirect(sequence)) return WaitResult::kDone;
  // Without room for it, the caller's own wait has to go on here.
  if (HandOver(sequence) != RINGD_OK) return WaitResult::kTimedOut;
  return WaitResult::kHandedOver;
}

}  // namespace ringd::client
