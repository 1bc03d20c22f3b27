// A scheduler and a daemon for one `ringctl run`.
#ifndef RINGD_CLIENT_CLI_RUN_EMBEDDED_CLUSTER_H_
#define RINGD_CLIENT_CLI_RUN_EMBEDDED_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/run/bound_process.h"
#include "client/cli/run/cluster_client.h"
#include "client/cli/run/invitation.h"
#include "client/cli/run/run_directory.h"

namespace ringd::cli {

// Two processes (programs beside ringctl) in a private run directory. They live no longer than this
// process: both hold the read end of a pipe whose write end is only here. With guests, daemons on
// other machines join over TCP (`ringctl join`); they end when the scheduler does.
//
// Life: Start, then the destructor, which ends both and waits for that.
// Thread-compatible: external synchronisation.
class EmbeddedCluster {
 public:
  struct Options {
    int slots = 1;
    std::string node_name;  // Not with guests: they and this node have names of their own.
    std::function<bool()> interrupted;  // Polled while it starts.
    std::vector<int> guests;            // The slots of each other machine.
    std::string host;                   // This machine's name or address, as they reach it.
    std::function<void(const std::vector<Invitation>&)> invite;  // Gets theirs, once they can join.
  };
  // Blocks until the node is up (10 s at most), and its guests (however long they take). CANCELLED:
  // interrupted. INTERNAL, NOT_FOUND: a program is missing or ended; the message has the end of its
  // log.
  static absl::StatusOr<std::unique_ptr<EmbeddedCluster>> Start(
      std::unique_ptr<RunDirectory> directory, Options options);
  ~EmbeddedCluster();

  ClusterClient* client() { return client_.get(); }
  // INTERNAL: one of the two has ended; the message has the end of its log.
  absl::Status CheckHealth() const;

 private:
  EmbeddedCluster(std::unique_ptr<RunDirectory> directory, Options options);
  absl::Status StartAll();
  absl::Status StartAlone();
  absl::Status StartWithGuests();
  absl::Status AwaitSocket();
  absl::Status AwaitNodes(size_t count, absl::Duration timeout);
  absl::Status CheckStart() const;

  const std::unique_ptr<RunDirectory> directory_;
  const Options options_;
  Lifeline lifeline_;
  std::unique_ptr<BoundProcess> scheduler_;
  std::unique_ptr<BoundProcess> daemon_;
  std::unique_ptr<ClusterClient> client_;
};

// A daemon for an invitation, until it ends by itself (its scheduler has ended) or `interrupted`
// says so. Blocks until then. INTERNAL, NOT_FOUND: as above.
absl::Status RunGuest(const Invitation& invitation, RunDirectory* directory,
                      const std::function<bool()>& interrupted);

// This host's name as a node's: up to the first '.'.
std::string LocalNodeName();

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_EMBEDDED_CLUSTER_H_
