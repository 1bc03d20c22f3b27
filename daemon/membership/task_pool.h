// A few threads for what blocks: checking commands, sweeping ranks.
#ifndef RINGD_DAEMON_MEMBERSHIP_TASK_POOL_H_
#define RINGD_DAEMON_MEMBERSHIP_TASK_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "common/sync/mutex.h"

namespace ringd::daemon {

// Runs tasks in their order, at most `threads` at once. The queue is bounded by what gives tasks:
// at most two for each rank of the node.
//
// Life: the destructor drops tasks that have not begun and waits for those that have.
// Thread-safe.
class TaskPool {
 public:
  explicit TaskPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back(&TaskPool::Run, this);
  }
  ~TaskPool() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Add(std::function<void()> task) {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
    changed_.Signal();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(&mu_);
        while (tasks_.empty() && !stopping_) changed_.Wait(&mu_);
        if (stopping_) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MEMBERSHIP_TASK_POOL_H_
