#include "scheduler/server/service.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/version.h"
#include "proto/cluster.grpc.pb.h"

namespace ringd::scheduler {

namespace pb = ringd::cluster::v1;

namespace {

class ClusterService : public pb::Cluster::CallbackService {
 public:
  ClusterService(Core* core, Loop* loop, Identities* identities, const RpcServer* rpc_server);

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context,
                                   const pb::SubmitRequest* request,
                                   pb::SubmitResponse* response) override;
  grpc::ServerUnaryReactor* Gather(grpc::CallbackServerContext* context,
                                   const pb::GatherRequest* request,
                                   pb::SubmitResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const pb::ListRequest* request,
                                 pb::ListResponse* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const pb::JobRequest* request, pb::Job* response) override;
  grpc::ServerWriteReactor<pb::Job>* Watch(grpc::CallbackServerContext* context,
                                           const pb::JobRequest* request) override;
  grpc::ServerWriteReactor<pb::LogChunk>* Logs(grpc::CallbackServerContext* context,
                                               const pb::LogsRequest* request) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const pb::CancelRequest* request,
                                   pb::JobResponse* response) override;
  grpc::ServerUnaryReactor* Signal(grpc::CallbackServerContext* context,
                                   const pb::SignalRequest* request,
                                   pb::JobResponse* response) override;
  grpc::ServerUnaryReactor* Nodes(grpc::CallbackServerContext* context,
                                  const pb::NodesRequest* request,
                                  pb::NodesResponse* response) override;
  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const pb::VersionRequest* request,
                                       pb::VersionResponse* response) override;
  grpc::ServerReadReactor<pb::HoldRequest>* Hold(grpc::CallbackServerContext* context,
                                                 pb::HoldResponse* response) override;
  grpc::ServerBidiReactor<pb::NodeReport, pb::NodeOrder>* Join(
      grpc::CallbackServerContext* context) override;

 private:
  PeerInfo Peer(const grpc::CallbackServerContext& context) const;
  absl::StatusOr<Caller> Identify(const grpc::CallbackServerContext& context,
                                  const pb::Identity& identity);
  void FillSubmitted(const Reply& reply, pb::SubmitResponse* response) const;
  Core::ReplyCallback AnswerJob(grpc::ServerUnaryReactor* reactor, pb::JobResponse* response);

  Core* const core_;
  Loop* const loop_;
  Identities* const identities_;
  const RpcServer* const rpc_server_;
};

ClusterService::ClusterService(Core* core, Loop* loop, Identities* identities,
                               const RpcServer* rpc_server)
    : core_(core), loop_(loop), identities_(identities), rpc_server_(rpc_server) {}

PeerInfo ClusterService::Peer(const grpc::CallbackServerContext& context) const {
  PeerInfo peer;
  if (auto credentials = rpc_server_->Peer(context); credentials.ok()) {
    peer.unix_socket = true;
    peer.credentials = *credentials;
  } else {
    peer.uris = PeerUris(context);
  }
  return peer;
}

absl::StatusOr<Caller> ClusterService::Identify(const grpc::CallbackServerContext& context,
                                                const pb::Identity& identity) {
  return identities_->Identify(Peer(context), identity, absl::Now());
}

void ClusterService::FillSubmitted(const Reply& reply, pb::SubmitResponse* response) const {
  const auto* record = core_->machine().FindRecord(reply.job);
  if (record == nullptr) return;
  response->set_job(reply.job);
  response->set_reason(record->job().reason());
}

