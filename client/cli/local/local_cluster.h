// A cluster on one machine: made, started, stopped and removed.
#ifndef RINGD_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_
#define RINGD_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/local/cluster_file.h"

namespace ringd::cli {

struct UpOptions {
  std::string directory;  // Absolute.
  int nodes = 2;
  int slots = 1;
  bool netns = false;
  std::string rate;  // Empty: unlimited.
};

// Makes directory, certificates, network, and starts scheduler and daemons. Blocks until all nodes
// are up (20 s at most). `say` is given lines about the progress; `interrupted` is polled. What was
// made is removed again on an error. ALREADY_EXISTS: the directory is in use; CANCELLED:
// interrupted.
absl::StatusOr<LocalCluster> BringUp(const UpOptions& options,
                                     const std::function<void(const std::string&)>& say,
                                     const std::function<bool()>& interrupted);

// Ends ranks, daemons and scheduler, removes namespaces, bridge and directory. Blocks until nothing
// is left. What is gone already is no error.
absl::Status TearDown(const LocalCluster& cluster);

// name: a node or "scheduler". Starts its process and blocks until it is up (20 s at most); OK if
// it runs already.
absl::Status StartMember(const LocalCluster& cluster, const std::string& name);

// SIGTERM, after 10 s SIGKILL; ranks of a node go on without their daemon for its reattach_timeout.
absl::Status StopMember(const LocalCluster& cluster, const std::string& name);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_
