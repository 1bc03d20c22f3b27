// How a thread waits before it sleeps: what costs the others least and finds an early end soonest.
#ifndef RINGD_CLIENT_C_WAIT_POLICY_H_
#define RINGD_CLIENT_C_WAIT_POLICY_H_

#include <sched.h>

#include <cstdint>

#include "common/base/futex.h"

namespace ringd::client {

inline constexpr int64_t kPauseMicros = 2;       // Longer pauses starve others of their core.
inline constexpr int64_t kYieldMicros = 200;     // Then sleeping is cheaper than yielding.
inline constexpr int64_t kLongYieldMicros = 50;  // A yield this long: others want the core.
inline constexpr int kBareLooks = 64;            // An answer that is on its way comes meanwhile.
inline constexpr int kPausesBetweenClocks = 16;

enum class EarlyEnd { kDone, kTimedOut, kNotYet };

// Looks (a bool function) while pausing, then while yielding. spin: there are as many CPUs as
// ranks. kNotYet: sleep.
template <typename Look>
EarlyEnd WaitAwake(bool spin, int64_t deadline_us, Look look) {
  for (int i = 0; spin && i < kBareLooks; ++i) {
    if (look()) return EarlyEnd::kDone;
  }
  const int64_t start_us = MonotonicMicros();
  if (spin) {
    do {
      for (int i = 0; i < kPausesBetweenClocks; ++i) {
        CpuRelax();
        if (look()) return EarlyEnd::kDone;
      }
    } while (MonotonicMicros() - start_us < kPauseMicros);
  }
  int64_t now_us = start_us;
  while (now_us - start_us < kYieldMicros) {
    if (now_us >= deadline_us) return EarlyEnd::kTimedOut;
    const int64_t before_us = now_us;
    sched_yield();
    if (look()) return EarlyEnd::kDone;
    now_us = MonotonicMicros();
    if (now_us - before_us > kLongYieldMicros) break;
  }
  return EarlyEnd::kNotYet;
}

// When a wait of timeout_us (< 0: without limit) that begins now has to end.
inline int64_t DeadlineOf(int64_t timeout_us) {
  if (timeout_us < 0) return INT64_MAX;
  const int64_t now_us = MonotonicMicros();
  return timeout_us > INT64_MAX - now_us ? INT64_MAX : now_us + timeout_us;
}

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_WAIT_POLICY_H_
