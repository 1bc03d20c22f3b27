// libringd-loop.so: allreduce in a loop without Python, for `ringctl bench latency`
// (ringd/bench/_operations.py).
#include <chrono>
#include <cstdint>

#include "client/c/ringd.h"

namespace {

// common/base/types.h.
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
