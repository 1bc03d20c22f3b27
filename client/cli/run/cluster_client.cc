#include "client/cli/run/cluster_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/run/identity.h"
#include "common/base/version.h"
#include "common/crypto/crypto.h"
#include "common/status/macros.h"

namespace ringd::cli {

using namespace ringd::cluster::v1;  // NOLINT: one proto package's names, in a .cc.

// The context of one streaming call, in its group while it lasts.
class CallScope {
 public:
  explicit CallScope(CallGroup* group) : group_(group) {
    MutexLock lock(&group_->mu_);
    group_->contexts_.insert(&context_);
    if (group_->cancelled_) context_.TryCancel();
  }
  ~CallScope() {
    MutexLock lock(&group_->mu_);
    group_->contexts_.erase(&context_);
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  CallGroup* const group_;
  grpc::ClientContext context_;
};

void CallGroup::Cancel() {
  MutexLock lock(&mu_);
  cancelled_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
}

bool CallGroup::cancelled() const {
  MutexLock lock(&mu_);
  return cancelled_;
}

namespace {

constexpr std::chrono::seconds kCallTimeout(10);
// A scheduler that listens answers at once; one behind a busy network within this.
constexpr std::chrono::seconds kFirstCallTimeout(5);
constexpr int kSubmitAttempts = 3;

void SetTimeout(grpc::ClientContext* context, std::chrono::seconds timeout) {
  context->set_deadline(std::chrono::system_clock::now() + timeout);
}

}  // namespace

ClusterClient::ClusterClient(SchedulerAddress address) : address_(std::move(address)) {}

absl::StatusOr<std::unique_ptr<ClusterClient>> ClusterClient::Connect(
    const SchedulerAddress& address) {
  auto client = std::unique_ptr<ClusterClient>(new ClusterClient(address));
  RINGD_ASSIGN_OR_RETURN(const auto channel,
                         ringd::Connect(address.address, TlsFiles{.authority = address.authority},
                                        address.server_name));
  client->stub_ = Cluster::NewStub(channel);
  RINGD_RETURN_IF_ERROR(client->CheckVersion());
  return client;
}

absl::Status ClusterClient::Explain(const grpc::Status& status) const {
  const absl::Status error = FromGrpc(status);
  if (error.code() == absl::StatusCode::kUnavailable) {
    const bool plain_tcp =
        !absl::StartsWith(address_.address, "unix:") && address_.authority.empty();
    return absl::UnavailableError(absl::StrCat(
        "no scheduler answers at ", address_.address, " (", error.message(),
        "): start it (systemctl start ringd-scheduler; a cluster on one machine: ringctl local "
        "up), "
        "or name another by --scheduler or RINGD_SCHEDULER",
        plain_tcp ? "; if it uses TLS, name its authority by tls_authority in ringd.toml" : ""));
  }
  if (error.code() == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrCat("the scheduler at ", address_.address, " gave no answer in time; try again"));
  }
  return error;
}

absl::Status ClusterClient::CheckVersion() {
  grpc::ClientContext context;
  SetTimeout(&context, kFirstCallTimeout);
  VersionResponse version;
  const grpc::Status status = stub_->GetVersion(&context, {}, &version);
  if (!status.ok()) return Explain(status);
  if (version.version() == kVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the scheduler at ", address_.address, " is version ", version.version(),
                   ", this is ringctl ", kVersion, ": install one version on both"));
}

absl::Status ClusterClient::Identify(Identity* identity) {
  if (absl::StartsWith(address_.address, "unix:")) return absl::OkStatus();
  RINGD_ASSIGN_OR_RETURN(*identity, SignIdentity(address_.daemon_socket));
  return absl::OkStatus();
}

absl::StatusOr<SubmitResponse> ClusterClient::Submit(const JobSpec& spec) {
  SubmitRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(HexEncode(RandomBytes(16)));
  request.set_version(kVersion);
  SubmitResponse response;
  grpc::Status status;
  for (int attempt = 0; attempt < kSubmitAttempts; ++attempt) {  // The request's id makes it safe.
    RINGD_RETURN_IF_ERROR(Identify(request.mutable_identity()));
    grpc::ClientContext context;
    SetTimeout(&context, kCallTimeout);
    status = stub_->Submit(&context, request, &response);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
  }
  if (!status.ok()) return Explain(status);
  return response;
}

