// Threads that share large local work with the engine's thread.
#ifndef RINGD_DAEMON_COLLECTIVES_SLICE_POOL_H_
#define RINGD_DAEMON_COLLECTIVES_SLICE_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/sync/mutex.h"

namespace ringd::daemon {

// Bytes of one rank's buffer in one piece of work: large enough that claiming a piece costs
// nothing, small enough that an operation of another job waits for tens of microseconds only.
inline constexpr size_t kPieceBytes = 256 << 10;

// Work over the range [0, total), cut into one contiguous slice a thread; each slice is walked in
// pieces, and whoever is done with its own takes pieces of the others. Pieces don't overlap and run
// in any order, on any thread.
class SliceTask {
 public:
  using Run = std::function<void(size_t begin, size_t end)>;
  // piece: units of the range in one piece, > 0.
  SliceTask(size_t total, size_t piece, int slice_count, Run run);

  bool done() const { return remaining_.load(std::memory_order_acquire) == 0; }

 private:
  friend class SlicePool;
  struct alignas(128) Slice {
    std::atomic<size_t> next{0};
    size_t end = 0;
  };
  // Runs one piece, of slice `own` if it has any left. False: none was left anywhere.
  bool RunPiece(size_t own);
  bool Claim(Slice* slice, size_t* begin, size_t* end) const;

  const size_t piece_;
  const Run run_;
  std::vector<Slice> slices_;
  std::atomic<size_t> remaining_;  // Units not finished yet.
};

// Helper threads for slice tasks. They spin for a moment when idle, then sleep. They keep off the
// CPU of the engine's thread: the scheduler may start a helper there while others spin, and leaves
// it there, behind the engine's thread, even when another CPU has become idle.
//
// Life: the constructor starts the threads, the destructor stops them; tasks must be done by then.
// Thread-bound: Submit and RunPiece belong to the engine's thread.
class SlicePool {
 public:
  // threads: those that work, the caller's included. 0: one for each CPU this process may use.
  explicit SlicePool(int threads);
  ~SlicePool();
  SlicePool(const SlicePool&) = delete;
  SlicePool& operator=(const SlicePool&) = delete;

  int thread_count() const { return static_cast<int>(helpers_.size()) + 1; }

  std::shared_ptr<SliceTask> Submit(size_t total, size_t piece, SliceTask::Run run);
  // Runs one piece of some task, round robin over tasks. False: there is none to run (others may
  // still run theirs).
  bool RunPiece();

 private:
  void HelperLoop(size_t index);
  void KeepHelpersOffOwnCpu();
  // A task that may have pieces left; null if there is none.
  std::shared_ptr<SliceTask> Pick(size_t* cursor);
  void Drop(const std::shared_ptr<SliceTask>& task);
  // Blocks until the epoch is no longer `seen` or a spurious wake.
  void WaitForWork(uint32_t seen);

  std::vector<std::thread> helpers_;
  size_t cursor_ = 0;     // Engine's thread, as the next.
  int avoided_cpu_ = -1;  // Where no helper may run; -1: none.

  std::atomic<uint32_t> epoch_{0};  // Counts submissions and the stop: what sleepers wait on.
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};

  Mutex mu_;
  std::vector<std::shared_ptr<SliceTask>> tasks_
      ABSL_GUARDED_BY(mu_);  // With pieces left, as far as known.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_SLICE_POOL_H_
