#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "common/rpc/tls.h"
#include "common/status/macros.h"

namespace ringd {
namespace {

constexpr int kKeepaliveMillis = 5000;
constexpr int kMaxReconnectMillis = 1000;
// What gRPC calls the minimum backoff bounds one attempt: a TLS handshake on a busy host takes a
// while.
constexpr int kConnectTimeoutMillis = 5000;

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMillis);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMillis);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return arguments;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::StatusOr<TlsContent> ReadTlsFiles(const TlsFiles& files) {
  TlsContent content;
  const auto read = [](const std::string& path, std::string* into) -> absl::Status {
    std::ifstream stream(path);
    std::stringstream text;
    if (!stream || !(text << stream.rdbuf()))
      return absl::InvalidArgumentError(absl::StrCat(path, ": can't read"));
    *into = text.str();
    return absl::OkStatus();
  };
  if (files.certificate.empty() || files.key.empty() || files.authority.empty()) {
    return absl::InvalidArgumentError(
        "tls_certificate, tls_key and tls_authority go together: give all three");
  }
  RINGD_RETURN_IF_ERROR(read(files.certificate, &content.certificate));
  RINGD_RETURN_IF_ERROR(read(files.key, &content.key));
  RINGD_RETURN_IF_ERROR(read(files.authority, &content.authority));
  return content;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& address,
                                                       const TlsFiles& tls,
                                                       const std::string& server_name) {
  grpc::ChannelArguments arguments = Arguments();
  if (absl::StartsWith(address, "unix:")) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  if (!absl::StrContains(address, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is not an address: host:port or unix:/path"));
  }
  if (tls.authority.empty()) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  grpc::SslCredentialsOptions options;
  if (tls.certificate.empty() &&
      tls.key.empty()) {  // Server TLS alone: ringctl proves who it is by its identity.
    TlsFiles authority_only{tls.authority, tls.authority, tls.authority};
    RINGD_ASSIGN_OR_RETURN(const TlsContent content, ReadTlsFiles(authority_only));
    options.pem_root_certs = content.authority;
  } else {
    RINGD_ASSIGN_OR_RETURN(const TlsContent content, ReadTlsFiles(tls));
    options = {content.authority, content.key, content.certificate};
  }
  if (!server_name.empty()) arguments.SetSslTargetNameOverride(server_name);
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

}  // namespace ringd
