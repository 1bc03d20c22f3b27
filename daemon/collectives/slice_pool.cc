#include "daemon/collectives/slice_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "common/base/cpus.h"
#include "common/base/futex.h"

namespace ringd::daemon {
namespace {

constexpr int64_t kPauseMicros = 2;
constexpr int64_t kYieldMicros = 200;

}  // namespace

SliceTask::SliceTask(size_t total, size_t piece, int slice_count, Run run)
    : piece_(piece), run_(std::move(run)), slices_(slice_count), remaining_(total) {
  // Slices begin at whole pieces, so that each begins as well aligned as the buffer does.
  const size_t pieces = (total + piece - 1) / piece;
  for (size_t i = 0; i < slices_.size(); ++i) {
    slices_[i].next.store(std::min(total, pieces * i / slices_.size() * piece),
                          std::memory_order_relaxed);
    slices_[i].end = std::min(total, pieces * (i + 1) / slices_.size() * piece);
  }
}

bool SliceTask::Claim(Slice* slice, size_t* begin, size_t* end) const {
  if (slice->next.load(std::memory_order_relaxed) >= slice->end) return false;
  *begin = slice->next.fetch_add(piece_, std::memory_order_relaxed);
  if (*begin >= slice->end) return false;
  *end = std::min(slice->end, *begin + piece_);
  return true;
}

bool SliceTask::RunPiece(size_t own) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    size_t begin, end;
    if (!Claim(&slices_[(own + i) % slices_.size()], &begin, &end)) continue;
    run_(begin, end);
    remaining_.fetch_sub(end - begin, std::memory_order_acq_rel);
    return true;
  }
  return false;
}

SlicePool::SlicePool(int threads) {
  if (threads <= 0) threads = UsableCpus();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { HelperLoop(i); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SlicePool::~SlicePool() {
  stopping_ = true;
  epoch_.fetch_add(1);
  FutexWakeAll(&epoch_);
  for (std::thread& helper : helpers_) helper.join();
}

std::shared_ptr<SliceTask> SlicePool::Submit(size_t total, size_t piece, SliceTask::Run run) {
  auto task = std::make_shared<SliceTask>(total, piece, thread_count(), std::move(run));
  KeepHelpersOffOwnCpu();
  {
    MutexLock lock(&mu_);
    tasks_.push_back(task);
  }
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) FutexWakeAll(&epoch_);
  return task;
}

void SlicePool::KeepHelpersOffOwnCpu() {
  const int cpu = sched_getcpu();
  if (helpers_.empty() || cpu < 0 || cpu >= CPU_SETSIZE || cpu == avoided_cpu_) return;
  cpu_set_t others;
  if (sched_getaffinity(0, sizeof(others), &others) != 0) return;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0) return;
  avoided_cpu_ = cpu;
  for (std::thread& helper : helpers_) {
    pthread_setaffinity_np(helper.native_handle(), sizeof(others), &others);
  }
}

bool SlicePool::RunPiece() {
  while (const std::shared_ptr<SliceTask> task = Pick(&cursor_)) {
    if (task->RunPiece(0)) return true;
    Drop(task);
  }
  return false;
}

std::shared_ptr<SliceTask> SlicePool::Pick(size_t* cursor) {
  MutexLock lock(&mu_);
  if (tasks_.empty()) return nullptr;
  return tasks_[(*cursor)++ % tasks_.size()];
}

void SlicePool::Drop(const std::shared_ptr<SliceTask>& task) {
  MutexLock lock(&mu_);
  const auto found = std::find(tasks_.begin(), tasks_.end(), task);
  if (found != tasks_.end()) tasks_.erase(found);
}

void SlicePool::HelperLoop(size_t index) {
  size_t cursor = index;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint32_t seen = epoch_.load();
    if (const std::shared_ptr<SliceTask> task = Pick(&cursor)) {
      if (!task->RunPiece(index)) Drop(task);
    } else {
      WaitForWork(seen);
    }
  }
}

void SlicePool::WaitForWork(uint32_t seen) {
  const int64_t start = MonotonicMicros();
  while (epoch_.load(std::memory_order_relaxed) == seen) {
    const int64_t idle = MonotonicMicros() - start;
    if (idle > kYieldMicros) break;
    if (idle < kPauseMicros) {
      CpuRelax();
    } else {
      sched_yield();
    }
  }
  if (epoch_.load(std::memory_order_relaxed) != seen) return;
  sleepers_.fetch_add(1);
  FutexWait(&epoch_, seen, -1);
  sleepers_.fetch_sub(1);
}

}  // namespace ringd::daemon
