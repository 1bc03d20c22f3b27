// gRPC at its edges: status mapping, credentials, and Unix sockets that are accepted by ourselves
// so that the peer's uid and pid are known.
#ifndef RINGD_COMMON_RPC_RPC_H_
#define RINGD_COMMON_RPC_RPC_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/unix_socket.h"
#include "grpcpp/grpcpp.h"

namespace ringd {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

struct TlsFiles {
  std::string certificate;  // Paths, PEM. All three or none.
  std::string key;
  std::string authority;
};

// "unix:/path" or "host:port". With `tls`: mTLS, the server's certificate must be from the
// authority and carry host, or `server_name` if given. UNAVAILABLE is what calls say while nobody
// listens.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& address,
                                                       const TlsFiles& tls,
                                                       const std::string& server_name = "");

// A gRPC server on any number of Unix sockets and TCP ports.
//
// Life: Create, Listen* (before Start), Start, Shutdown. Services outlive it.
// Thread-safe after Start.
class RpcServer {
 public:
  // Decides by the peer's credentials whether a connection on a Unix socket is taken; a refused one
  // is closed and logged.
  using Admit = std::function<bool(const PeerCredentials&)>;

  static std::unique_ptr<RpcServer> Create();
  virtual ~RpcServer() = default;

  virtual void AddService(grpc::Service* service) = 0;
  // ALREADY_EXISTS: another process accepts there (the message says which path and what to do).
  virtual absl::Status ListenUnixSocket(const std::string& path, mode_t mode, Admit admit) = 0;
  // address "host:port", port 0: chosen; *port: the real one. Without TLS only on loopback unless
  // `insecure`.
  virtual absl::Status ListenTcp(const std::string& address, const TlsFiles& tls, bool insecure,
                                 int* port) = 0;
  virtual absl::Status Start() = 0;
  // Ends calls in flight after `grace`, closes connections, removes socket files.
  virtual void Shutdown(absl::Duration grace) = 0;

  // Credentials behind a call that came over a Unix socket; NOT_FOUND for TCP ones.
  // Callable from handlers of the synchronous and the callback API alike.
  virtual absl::StatusOr<PeerCredentials> Peer(const grpc::ServerContextBase& context) const = 0;
};

// URI names of the peer's certificate ("ringd://node/a"); empty without TLS.
std::vector<std::string> PeerUris(const grpc::ServerContextBase& context);

}  // namespace ringd

#endif  // RINGD_COMMON_RPC_RPC_H_
