// The rank's own process: forked early, started late.
#ifndef RINGD_WORKER_PROCESS_RANK_PROCESS_H_
#define RINGD_WORKER_PROCESS_RANK_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace ringd::worker {

struct RankCommand {
  std::string program;                   // Absolute path.
  std::vector<std::string> argv;         // As the user typed it.
  std::vector<std::string> environment;  // "NAME=VALUE", exactly this.
  std::string directory;
  std::vector<int> cpus;  // Affinity; empty: as it is.
  mode_t umask = 022;
  bool die_with_worker = false;  // SIGKILL when the worker's main thread ends (embedded).
};

// fork and a program with threads (gRPC's) don't mix. So the child is forked while the worker still
// has one thread, in a session and process group of its own, with its pipes in place, and waits for
// Start to replace itself.
//
// Life: Prepare, Start; one that was never started ends by itself when this object goes.
// Thread-compatible: external synchronisation.
class RankProcess {
 public:
  // REQUIRES: one thread. RESOURCE_EXHAUSTED: no more processes or descriptors.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Prepare(const RankCommand& command);

  // Blocks until the program runs (milliseconds).
  //   INVALID_ARGUMENT  the directory can't be entered or the program can't be executed; the
  //   process has ended
  absl::Status Start();

  pid_t pid() const { return pid_; }
  // To this process alone. REQUIRES: not reaped. False: no such process.
  bool Signal(int signal) const;
  // To its process group. REQUIRES: not reaped.
  void SignalGroup(int signal) const;

  UniqueFd TakeStdout() { return std::move(stdout_); }
  UniqueFd TakeStderr() { return std::move(stderr_); }

 private:
  RankProcess() = default;

  pid_t pid_ = 0;
  std::string program_;
  std::string directory_;
  UniqueFd pidfd_;
  UniqueFd go_;      // One byte: start. Closed: end.
  UniqueFd failed_;  // The child's word why it could not start; closed by a successful exec.
  UniqueFd stdout_;
  UniqueFd stderr_;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_PROCESS_RANK_PROCESS_H_
