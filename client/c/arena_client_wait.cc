// Waiting for operations, and what their end means.
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/wait_policy.h"
#include "common/base/futex.h"
#include "common/base/word_copy.h"

namespace ringd::client {
namespace {

constexpr int64_t kSliceMicros =
    100'000;  // Backstop of every sleep; the peer's life is checked as often.
// A time limit as long as that guards against a hang: who sets it doesn't count on going on.
constexpr int64_t kGuardMicros = 60'000'000;

// A waiter's mark in a slot.
class Mark {
 public:
  Mark() = default;
  Mark(std::shared_ptr<ArenaMemory> memory, uint32_t slot, uint32_t count)
      : memory_(std::move(memory)), slot_(slot), count_(count) {
    memory_->slot(slot_).waiters.fetch_add(count_);
  }
  ~Mark() { Remove(); }
  Mark(const Mark&) = delete;
  Mark& operator=(Mark&& other) noexcept {
    Remove();
    memory_ = std::move(other.memory_);
    slot_ = other.slot_;
    count_ = other.count_;
    return *this;
  }
  bool IsAt(const std::shared_ptr<ArenaMemory>& memory, uint32_t slot) const {
    return memory_ == memory && slot_ == slot;
  }

 private:
  void Remove() {
    if (memory_ != nullptr && !IsForkedChild()) memory_->slot(slot_).waiters.fetch_sub(count_);
    memory_ = nullptr;
  }

