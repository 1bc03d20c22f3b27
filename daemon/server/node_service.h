// The Node service on the daemon's Unix sockets: gRPC's edge, no decisions.
#ifndef RINGD_DAEMON_SERVER_NODE_SERVICE_H_
#define RINGD_DAEMON_SERVER_NODE_SERVICE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/rpc.h"
#include "daemon/session/session_table.h"
#include "daemon/session/worker_observer.h"
#include "proto/node.grpc.pb.h"

namespace ringd::daemon {

struct NodeServiceOptions {
  std::string node;
  bool shared = false;
  uint32_t min_uid = 1000;
  std::string key_pem;  // The node's TLS key and certificate; empty: it signs nothing.
  std::string certificate_pem;
};

// Ownership: server, table and observer outlive it.
// Thread-safe.
class NodeService : public node::v1::Node::Service {
 public:
  using GetInfoFunction = std::function<node::v1::GetInfoResponse()>;

  NodeService(NodeServiceOptions options, const RpcServer* server, SessionTable* table,
              WorkerObserver* observer, GetInfoFunction get_info);

  grpc::Status Attach(grpc::ServerContext* context, const node::v1::AttachRequest* request,
                      node::v1::AttachResponse* response) override;
  grpc::Status Supervise(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<node::v1::WorkerOrder, node::v1::WorkerReport>* stream) override;
  grpc::Status SignIdentity(grpc::ServerContext* context,
                            const node::v1::SignIdentityRequest* request,
                            node::v1::SignIdentityResponse* response) override;
  grpc::Status GetInfo(grpc::ServerContext* context, const node::v1::GetInfoRequest* request,
                       node::v1::GetInfoResponse* response) override;

 private:
  absl::StatusOr<node::v1::SignIdentityResponse> Sign(const PeerCredentials& peer,
                                                      const std::string& nonce) const;

  const NodeServiceOptions options_;
  const RpcServer* const server_;
  SessionTable* const table_;
  WorkerObserver* const observer_;
  const GetInfoFunction get_info_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_SERVER_NODE_SERVICE_H_
