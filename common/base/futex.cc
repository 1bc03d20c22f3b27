#include "common/base/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace ringd {
namespace {

constexpr int64_t kMicrosPerSecond = 1'000'000;

}  // namespace

int64_t MonotonicMicros() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kMicrosPerSecond + now.tv_nsec / 1000;
}

FutexResult FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_us) {
  timespec timeout;
  if (timeout_us >= 0) {
    timeout.tv_sec = timeout_us / kMicrosPerSecond;
    timeout.tv_nsec = (timeout_us % kMicrosPerSecond) * 1000;
  }
  const long rc = syscall(SYS_futex, word, FUTEX_WAIT, expected,
                          timeout_us >= 0 ? &timeout : nullptr, nullptr, 0);
  if (rc == 0) return FutexResult::kWoken;
  if (errno == ETIMEDOUT) return FutexResult::kTimedOut;
  if (errno == EINTR) return FutexResult::kInterrupted;
  return FutexResult::kValueChanged;
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ringd
