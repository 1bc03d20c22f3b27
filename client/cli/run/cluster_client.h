// ringctl's line to a scheduler.
#ifndef RINGD_CLIENT_CLI_RUN_CLUSTER_CLIENT_H_
#define RINGD_CLIENT_CLI_RUN_CLUSTER_CLIENT_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/rpc.h"
#include "common/sync/mutex.h"
#include "proto/cluster.grpc.pb.h"

namespace ringd::cli {

// Calls in flight that end together.
//
// Thread-safe.
class CallGroup {
 public:
  // Ends the calls of now and, at once, those to come.
  void Cancel();
  bool cancelled() const;

 private:
  friend class CallScope;
  mutable Mutex mu_;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

struct SchedulerAddress {
  std::string address;      // "unix:/path" or "host:port".
  std::string authority;    // PEM file to check a TCP scheduler's certificate by.
  std::string server_name;  // What that certificate names, if not the host.
  // Path: this node's daemon, which signs who we are for a TCP scheduler.
  std::string daemon_socket;
};

// Errors are those that cluster.proto lists, with messages that say what to do next. UNAVAILABLE:
// the scheduler doesn't answer (the message has its address); streams say so when they break, and
// may be opened again.
//
// Thread-safe. Unary calls block at most kCallTimeout, streams until they end or their group is
// cancelled.
class ClusterClient {
 public:
  // Blocks until the scheduler answers. FAILED_PRECONDITION: it is of another version (both are
  // named).
  static absl::StatusOr<std::unique_ptr<ClusterClient>> Connect(const SchedulerAddress& address);

  absl::StatusOr<ringd::cluster::v1::SubmitResponse> Submit(
      const ringd::cluster::v1::JobSpec& spec);
  // Blocks until the parts of all nodes have come, or the request's timeout has passed
  // (DEADLINE_EXCEEDED: the message names the ranks that are missing), or `calls` is cancelled.
  absl::StatusOr<ringd::cluster::v1::SubmitResponse> Gather(
      ringd::cluster::v1::GatherRequest request, CallGroup* calls);
  absl::StatusOr<std::vector<ringd::cluster::v1::Job>> List(bool all);
  absl::StatusOr<ringd::cluster::v1::Job> Describe(const std::string& job);
  absl::StatusOr<ringd::cluster::v1::Job> Cancel(const std::string& job, const std::string& reason);
  absl::StatusOr<ringd::cluster::v1::Job> Signal(const std::string& job, int signal);
  absl::StatusOr<std::vector<ringd::cluster::v1::NodeState>> Nodes();
  absl::StatusOr<ringd::cluster::v1::VersionResponse> Version();

  // Calls on_change with the job now and after each change, until it has ended or on_change returns
  // false.
  absl::Status Watch(const std::string& job, CallGroup* calls,
                     const std::function<bool(const ringd::cluster::v1::Job&)>& on_change);
  absl::Status Logs(ringd::cluster::v1::LogsRequest request, CallGroup* calls,
                    const std::function<bool(const ringd::cluster::v1::LogChunk&)>& on_chunk);
  // Keeps a foreground job alive until the stream breaks.
  absl::Status Hold(const std::string& job, CallGroup* calls);

  const std::string& address() const { return address_.address; }

 private:
  explicit ClusterClient(SchedulerAddress address);
  absl::Status CheckVersion();
  absl::Status Identify(ringd::cluster::v1::Identity* identity);
  absl::Status Explain(const grpc::Status& status) const;

  const SchedulerAddress address_;
  std::unique_ptr<ringd::cluster::v1::Cluster::StubInterface> stub_;
};

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_CLUSTER_CLIENT_H_
