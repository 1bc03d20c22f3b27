// Making the processes of ranks: what a worker is told, and starting it.
#ifndef RINGD_DAEMON_RANKS_RANK_SPAWNER_H_
#define RINGD_DAEMON_RANKS_RANK_SPAWNER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/process/process.h"
#include "daemon/ranks/rank_sweeper.h"
#include "proto/cluster.pb.h"
#include "proto/node.pb.h"

namespace ringd::daemon {

struct SpawnerOptions {
  std::string node;
  std::string worker_program;  // Path of ringd-worker.
  std::string run_directory;
  std::string log_directory;
  std::string daemon_socket;  // Path of the gRPC socket that workers use.
  bool shared = false;        // Workers become their job's user.
  absl::Duration reattach_timeout = absl::Seconds(60);
  uint64_t arena_bytes = 0;  // 0: the worker's default.
  uint64_t arena_max_bytes = 0;
  std::string cgroup_parent;  // Empty: no cgroups.
};

// Thread-safe: it has no state.
class RankSpawner {
 public:
  explicit RankSpawner(SpawnerOptions options);

  // Whether the command can be started here, found out as the job's user by a short-lived helper
  // process. Blocks for kCheckTimeout at most.  INVALID_ARGUMENT: the user's mistake, in a
  // sentence; UNAVAILABLE: could not be found out.
  absl::Status CheckCommand(const cluster::v1::Prepare& order) const;

  // Starts a rank's worker in a session of its own.
  absl::StatusOr<Child> Spawn(const cluster::v1::Prepare& order, int rank) const;

  node::v1::WorkerSpec MakeSpec(const cluster::v1::Prepare& order, int rank) const;
  SweepOptions MakeSweep(const cluster::v1::Prepare& order, int rank) const;
  // Folder of the job's logs, and a rank's log in it.
  std::string LogDirectory(const cluster::v1::Prepare& order) const;
  std::string LogPath(const cluster::v1::Prepare& order, int rank) const;
  // Removes the folder of the job's worker sockets.
  void RemoveSockets(const std::string& job) const;

 private:
  std::string SocketDirectory(const std::string& job) const;
  std::string CgroupName(const std::string& job, int rank) const;
  absl::Status MakeDirectories(const cluster::v1::Prepare& order) const;

  const SpawnerOptions options_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_RANKS_RANK_SPAWNER_H_
