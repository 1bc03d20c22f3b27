#include "daemon/server/node_service.h"

#include <pwd.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/crypto/crypto.h"
#include "common/log/log.h"
#include "common/status/macros.h"

namespace ringd::daemon {
namespace {

constexpr size_t kMinNonceBytes = 16;
constexpr size_t kMaxNonceBytes = 64;
constexpr size_t kPasswdBytes = 16384;

std::string UserName(uid_t uid) {
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> buffer(kPasswdBytes);
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    return absl::StrCat(uid);
  return found->pw_name;
}

}  // namespace

NodeService::NodeService(NodeServiceOptions options, const RpcServer* server, SessionTable* table,
                         WorkerObserver* observer, GetInfoFunction get_info)
    : options_(std::move(options)),
      server_(server),
      table_(table),
      observer_(observer),
      get_info_(std::move(get_info)) {}

grpc::Status NodeService::Attach(grpc::ServerContext* context,
                                 const node::v1::AttachRequest* request,
                                 node::v1::AttachResponse* response) {
  const absl::StatusOr<PeerCredentials> peer = server_->Peer(*context);
  if (!peer.ok()) return ToGrpc(peer.status());
  absl::StatusOr<node::v1::AttachResponse> attached = table_->AttachProgram(*peer, *request);
  if (!attached.ok()) return ToGrpc(attached.status());
  *response = *std::move(attached);
  return grpc::Status::OK;
}

grpc::Status NodeService::Supervise(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<node::v1::WorkerOrder, node::v1::WorkerReport>* stream) {
  const absl::StatusOr<PeerCredentials> peer = server_->Peer(*context);
  if (!peer.ok()) return ToGrpc(peer.status());
  node::v1::WorkerReport report;
  if (!stream->Read(&report) || !report.has_attach()) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                        "a Supervise stream begins with `attach`");
  }
  const std::string job = report.attach().job();
  const int rank = report.attach().rank();
  absl::StatusOr<SessionTable::Attachment> attachment =
      table_->AttachWorker(*peer, report.attach(), [context] { context->TryCancel(); });
  if (!attachment.ok()) {
    GetLogger("session")->warn("worker refused job={} rank={} uid={} pid={} reason={}", job, rank,
                               peer->uid, peer->pid, std::string(attachment.status().message()));
    return ToGrpc(attachment.status());
  }
  WorkerLine& line = *attachment->line;
  node::v1::WorkerOrder attached;
  *attached.mutable_attached() = std::move(attachment->response);
  stream->Write(attached);
  observer_->OnWorkerAttached(job, rank, line.id(), peer->pid);
  std::thread writer([&line, stream] {
    while (std::optional<node::v1::WorkerOrder> order = line.Pop()) {
      if (!stream->Write(*order)) break;
    }
  });
  while (stream->Read(&report)) {
    observer_->OnWorkerReport(job, rank, std::move(report));
    report = node::v1::WorkerReport();
  }
  line.Close();
  writer.join();
  table_->Detach(job, rank, line);
  observer_->OnWorkerDetached(job, rank, line.id());
  return grpc::Status::OK;
}

absl::StatusOr<node::v1::SignIdentityResponse> NodeService::Sign(const PeerCredentials& peer,
                                                                 const std::string& nonce) const {
  if (options_.shared && (peer.uid == 0 || peer.uid < options_.min_uid)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "uid ", peer.uid, " may not submit jobs: a shared daemon serves users from min_uid ",
        options_.min_uid, " on"));
  }
  if (options_.key_pem.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", options_.node,
                     " has no key: set tls_key, tls_certificate and tls_authority "
                     "(ringctl certs init makes them)"));
  }
  if (nonce.size() < kMinNonceBytes || nonce.size() > kMaxNonceBytes) {
    return absl::InvalidArgumentError("a nonce has 16 to 64 bytes");
  }
  node::v1::SignIdentityResponse response;
  response.set_user(UserName(peer.uid));
  response.set_uid(peer.uid);
  response.set_gid(peer.gid);
  response.set_time_us(absl::ToUnixMicros(absl::Now()));
  response.set_node(options_.node);
  response.set_certificate(options_.certificate_pem);
  const std::string message = absl::StrJoin(
      {std::string("ringd-identity"), response.user(), absl::StrCat(peer.uid),
       absl::StrCat(peer.gid), HexEncode(nonce), absl::StrCat(response.time_us()), options_.node},
      "|");
  RINGD_ASSIGN_OR_RETURN(*response.mutable_signature(), ringd::Sign(options_.key_pem, message));
  return response;
}

grpc::Status NodeService::SignIdentity(grpc::ServerContext* context,
                                       const node::v1::SignIdentityRequest* request,
                                       node::v1::SignIdentityResponse* response) {
  const absl::StatusOr<PeerCredentials> peer = server_->Peer(*context);
  if (!peer.ok()) return ToGrpc(peer.status());
  absl::StatusOr<node::v1::SignIdentityResponse> signed_identity = Sign(*peer, request->nonce());
  if (!signed_identity.ok()) return ToGrpc(signed_identity.status());
  *response = *std::move(signed_identity);
  return grpc::Status::OK;
}

grpc::Status NodeService::GetInfo(grpc::ServerContext*, const node::v1::GetInfoRequest*,
                                  node::v1::GetInfoResponse* response) {
  *response = get_info_();
  return grpc::Status::OK;
}

}  // namespace ringd::daemon
