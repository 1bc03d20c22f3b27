// All that a worker does while it has one thread.
#ifndef RINGD_WORKER_SETUP_H_
#define RINGD_WORKER_SETUP_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "proto/node.pb.h"
#include "worker/logs/log_file.h"
#include "worker/process/rank_process.h"

namespace ringd::worker {

struct PreparedRank {
  absl::Status
      problem;  // Why the rank can't be started: told to the daemon. Then the rest may be missing.
  UniqueFd listener;  // RINGD_SOCKET.
  std::unique_ptr<LogFile> log;
  std::unique_ptr<RankProcess> process;  // Waits for Start.
};

// Becomes a subreaper; joins the cgroup; becomes the user (before anything of the user's is read or
// made); listens; opens the log; forks the rank's process. REQUIRES: one thread; SIGPIPE ignored;
// signals that the caller waits for blocked.
//   PERMISSION_DENIED  the user could not be switched to: this process must end
absl::StatusOr<PreparedRank> PrepareRank(const node::v1::WorkerSpec& spec);

// The same check that comes before the fork, for --check-fd. The status's message is one line for
// the user.
//   PERMISSION_DENIED  also: the user could not be switched to
absl::Status CheckRank(const node::v1::WorkerSpec& spec);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_SETUP_H_
