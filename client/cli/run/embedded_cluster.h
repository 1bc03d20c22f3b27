// A scheduler and a daemon for one `ringctl run`.
#ifndef RINGD_CLIENT_CLI_RUN_EMBEDDED_CLUSTER_H_
#define RINGD_CLIENT_CLI_RUN_EMBEDDED_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/run/cluster_client.h"
#include "client/cli/run/run_directory.h"
#include "common/base/fd.h"
#include "common/process/process.h"

namespace ringd::cli {

// Two processes (programs beside ringctl) in a private run directory. They live no longer than this
// process: both hold the read end of a pipe whose write end is only here.
//
// Life: Start, then the destructor, which ends both and waits for that.
// Thread-compatible: external synchronisation.
class EmbeddedCluster {
 public:
  struct Options {
    int slots = 1;
    std::string node_name;
    std::function<bool()> interrupted;  // Polled while it starts.
  };
  // Blocks until the node is up (10 s at most). CANCELLED: interrupted. INTERNAL, NOT_FOUND: a
  // program is missing or ended; the message has the end of its log.
  static absl::StatusOr<std::unique_ptr<EmbeddedCluster>> Start(
      std::unique_ptr<RunDirectory> directory, Options options);
  ~EmbeddedCluster();

  ClusterClient* client() { return client_.get(); }
  // INTERNAL: one of the two has ended; the message has the end of its log.
  absl::Status CheckHealth() const;

 private:
  struct Process {
    std::string name;
    std::string log;
    Child child;
  };
  EmbeddedCluster(std::unique_ptr<RunDirectory> directory, Options options);
  absl::Status StartProcess(const std::string& name, std::vector<std::string> arguments,
                            int lifeline, Process* process);
  absl::Status StartAll();
  absl::Status AwaitSocket();
  absl::Status AwaitNode();
  absl::Status CheckStart() const;

  const std::unique_ptr<RunDirectory> directory_;
  const Options options_;
  UniqueFd lifeline_;
  Process scheduler_;
  Process daemon_;
  std::unique_ptr<ClusterClient> client_;
};

// This host's name as a node's: up to the first '.'.
std::string LocalNodeName();

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_EMBEDDED_CLUSTER_H_
