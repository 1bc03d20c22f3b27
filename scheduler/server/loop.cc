#include "scheduler/server/loop.h"

#include <algorithm>
#include <utility>

#include "common/base/futex.h"

namespace ringd::scheduler {

absl::Duration SteadyNow() { return absl::Microseconds(MonotonicMicros()); }

Loop::Loop(Hooks hooks, absl::Duration tick_interval)
    : hooks_(std::move(hooks)), tick_interval_(tick_interval) {}

Loop::~Loop() { Stop(); }

void Loop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Loop::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    posted_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Loop::Post(std::function<void()> task) {
  MutexLock lock(&mu_);
  if (stopped_) return;
  tasks_.push_back(std::move(task));
  posted_.Signal();
}

bool Loop::Take(std::vector<std::function<void()>>* tasks, absl::Duration timeout) {
  MutexLock lock(&mu_);
  if (tasks_.empty() && !stopping_) posted_.WaitWithTimeout(&mu_, timeout);
  tasks->clear();
  tasks->swap(tasks_);
  stopped_ = stopping_ && tasks->empty();
  return !stopped_;
}

void Loop::Run() {
  std::vector<std::function<void()>> tasks;
  absl::Duration next_tick = SteadyNow() + tick_interval_;
  while (Take(&tasks, std::max(next_tick - SteadyNow(), absl::ZeroDuration()))) {
    for (auto& task : tasks) task();
    if (SteadyNow() >= next_tick) {
      hooks_.tick();
      next_tick = SteadyNow() + tick_interval_;
    }
    hooks_.after_batch();
  }
}

}  // namespace ringd::scheduler
