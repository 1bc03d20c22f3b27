// A client's end of its job's shared segment (proto/segment.h): one small operation at a time,
// carried out by the ranks themselves.
#ifndef RINGD_CLIENT_C_DIRECT_PATH_H_
#define RINGD_CLIENT_C_DIRECT_PATH_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "client/c/request.h"
#include "client/c/ringd.h"
#include "common/base/fd.h"
#include "common/base/futex.h"
#include "proto/segment_view.h"

namespace ringd::client {

// Whether an operation goes through the shared segment: unnamed, of group 0, allreduce, broadcast,
// even allgather or barrier, at most segment::kSmallBytes from each rank. A function of what all
// ranks must agree on anyway. REQUIRES: CheckOperation has found it good.
bool IsDirect(const ringd_operation& operation, const OperationBytes& bytes);

// A published operation that is not over.
struct DirectOperation {
  arena::Descriptor description;  // As of DescribeOperation, with its number.
  OperationBytes bytes;
  uint64_t sequence = 0;
  const void* input = nullptr;  // This rank's data, in its slot.
  void* output = nullptr;
  char site[segment::kSiteBytes] = {};
};

// Life: idle; Publish: pending; then, once, either Finish by whoever waits, or HandOver: the
// operation becomes a submission to the daemon. Idle again.
//
// Thread-safe: Publish and HandOver under the client's submission lock; Look, Finish and Sleep by
// any thread.
class DirectPath {
 public:
  // RINGD_INTERNAL: not a segment of this job's; RINGD_RESOURCE_EXHAUSTED: mmap.
  static int Create(UniqueFd fd, const ringd_info& info, std::unique_ptr<DirectPath>* path);
  ~DirectPath();
  DirectPath(const DirectPath&) = delete;
  DirectPath& operator=(const DirectPath&) = delete;

  bool idle() const { return state_.load(std::memory_order_acquire) == 0; }
  bool IsPending(uint64_t sequence) const {
    return state_.load(std::memory_order_acquire) == StateOf(sequence, kPending);
  }
  // The pending operation of this handle; 0: none.
  uint64_t SequenceOf(ringd_handle handle) const;

  // The daemon wants everything handed over: a rank has ended, or the job fails.
  bool closed() const {
    return (view_.header().attention.load(std::memory_order_relaxed) & segment::kClosed) != 0;
  }
  // Whether nobody reads the slot that comes next, and the daemon has not closed the segment.
  // REQUIRES: idle.
  bool MayPublish() const;
  // Whether it is the one before over again, but for its memory and call site: nothing has to be
  // checked. REQUIRES: the submission lock.
  bool IsLikeTheLast(const ringd_operation& operation) const;
  // Makes this one the last. REQUIRES: CheckOperation has found it good, IsDirect; idle.
  void Learn(const ringd_operation& operation, const OperationBytes& bytes);
  // Publishes. Returns whether the doorbell has to be rung. REQUIRES: MayPublish, IsLikeTheLast.
  bool Publish(const ringd_operation& operation, uint64_t sequence, ringd_handle handle);
  // The pending operation. REQUIRES: the submission lock, or BeginFinish.
  DirectOperation& operation() { return operation_; }
  void SetHandle(ringd_handle handle);
  // The daemon may write this rank's slots until that operation of this client is over.
  void ForgetSlots() { described_ = {}; }

  enum class State {
    kReady,    // All have published: Finish.
    kWaiting,  // For rank *waits_for.
    kTrouble,  // Somebody has published something else, or has gone on: hand it over.
    kGone,     // No longer pending.
  };
  State Look(uint64_t sequence, uint32_t* waits_for) const;

  ringd_handle handle() const { return handle_.load(std::memory_order_acquire); }

  // Takes the pending operation for Finish; false: it is not pending any more.
  bool BeginFinish(uint64_t sequence);
  // Computes the result. False: what others had published is gone; the operation is pending again.
  // REQUIRES: BeginFinish.
  bool Finish();
  // After Finish and whatever has to be done with the handle.
  void EndFinish() { state_.store(0, std::memory_order_release); }

  // Takes the pending operation away. Waits for a Finish that has begun. False: there is none
  // (any more).
  bool HandOver();
  // It could not be handed over after all.
  void TakeBack() {
    state_.store(StateOf(operation_.sequence, kPending), std::memory_order_release);
  }
  void EndHandOver() { state_.store(0, std::memory_order_release); }

  // Sleeps until rank `waits_for` publishes, at most timeout_us.
  FutexResult Sleep(uint64_t sequence, uint32_t waits_for, int64_t timeout_us);

  // Of this client, for ringd_get_counters.
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }
  uint64_t bytes_reduced() const { return bytes_reduced_.load(std::memory_order_relaxed); }

 private:
  enum Kind : uint64_t { kPending = 1, kFinishing = 2, kHandingOver = 3 };
  static constexpr uint64_t StateOf(uint64_t sequence, Kind kind) { return sequence << 2 | kind; }

  DirectPath(void* base, uint64_t bytes, const ringd_info& info);
  void Compute(const std::array<const void*, segment::kMaxRanks>& data) const;

  void* const base_;
  const uint64_t bytes_;
  const segment::View view_;
  const uint32_t rank_;
  const uint32_t rank_count_;

  std::atomic<uint64_t> state_{0};       // 0: idle; else StateOf.
  std::atomic<ringd_handle> handle_{0};  // Of the pending operation; 0: its caller has none yet.
  std::atomic<uint64_t> signature_{0};   // Of the pending operation.
  DirectOperation operation_;            // Constant while it is pending.
  ringd_operation last_{};               // What operation_ was made from; size 0: nothing yet.
  bool last_finished_ = false;           // The last one ended by Finish: all were there.
  std::array<uint64_t, segment::kSlotCount> described_{};  // Signatures of own slots' descriptions.
  std::atomic<uint64_t> operations_{0};
  std::atomic<uint64_t> bytes_reduced_{0};
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_DIRECT_PATH_H_
