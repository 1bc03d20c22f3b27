// Shared futexes on 32-bit words in memory that several processes map, and the monotonic clock
// beside them.
#ifndef RINGD_COMMON_BASE_FUTEX_H_
#define RINGD_COMMON_BASE_FUTEX_H_

#include <atomic>
#include <cstdint>

namespace ringd {

// CLOCK_MONOTONIC in microseconds.
int64_t MonotonicMicros();

enum class FutexResult { kWoken, kValueChanged, kTimedOut, kInterrupted };

// Blocks while *word == expected, at most timeout_us (< 0: no limit). May wake without a reason.
FutexResult FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_us);

// Wakes all who wait on the word.
void FutexWakeAll(std::atomic<uint32_t>* word);

// Tells the core that this is a spin loop.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_FUTEX_H_
