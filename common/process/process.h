// Starting and watching processes without fork in a threaded program (posix_spawn).
#ifndef RINGD_COMMON_PROCESS_PROCESS_H_
#define RINGD_COMMON_PROCESS_PROCESS_H_

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fd.h"

namespace ringd {

struct SpawnOptions {
  std::vector<std::string> argv;         // argv[0]: path of the program.
  std::vector<std::string> environment;  // "NAME=VALUE"; exactly this.
  bool new_session = false;
  // Child's descriptor number -> ours. 0, 1, 2 not named here: /dev/null. All others are closed.
  std::map<int, int> fds;
};

struct Child {
  pid_t pid = 0;
  UniqueFd pidfd;
};

// Signal mask and dispositions are reset in the child. NOT_FOUND: no such program.
absl::StatusOr<Child> Spawn(const SpawnOptions& options);

struct ExitStatus {
  int exit_code = 0;  // Valid when signal is 0.
  int signal = 0;
};
// Blocks until it ends or the timeout passes (DEADLINE_EXCEEDED). Reaps.
absl::StatusOr<ExitStatus> WaitForExit(const Child& child, absl::Duration timeout);

// This process's environment, for SpawnOptions.
std::vector<std::string> OwnEnvironment();

struct Finished {
  ExitStatus status;
  std::string output;
};
// Runs it to its end. output: what it writes to those of its descriptors, at most `limit` bytes of
// it. DEADLINE_EXCEEDED: it had closed them, but not ended after the timeout, and was killed.
absl::StatusOr<Finished> RunToEnd(SpawnOptions options, const std::vector<int>& fds, size_t limit,
                                  absl::Duration timeout);

// Path of a program that is installed beside the running one (same directory), for "ringd-worker"
// etc.
std::string SiblingProgram(const std::string& name);

// Sends READY=1, STOPPING=1, WATCHDOG=1 ... to systemd where NOTIFY_SOCKET is set.
void NotifySystemd(const std::string& state);
// Half of WATCHDOG_USEC if this process is watched, else zero.
absl::Duration WatchdogInterval();

// Tells systemd's watchdog in time, however often the loop that asks is woken by other things.
//
// Thread-compatible: external synchronisation.
class Watchdog {
 public:
  Watchdog();
  // For poll(): until the next word is due; -1 where nobody watches.
  int TimeoutMillis() const;
  void TellIfDue();

 private:
  const int64_t interval_us_;
  int64_t next_us_;  // CLOCK_MONOTONIC.
};

}  // namespace ringd

#endif  // RINGD_COMMON_PROCESS_PROCESS_H_