absl::StatusOr<SubmitResponse> ClusterClient::Gather(GatherRequest request, CallGroup* calls) {
  RINGD_ASSIGN_OR_RETURN(*request.mutable_node(), FindNode(address_.daemon_socket));
  RINGD_RETURN_IF_ERROR(Identify(request.mutable_identity()));
  CallScope scope(calls);
  SubmitResponse response;
  const grpc::Status status = stub_->Gather(scope.context(), request, &response);
  if (status.ok()) return response;
  // Its own words: who is missing.
  return status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ? FromGrpc(status)
                                                                    : Explain(status);
}

absl::StatusOr<std::vector<Job>> ClusterClient::List(bool all) {
  grpc::ClientContext context;
  SetTimeout(&context, kCallTimeout);
  ListRequest request;
  request.set_all(all);
  ListResponse response;
  const grpc::Status status = stub_->List(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return std::vector<Job>(response.jobs().begin(), response.jobs().end());
}

absl::StatusOr<Job> ClusterClient::Describe(const std::string& job) {
  grpc::ClientContext context;
  SetTimeout(&context, kCallTimeout);
  JobRequest request;
  request.set_job(job);
  Job response;
  const grpc::Status status = stub_->Describe(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

absl::StatusOr<Job> ClusterClient::Cancel(const std::string& job, const std::string& reason) {
  grpc::ClientContext context;
  SetTimeout(&context, kCallTimeout);
  CancelRequest request;
  request.set_job(job);
  request.set_reason(reason);
  RINGD_RETURN_IF_ERROR(Identify(request.mutable_identity()));
  JobResponse response;
  const grpc::Status status = stub_->Cancel(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return response.job();
}

absl::StatusOr<Job> ClusterClient::Signal(const std::string& job, int signal) {
  grpc::ClientContext context;
  SetTimeout(&context, kCallTimeout);
  SignalRequest request;
  request.set_job(job);
  request.set_signal(signal);
  RINGD_RETURN_IF_ERROR(Identify(request.mutable_identity()));
  JobResponse response;
  const grpc::Status status = stub_->Signal(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return response.job();
}

absl::StatusOr<std::vector<NodeState>> ClusterClient::Nodes() {
  grpc::ClientContext context;
  SetTimeout(&context, kCallTimeout);
  NodesResponse response;
  const grpc::Status status = stub_->Nodes(&context, {}, &response);
  if (!status.ok()) return Explain(status);
  return std::vector<NodeState>(response.nodes().begin(), response.nodes().end());
}

absl::StatusOr<VersionResponse> ClusterClient::Version() {
  grpc::ClientContext context;
  SetTimeout(&context, kCallTimeout);
  VersionResponse response;
  const grpc::Status status = stub_->GetVersion(&context, {}, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

absl::Status ClusterClient::Watch(const std::string& job, CallGroup* calls,
                                  const std::function<bool(const Job&)>& on_change) {
  CallScope scope(calls);
  JobRequest request;
  request.set_job(job);
  const auto stream = stub_->Watch(scope.context(), request);
  Job change;
  while (stream->Read(&change)) {
    if (on_change(change)) continue;
    scope.context()->TryCancel();
    (void)stream->Finish();
    return absl::OkStatus();
  }
  const grpc::Status status = stream->Finish();
  return status.ok() ? absl::OkStatus() : Explain(status);
}

absl::Status ClusterClient::Logs(LogsRequest request, CallGroup* calls,
                                 const std::function<bool(const LogChunk&)>& on_chunk) {
  RINGD_RETURN_IF_ERROR(Identify(request.mutable_identity()));
  CallScope scope(calls);
  const auto stream = stub_->Logs(scope.context(), request);
  LogChunk chunk;
  while (stream->Read(&chunk)) {
    if (on_chunk(chunk)) continue;
    scope.context()->TryCancel();
    (void)stream->Finish();
    return absl::OkStatus();
  }
  const grpc::Status status = stream->Finish();
  return status.ok() ? absl::OkStatus() : Explain(status);
}

absl::Status ClusterClient::Hold(const std::string& job, CallGroup* calls) {
  HoldRequest request;
  request.set_job(job);
  RINGD_RETURN_IF_ERROR(Identify(request.mutable_identity()));
  CallScope scope(calls);
  HoldResponse response;
  const auto stream = stub_->Hold(scope.context(), &response);
  stream->Write(request);
  const grpc::Status status = stream->Finish();
  return status.ok() ? absl::OkStatus() : Explain(status);
}

}  // namespace ringd::cli
