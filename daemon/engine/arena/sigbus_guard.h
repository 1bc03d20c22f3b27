// Keeps the daemon alive when a client's memory can't be had: SIGBUS in a guarded range.
#ifndef RINGD_DAEMON_ENGINE_ARENA_SIGBUS_GUARD_H_
#define RINGD_DAEMON_ENGINE_ARENA_SIGBUS_GUARD_H_

#include <cstddef>
#include <cstdint>

namespace ringd::daemon {

// While it lives, a SIGBUS at an address in [data, data + bytes), on any thread, maps a page of
// zeros over the faulting one and marks the range as bad; the interrupted access goes on. Other
// SIGBUS end the process as before. Seals keep a memfd from shrinking, but not from holes, whose
// pages may be refused when the daemon touches them.
//
// The first guard installs the process's SIGBUS handler, which stays. The table that the handler
// reads is the one process-wide state of the daemon: signals have no owner.
//
// Life: destroy before unmapping the range.
// Thread-safe.
class SigbusGuard {
 public:
  static constexpr size_t kMaxRanges = 16384;  // 64 ranks with all their 256 segments.

  SigbusGuard() = default;
  SigbusGuard(const void* data, size_t bytes);
  SigbusGuard(SigbusGuard&& other) noexcept;
  SigbusGuard& operator=(SigbusGuard&& other) noexcept;
  ~SigbusGuard();

  // False when the table was full: the range is not guarded.
  bool active() const { return index_ >= 0; }
  bool bad() const;

  // Counts the faults of all ranges: a cheap sign that some guard may be bad.
  static uint64_t FaultCount();

 private:
  int index_ = -1;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ARENA_SIGBUS_GUARD_H_
