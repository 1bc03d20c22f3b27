#include "client/cli/run/identity.h"

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/crypto/crypto.h"
#include "common/rpc/rpc.h"
#include "common/status/macros.h"
#include "proto/node.grpc.pb.h"

namespace ringd::cli {
namespace {

constexpr std::chrono::seconds kTimeout(5);
constexpr size_t kNonceBytes = 16;

absl::Status NoDaemon(const std::string& socket, const std::string& what_for) {
  return absl::UnavailableError(
      absl::StrCat(what_for, "this machine's ringd daemon, and none answers at ", socket,
                   ": start it (systemctl start ringd), or name its socket by daemon_socket in "
                   "ringd.toml or RINGD_DAEMON_SOCKET"));
}

// One daemon's service, for a few calls.
class Daemon {
 public:
  // FAILED_PRECONDITION: it is of another version.
  static absl::StatusOr<Daemon> Connect(const std::string& socket) {
    RINGD_ASSIGN_OR_RETURN(const auto channel, ringd::Connect(absl::StrCat("unix:", socket), {}));
    Daemon daemon;
    daemon.stub_ = ringd::node::v1::Node::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(daemon.deadline_);
    const grpc::Status status = daemon.stub_->GetInfo(&context, {}, &daemon.info_);
    if (!status.ok()) return FromGrpc(status);
    if (daemon.info_.version() == kVersion) return daemon;
    return absl::FailedPreconditionError(absl::StrCat(
        "the daemon at ", socket, " is ringd ", daemon.info_.version(), ", this is ringctl ",
        kVersion, ": install one version on both and restart the daemon"));
  }

  const std::string& node() const { return info_.node(); }

  absl::StatusOr<ringd::node::v1::SignIdentityResponse> Sign(const std::string& nonce) {
    grpc::ClientContext context;
    context.set_deadline(deadline_);
    ringd::node::v1::SignIdentityRequest request;
    request.set_nonce(nonce);
    ringd::node::v1::SignIdentityResponse response;
    const grpc::Status status = stub_->SignIdentity(&context, request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

 private:
  std::unique_ptr<ringd::node::v1::Node::Stub> stub_;
  std::chrono::system_clock::time_point deadline_ = std::chrono::system_clock::now() + kTimeout;
  ringd::node::v1::GetInfoResponse info_;
};

absl::StatusOr<ringd::node::v1::SignIdentityResponse> Sign(const std::string& daemon_socket,
                                                           const std::string& nonce) {
  RINGD_ASSIGN_OR_RETURN(Daemon daemon, Daemon::Connect(daemon_socket));
  return daemon.Sign(nonce);
}

}  // namespace

absl::StatusOr<std::string> FindNode(const std::string& daemon_socket) {
  absl::StatusOr<Daemon> daemon = Daemon::Connect(daemon_socket);
  if (absl::IsUnavailable(daemon.status())) return NoDaemon(daemon_socket, "init() looks for ");
  RINGD_RETURN_IF_ERROR(daemon.status());
  const auto response = daemon->Sign(RandomBytes(kNonceBytes));
  if (absl::IsPermissionDenied(response.status())) return response.status();
  return daemon->node();
}

absl::StatusOr<ringd::cluster::v1::Identity> SignIdentity(const std::string& daemon_socket) {
  ringd::cluster::v1::Identity identity;
  identity.set_nonce(RandomBytes(kNonceBytes));
  const auto response = Sign(daemon_socket, identity.nonce());
  if (absl::IsUnavailable(response.status())) {
    return NoDaemon(daemon_socket, "a scheduler on TCP knows users by ");
  }
  RINGD_RETURN_IF_ERROR(response.status());
  identity.set_user(response->user());
  identity.set_uid(response->uid());
  identity.set_gid(response->gid());
  identity.set_time_us(response->time_us());
  identity.set_node(response->node());
  identity.set_signature(response->signature());
  identity.set_certificate(response->certificate());
  return identity;
}

}  // namespace ringd::cli
