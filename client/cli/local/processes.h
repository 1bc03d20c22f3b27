// Processes that outlive ringctl, found again by their pid files.
#ifndef RINGD_CLIENT_CLI_LOCAL_PROCESSES_H_
#define RINGD_CLIENT_CLI_LOCAL_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ringd::cli {

// A line of /proc/PID/stat.
struct ProcessStat {
  char state = '?';  // 'Z': ended, not reaped.
  pid_t parent = 0;
  uint64_t start_time = 0;  // Tells a process from a later one with its number.
};
// INVALID_ARGUMENT: not such a line.
absl::StatusOr<ProcessStat> ParseProcessStat(const std::string& line);

struct DetachedOptions {
  std::vector<std::string> argv;
  std::string log;       // Appended to.
  std::string pid_file;  // Written.
  std::string netns;     // Name; empty: this one.
};
// Starts a process in a session of its own. NOT_FOUND: no such program; FAILED_PRECONDITION: log,
// pid file or namespace.
absl::Status StartDetached(const DetachedOptions& options);

// The process of a pid file; 0: it doesn't run.
pid_t RunningPid(const std::string& pid_file);

// SIGTERM to all of the pid files' processes, SIGKILL to those that haven't ended by then. Blocks
// until all have ended.
void StopProcesses(const std::vector<std::string>& pid_files, absl::Duration patience);

// Pids of the workers that listen below a daemon's run directory; the daemon need not run.
std::vector<pid_t> WorkersOf(const std::string& run_directory);

// SIGTERM to the workers; after `patience`, SIGKILL to those left and all their descendants. Blocks
// until they have ended.
void StopWorkers(const std::vector<pid_t>& workers, absl::Duration patience);

// SIGKILL to every process in a network namespace. Blocks until they have ended, or 5 s have
// passed.
void KillAllInNamespace(const std::string& netns);

// Moves the calling thread into a network namespace. FAILED_PRECONDITION: it is gone, or this isn't
// root.
absl::Status EnterNamespace(const std::string& netns);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_LOCAL_PROCESSES_H_