  std::shared_ptr<ArenaMemory> memory_;  // Null: none.
  uint32_t slot_ = 0;
  uint32_t count_ = 0;
};

// A wait in slices, as ringd_set_slices_of says. Its mark stays from one to the next.
struct Slices {
  int64_t timeout_us = 0;  // 0: no slices.
  Mark mark;
};

// The client by which this thread has been counted.
thread_local uint64_t counted_in = 0;
thread_local Slices slices;

}  // namespace

void ArenaClient::SetSlicesOf(int64_t timeout_us) {
  slices.timeout_us = timeout_us;
  if (timeout_us == 0) slices.mark = Mark();
}

bool ArenaClient::IsOver(ringd_handle handle) const {
  return memory_->slot(Slots::SlotOf(handle)).word.load() == Slots::NumberOf(handle);
}

bool ArenaClient::IsPeerGone() {
  last_liveness_check_us_.store(MonotonicMicros(), std::memory_order_relaxed);
  if (gone_.load(std::memory_order_relaxed)) return true;
  if (liveness_fd_ < 0) return false;
  pollfd peer{.fd = liveness_fd_, .events = POLLRDHUP, .revents = 0};
  if (poll(&peer, 1, 0) != 1 || (peer.revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0) return false;
  gone_.store(true, std::memory_order_relaxed);
  return true;
}

int ArenaClient::Poll(ringd_handle handle) {
  if (IsForkedChild() || closed_.load(std::memory_order_relaxed) || !slots_.IsLive(handle)) {
    Fail(Code::kInvalidArgument, "no such handle: it was waited for already");
    return -1;
  }
  if (IsOver(handle) || memory_->header().poison.load() != 0) return 1;
  if (direct_ != nullptr) {
    const uint64_t sequence = direct_->SequenceOf(handle);
    if (sequence != 0) return PollDirect(sequence);
  }
  const int64_t last_us = last_liveness_check_us_.load(std::memory_order_relaxed);
  if (MonotonicMicros() - last_us < kSliceMicros) return 0;
  return IsPeerGone() ? 1 : 0;
}

int ArenaClient::Wait(ringd_handle handle, int64_t timeout_us) {
  if (IsForkedChild()) return CheckUsable();
  switch (Await(handle, timeout_us)) {
    case WaitResult::kHandedOver:
    case WaitResult::kDone:
      return Collect(handle, false);
    case WaitResult::kPoisoned:
      return Collect(handle, true);
    case WaitResult::kTimedOut:
      return Fail(Code::kDeadlineExceeded, "the operation is not over yet");
    case WaitResult::kInterrupted:
      return Fail(Code::kInterrupted, "a signal arrived");
    case WaitResult::kClosed:
      return Fail(Code::kNotInitialized, "ringd was shut down while this operation was in flight");
    case WaitResult::kGone:
      return ReportGone();
    case WaitResult::kNotLive:
      break;
  }
  return Fail(Code::kInvalidArgument, "no such handle: it was waited for already");
}

ArenaClient::WaitResult ArenaClient::Await(ringd_handle handle, int64_t timeout_us) {
  if (!slots_.IsLive(handle)) return WaitResult::kNotLive;
  if (IsOver(handle)) return WaitResult::kDone;
  const int64_t deadline_us = DeadlineOf(timeout_us);
  const uint64_t sequence = direct_ == nullptr ? 0 : direct_->SequenceOf(handle);
  if (sequence != 0) {
    const WaitResult result = AwaitDirect(sequence, deadline_us);
    if (result != WaitResult::kHandedOver) return result;
  }
  const bool poisoned = memory_->header().poison.load() != 0;
  if (poisoned) return IsOver(handle) ? WaitResult::kDone : WaitResult::kPoisoned;
  if (closed_.load(std::memory_order_relaxed)) return WaitResult::kClosed;
  if (timeout_us == 0) return WaitResult::kTimedOut;
  switch (WaitAwake(spin_, deadline_us, [&] { return IsOver(handle); })) {
    case EarlyEnd::kDone:
      return WaitResult::kDone;
    case EarlyEnd::kTimedOut:
      return WaitResult::kTimedOut;
    case EarlyEnd::kNotYet:
      break;
  }
  return Sleep(handle, deadline_us);
}

void ArenaClient::CountThread() {
  if (counted_in == id_) return;
  counted_in = id_;
  memory_->header().threads.fetch_add(1);
}

ArenaClient::WaitResult ArenaClient::Sleep(ringd_handle handle, int64_t deadline_us) {
  arena::Slot& slot = memory_->slot(Slots::SlotOf(handle));
  CountThread();
  const bool is_slice = slices.timeout_us != 0;
  const int64_t limit_us = is_slice ? slices.timeout_us : deadline_us - MonotonicMicros();
  const bool is_blocked = limit_us < 0 || limit_us > kGuardMicros;
  Mark own;
  Mark& mark = is_slice ? slices.mark : own;
  if (!mark.IsAt(memory_, Slots::SlotOf(handle))) {
    mark = Mark(memory_, Slots::SlotOf(handle), is_blocked ? arena::kBlockedWaiter + 1 : 1);
  }

  FutexResult woken = FutexResult::kWoken;
  while (true) {
    const uint32_t word = slot.word.load();
    if (word == Slots::NumberOf(handle)) {
      if (woken == FutexResult::kTimedOut) backstops_.fetch_add(1, std::memory_order_relaxed);
      return WaitResult::kDone;
    }
    if (memory_->header().poison.load() != 0) {
      return IsOver(handle) ? WaitResult::kDone : WaitResult::kPoisoned;
    }
    if (!slots_.IsLive(handle)) return WaitResult::kNotLive;
    if (closed_.load()) return WaitResult::kClosed;
    if (woken == FutexResult::kInterrupted) return WaitResult::kInterrupted;
    const int64_t now_us = MonotonicMicros();
    if (now_us >= deadline_us) return WaitResult::kTimedOut;
    if (IsPeerGone()) {
      if (IsOver(handle)) return WaitResult::kDone;
      return memory_->header().poison.load() != 0 ? WaitResult::kPoisoned : WaitResult::kGone;
    }
    woken = FutexWait(&slot.word, word, std::min(kSliceMicros, deadline_us - now_us));
  }
}

int ArenaClient::Collect(ringd_handle handle, bool poisoned) {
  Holdings holdings;
  {
    std::lock_guard lock(submit_mu_);
    if (!slots_.Take(handle, &holdings)) {
      return Fail(Code::kInvalidArgument, "no such handle: it was waited for already");
    }
  }
  const arena::Slot& slot = memory_->slot(Slots::SlotOf(handle));
  const auto code = static_cast<Code>(slot.code.load(std::memory_order_relaxed));
  int result = RINGD_OK;
  if (poisoned) {
    result = ReportPoison();
  } else if (code != Code::kOk) {
    result = ReportError(code, slot.error.load(std::memory_order_relaxed));
  } else if (holdings.copy_to != nullptr) {
    std::memcpy(holdings.copy_to, holdings.copy_from, holdings.copy_bytes);
    bytes_copied_.fetch_add(holdings.copy_bytes, std::memory_order_relaxed);
  }
  ReleaseHoldings(holdings);
  std::lock_guard lock(submit_mu_);
  slots_.Release(handle);
  return result;
}

int ArenaClient::ReportError(Code code, uint32_t serial) {
  if (serial == 0) {
    return FailFormat(code, "the operation failed with code %d; see the job's log (ringctl logs)",
                      static_cast<int>(code));
  }
  const arena::ErrorRecord& record = memory_->error_record(serial % arena::kErrorRecordCount);
  arena::ErrorDetails details;
  LoadWords(&details, &record.details, sizeof(details));
  ringd_error error{};
  error.size = sizeof(error);
  error.code = static_cast<int32_t>(code);
  error.rank = details.rank;
  error.exit_code = details.exit_code;
  error.signal = details.signal;
  std::memcpy(error.node, details.node, sizeof(error.node));
  std::memcpy(error.message, details.message, sizeof(error.message));
  std::memcpy(error.stderr_tail, details.stderr_tail, sizeof(error.stderr_tail));
  error.node[sizeof(error.node) - 1] = '\0';
  error.message[sizeof(error.message) - 1] = '\0';
  error.stderr_tail[sizeof(error.stderr_tail) - 1] = '\0';
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record.serial.load(std::memory_order_acquire) != serial) {
    return FailFormat(code,
                      "the operation failed with code %d; its details were overwritten by later "
                      "failures: see the job's log (ringctl logs)",
                      static_cast<int>(code));
  }
  return FailWith(error);
}

int ArenaClient::ReportPoison() {
  const arena::ArenaHeader& header = memory_->header();
  return ReportError(static_cast<Code>(header.poison.load()),
                     header.poison_error.load(std::memory_order_relaxed));
}

int ArenaClient::ReportGone() {
  return Fail(Code::kUnavailable, "the ringd worker of this rank is gone; the job has ended");
}

}  // namespace ringd::client
