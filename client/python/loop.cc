// libringd-loop.so: operations in a loop without Python, for `ringctl bench latency` and `bench
// path` (ringd/bench/_operations.py).
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "client/c/ringd.h"

namespace {

// common/base/types.h.
constexpr uint32_t kNoop = 1;
constexpr uint32_t kAllreduce = 2;
constexpr uint32_t kSum = 2;

int64_t NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int Run(const ringd_operation& operation) {
  ringd_handle handle = 0;
  int code = ringd_run(&operation, -1, &handle);
  while (code == RINGD_INTERRUPTED) code = ringd_wait(handle, -1);
  return code;
}

}  // namespace

// Sums `count` elements in place, `calls` times. COLLECTIVE. Fills nanoseconds[calls]; the code of
// the first call that failed.
extern "C" RINGD_API int ringd_loop_allreduce(void* buffer, uint64_t count, uint32_t dtype,
                                              int64_t calls, int64_t* nanoseconds) {
  const auto length = static_cast<int64_t>(count);
  ringd_operation operation{.size = sizeof(operation)};
  operation.operation = kAllreduce;
  operation.dtype = dtype;
  operation.reduction = kSum;
  operation.input = operation.output = buffer;
  operation.count = operation.output_count = count;
  operation.shape = &length;
  operation.ndim = 1;
  operation.prescale = operation.postscale = 1.0;
  int64_t start = NowNanos();
  for (int64_t i = 0; i < calls; ++i) {
    const int code = Run(operation);
    if (code != RINGD_OK) return code;
    const int64_t end = NowNanos();
    nanoseconds[i] = end - start;
    start = end;
  }
  return RINGD_OK;
}

// An operation that the daemon completes as soon as it has read it, `calls` times, each after
// `quiet_us` in which this thread sleeps. One rank alone. As above.
extern "C" RINGD_API int ringd_loop_noop(int64_t quiet_us, int64_t calls, int64_t* nanoseconds) {
  ringd_operation operation{.size = sizeof(operation)};
  operation.operation = kNoop;
  for (int64_t i = 0; i < calls; ++i) {
    if (quiet_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(quiet_us));
    const int64_t start = NowNanos();
    const int code = Run(operation);
    if (code != RINGD_OK) return code;
    nanoseconds[i] = NowNanos() - start;
  }
  return RINGD_OK;
}

// What the system takes to wake a thread that has slept on an eventfd for `quiet_us`, until the one
// that woke it sees a word from it: no way to a sleeping daemon is shorter.
extern "C" RINGD_API int ringd_loop_wake(int64_t quiet_us, int64_t calls, int64_t* nanoseconds) {
  const int bell = eventfd(0, EFD_CLOEXEC);
  if (bell < 0) return RINGD_RESOURCE_EXHAUSTED;
  std::atomic<int64_t> answered{0};
  std::thread sleeper([&] {
    uint64_t rings = 0;
    while (answered.load() < calls && read(bell, &rings, sizeof(rings)) == sizeof(rings)) {
      answered.fetch_add(1);
    }
  });
  for (int64_t i = 0; i < calls; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(quiet_us));
    const uint64_t one = 1;
    const int64_t start = NowNanos();
    [[maybe_unused]] const ssize_t written = write(bell, &one, sizeof(one));
    while (answered.load() == i) sched_yield();
    nanoseconds[i] = NowNanos() - start;
  }
  sleeper.join();
  close(bell);
  return RINGD_OK;
}