grpc::ServerUnaryReactor* ClusterService::Submit(grpc::CallbackServerContext* context,
                                                 const pb::SubmitRequest* request,
                                                 pb::SubmitResponse* response) {
  auto* reactor = context->DefaultReactor();
  absl::StatusOr<Caller> caller = Identify(*context, request->identity());
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  loop_->Post([this, reactor, request, response, caller = *std::move(caller)] {
    core_->Call(SubmitEvent{0, caller, request->spec(), request->request_id()},
                [this, reactor, response](const Reply& reply) {
                  FillSubmitted(reply, response);
                  reactor->Finish(ToGrpc(reply.status));
                });
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::Gather(grpc::CallbackServerContext* context,
                                                 const pb::GatherRequest* request,
                                                 pb::SubmitResponse* response) {
  auto* call = new WaitingCall(loop_);  // Deletes itself.
  absl::StatusOr<Caller> caller = Identify(*context, request->identity());
  loop_->Post([this, call, request, response, caller = std::move(caller)] {
    if (!caller.ok()) return call->End(ToGrpc(caller.status()));
    const PartId part =
        core_->Gather(*caller, *request, [this, call, response](const Reply& reply) {
          FillSubmitted(reply, response);
          call->End(ToGrpc(reply.status));
        });
    call->on_cancel = [this, part] { core_->Leave(part); };
  });
  return call;
}

grpc::ServerUnaryReactor* ClusterService::List(grpc::CallbackServerContext* context,
                                               const pb::ListRequest* request,
                                               pb::ListResponse* response) {
  auto* reactor = context->DefaultReactor();
  loop_->Post([this, reactor, request, response] {
    for (pb::Job& job : core_->machine().ListJobs(request->all()))
      *response->add_jobs() = std::move(job);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::Describe(grpc::CallbackServerContext* context,
                                                   const pb::JobRequest* request,
                                                   pb::Job* response) {
  auto* reactor = context->DefaultReactor();
  loop_->Post([this, reactor, request, response] {
    const absl::StatusOr<std::string> id = core_->machine().Resolve(request->job());
    if (id.ok()) *response = ShownJob(*core_->machine().FindRecord(*id));
    reactor->Finish(ToGrpc(id.status()));
  });
  return reactor;
}

grpc::ServerWriteReactor<pb::Job>* ClusterService::Watch(grpc::CallbackServerContext*,
                                                         const pb::JobRequest* request) {
  auto* writer = new StreamWriter<pb::Job>(loop_);  // Deletes itself.
  loop_->Post([this, writer, job = request->job()] { core_->Watch(writer, job); });
  return writer;
}

grpc::ServerWriteReactor<pb::LogChunk>* ClusterService::Logs(grpc::CallbackServerContext* context,
                                                             const pb::LogsRequest* request) {
  auto* writer = new StreamWriter<pb::LogChunk>(loop_);  // Deletes itself.
  absl::StatusOr<Caller> caller = Identify(*context, request->identity());
  loop_->Post([this, writer, caller = std::move(caller), request = *request] {
    if (!caller.ok()) return writer->End(ToGrpc(caller.status()));
    core_->Logs(writer, *caller, request);
  });
  return writer;
}

Core::ReplyCallback ClusterService::AnswerJob(grpc::ServerUnaryReactor* reactor,
                                              pb::JobResponse* response) {
  return [this, reactor, response](const Reply& reply) {
    if (const auto* record = core_->machine().FindRecord(reply.job); record != nullptr) {
      *response->mutable_job() = ShownJob(*record);
    }
    reactor->Finish(ToGrpc(reply.status));
  };
}

grpc::ServerUnaryReactor* ClusterService::Cancel(grpc::CallbackServerContext* context,
                                                 const pb::CancelRequest* request,
                                                 pb::JobResponse* response) {
  auto* reactor = context->DefaultReactor();
  absl::StatusOr<Caller> caller = Identify(*context, request->identity());
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  loop_->Post([this, reactor, request, response, caller = *std::move(caller)] {
    core_->Call(CancelEvent{0, caller, request->job(), request->reason()},
                AnswerJob(reactor, response));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::Signal(grpc::CallbackServerContext* context,
                                                 const pb::SignalRequest* request,
                                                 pb::JobResponse* response) {
  auto* reactor = context->DefaultReactor();
  absl::StatusOr<Caller> caller = Identify(*context, request->identity());
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  loop_->Post([this, reactor, request, response, caller = *std::move(caller)] {
    core_->Call(SignalEvent{0, caller, request->job(), request->signal()},
                AnswerJob(reactor, response));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::Nodes(grpc::CallbackServerContext* context,
                                                const pb::NodesRequest*,
                                                pb::NodesResponse* response) {
  auto* reactor = context->DefaultReactor();
  loop_->Post([this, reactor, response] {
    for (pb::NodeState& node : core_->machine().ListNodes())
      *response->add_nodes() = std::move(node);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::GetVersion(grpc::CallbackServerContext* context,
                                                     const pb::VersionRequest*,
                                                     pb::VersionResponse* response) {
  auto* reactor = context->DefaultReactor();
  response->set_version(kVersion);
  response->set_term(core_->machine().term());
  response->set_pid(getpid());
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerReadReactor<pb::HoldRequest>* ClusterService::Hold(grpc::CallbackServerContext* context,
                                                               pb::HoldResponse*) {
  auto* stream = new HoldStream(loop_);  // Deletes itself.
  loop_->Post([this, stream, peer = Peer(*context)] {
    core_->Hold(stream, peer);
    stream->Begin();
  });
  return stream;
}

grpc::ServerBidiReactor<pb::NodeReport, pb::NodeOrder>* ClusterService::Join(
    grpc::CallbackServerContext* context) {
  auto* stream = new NodeStream(loop_);  // Deletes itself.
  loop_->Post([this, stream, peer = Peer(*context)] {
    core_->Join(stream, peer);
    stream->Begin();
  });
  return stream;
}

}  // namespace

std::unique_ptr<grpc::Service> CreateClusterService(Core* core, Loop* loop, Identities* identities,
                                                    const RpcServer* rpc_server) {
  return std::make_unique<ClusterService>(core, loop, identities, rpc_server);
}

}  // namespace ringd::scheduler
