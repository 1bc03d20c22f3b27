// The state thread: one mailbox, one thread, everything in order.
#ifndef RINGD_SCHEDULER_SERVER_LOOP_H_
#define RINGD_SCHEDULER_SERVER_LOOP_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/sync/mutex.h"

namespace ringd::scheduler {

// Runs posted tasks one after the other, and two hooks around them.
//
// The mailbox has no bound of its own: each call and each stream has one task in it at most, since
// a stream reads its next message only when the last was handled.
//
// Life: construct, Start, Post..., Stop (runs what is posted, then joins).
// Thread-safe.
class Loop {
 public:
  struct Hooks {
    std::function<void()> after_batch;  // After each run of tasks and each tick.
    std::function<void()> tick;         // Every tick_interval.
  };
  Loop(Hooks hooks, absl::Duration tick_interval);
  ~Loop();

  void Start();
  void Stop();
  // After Stop tasks are dropped.
  void Post(std::function<void()> task);

 private:
  void Run();
  // Blocks until there is something to do. False: stopped and empty.
  bool Take(std::vector<std::function<void()>>* tasks, absl::Duration timeout);

  const Hooks hooks_;
  const absl::Duration tick_interval_;
  std::thread thread_;

  Mutex mu_;
  CondVar posted_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

// CLOCK_MONOTONIC since its origin.
absl::Duration SteadyNow();

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_SERVER_LOOP_H_
