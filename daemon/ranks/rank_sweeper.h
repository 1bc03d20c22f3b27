// Ending what is left of a rank.
#ifndef RINGD_DAEMON_RANKS_RANK_SWEEPER_H_
#define RINGD_DAEMON_RANKS_RANK_SWEEPER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace ringd::daemon {

struct SweepOptions {
  uid_t uid = 0;              // The job's: no other user's process is ever touched.
  std::string worker_socket;  // The rank's RINGD_SOCKET: processes that carry it are the rank's.
  pid_t pid = 0;              // The rank's process, which leads a session. 0: not known.
  pid_t worker_pid = 0;       // 0: already gone.
  std::string cgroup;         // Empty: none.
};

// Kills the worker, then every process that is in the rank's cgroup or session or has its socket in
// the environment, until none is left. Blocks for `timeout` at most; returns how many were still
// there then (uninterruptible ones).
int SweepRank(const SweepOptions& options, absl::Duration timeout);

// Start time of a process in clock ticks since boot, as /proc/PID/stat has it; 0: no such process.
// With the pid it names a process for good.
uint64_t ProcessStartTime(pid_t pid);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_RANKS_RANK_SWEEPER_H_
