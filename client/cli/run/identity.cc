#include "client/cli/run/identity.h"

#include <chrono>

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

absl::Status Explain(const std::string& socket, const grpc::Status& status) {
  const absl::Status error = FromGrpc(status);
  if (error.code() != absl::StatusCode::kUnavailable) return error;
  return absl::UnavailableError(absl::StrCat(
      "a scheduler on TCP knows users by this machine's ringd daemon, and none answers at ", socket,
      ": start it (systemctl start ringd), or name its socket by daemon_socket in ringd.toml"));
}

}  // namespace

absl::StatusOr<ringd::cluster::v1::Identity> SignIdentity(const std::string& daemon_socket) {
  RINGD_ASSIGN_OR_RETURN(const auto channel, Connect(absl::StrCat("unix:", daemon_socket), {}));
  const auto stub = ringd::node::v1::Node::NewStub(channel);
  const auto deadline = std::chrono::system_clock::now() + kTimeout;

  grpc::ClientContext info_context;
  info_context.set_deadline(deadline);
  ringd::node::v1::GetInfoResponse info;
  grpc::Status status = stub->GetInfo(&info_context, {}, &info);
  if (!status.ok()) return Explain(daemon_socket, status);
  if (info.version() != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the daemon at ", daemon_socket, " is ringd ", info.version(), ", this is ringctl ",
        kVersion, ": install one version on both and restart the daemon"));
  }

  grpc::ClientContext context;
  context.set_deadline(deadline);
  ringd::node::v1::SignIdentityRequest request;
  request.set_nonce(RandomBytes(kNonceBytes));
  ringd::node::v1::SignIdentityResponse response;
  status = stub->SignIdentity(&context, request, &response);
  if (!status.ok()) return Explain(daemon_socket, status);

  ringd::cluster::v1::Identity identity;
  identity.set_user(response.user());
  identity.set_uid(response.uid());
  identity.set_gid(response.gid());
  identity.set_time_us(response.time_us());
  identity.set_node(response.node());
  identity.set_nonce(request.nonce());
  identity.set_signature(response.signature());
  identity.set_certificate(response.certificate());
  return identity;
}

}  // namespace ringd::cli
