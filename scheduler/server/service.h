// The Cluster service: requests to the state thread, answers back, nothing else.
#ifndef RINGD_SCHEDULER_SERVER_SERVICE_H_
#define RINGD_SCHEDULER_SERVER_SERVICE_H_

#include <memory>

#include "common/rpc/rpc.h"
#include "grpcpp/grpcpp.h"
#include "scheduler/server/core.h"
#include "scheduler/server/identity.h"
#include "scheduler/server/loop.h"

namespace ringd::scheduler {

// gRPC's callback API: no thread waits for anybody, however many nodes and clients are connected.
//
// Ownership: all given outlive the service, and the service outlives the RpcServer's calls.
// Thread-safe.
std::unique_ptr<grpc::Service> CreateClusterService(Core* core, Loop* loop, Identities* identities,
                                                    const RpcServer* rpc_server);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_SERVER_SERVICE_H_
