#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "common/rpc/tls.h"
#include "common/status/macros.h"
#include "common/sync/mutex.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_posix.h"

namespace ringd {
namespace {

constexpr int kMinPingMillis = 1000;

struct UnixListener {
  std::string path;
  UniqueFd fd;
  RpcServer::Admit admit;
};

bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

class RpcServerImpl : public RpcServer {
 public:
  RpcServerImpl() {
    builder_.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder_.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                                kMinPingMillis);
    builder_.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder_.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder_.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  }
  ~RpcServerImpl() override { Shutdown(absl::ZeroDuration()); }

  void AddService(grpc::Service* service) override { builder_.RegisterService(service); }

  absl::Status ListenUnixSocket(const std::string& path, mode_t mode, Admit admit) override {
    UniqueFd fd;
    const int rc = ListenUnix(path, SOCK_STREAM, mode, &fd);
    if (rc == -EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(
          path, ": another process listens on this socket; stop it or choose another path"));
    }
    if (rc < 0)
      return absl::UnavailableError(absl::StrCat("can't listen on ", path, ": ", strerror(-rc)));
    fcntl(fd.get(), F_SETFL, O_NONBLOCK);
    listeners_.push_back({path, std::move(fd), std::move(admit)});
    return absl::OkStatus();
  }

  absl::Status ListenTcp(const std::string& address, const TlsFiles& tls, bool insecure,
                         int* port) override {
    std::shared_ptr<grpc::ServerCredentials> credentials;
    const bool has_tls = !tls.certificate.empty() || !tls.key.empty() || !tls.authority.empty();
    if (has_tls) {
      RINGD_ASSIGN_OR_RETURN(const TlsContent content, ReadTlsFiles(tls));
      // Daemons show a certificate; ringctl has none and signs its requests through its node's
      // daemon.
      grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
      options.pem_root_certs = content.authority;
      options.pem_key_cert_pairs.push_back({content.key, content.certificate});
      credentials = grpc::SslServerCredentials(options);
    } else if (IsLoopback(address) || insecure) {
      if (!IsLoopback(address))
        GetLogger("rpc")->warn("listening without TLS address={} (insecure was asked for)",
                               address);
      credentials = grpc::InsecureServerCredentials();
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("won't listen on ", address,
                       " without TLS: give tls_certificate, tls_key and tls_authority, a "
                       "loopback address, or insecure"));
    }
    ports_.push_back({address, 0, port});
    return AddPort(address, credentials);
  }

  absl::Status Start() override {
    server_ = builder_.BuildAndStart();
    if (server_ == nullptr) {
      const std::string where = ports_.empty() ? "no address" : ports_.front().address;
      return absl::AlreadyExistsError(
          absl::StrCat("can't listen on ", where, ": in use, or not an address of this host"));
    }
    for (const auto& [address, chosen, wanted] : ports_) {
      if (wanted != nullptr) *wanted = *chosen;
    }
    wake_.reset(eventfd(0, EFD_CLOEXEC));
    acceptor_ = std::thread([this] { AcceptLoop(); });
    return absl::OkStatus();
  }

  void Shutdown(absl::Duration grace) override {
    if (acceptor_.joinable()) {
      stopping_ = true;
      eventfd_write(wake_.get(), 1);
      acceptor_.join();
    }
    for (const UnixListener& listener : listeners_) unlink(listener.path.c_str());
    listeners_.clear();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
    server_->Wait();
    server_.reset();
  }

  absl::StatusOr<PeerCredentials> Peer(const grpc::ServerContextBase& context) const override {
    int fd = -1;
    const std::string peer = context.peer();
    if (!absl::StartsWith(peer, "fd:") || !absl::SimpleAtoi(peer.substr(3), &fd)) {
      return absl::NotFoundError(absl::StrCat("not a Unix socket: ", peer));
    }
    MutexLock lock(&mu_);
    const auto found = peers_.find(fd);
    if (found == peers_.end())
      return absl::NotFoundError(absl::StrCat("unknown connection ", peer));
    return found->second;
  }

 private:
  struct Port {
    std::string address;
    std::shared_ptr<int> chosen;
    int* wanted;
  };

  absl::Status AddPort(const std::string& address,
                       std::shared_ptr<grpc::ServerCredentials> credentials) {
    ports_.back().chosen = std::make_shared<int>(0);
    builder_.AddListeningPort(address, std::move(credentials), ports_.back().chosen.get());
    return absl::OkStatus();
  }

  void AcceptLoop() {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    for (const UnixListener& listener : listeners_)
      entries.push_back({listener.fd.get(), POLLIN, 0});
    while (!stopping_) {
      if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
      for (size_t i = 1; i < entries.size(); ++i) {
        if ((entries[i].revents & POLLIN) != 0) AcceptOn(listeners_[i - 1]);
      }
    }
  }

  void AcceptOn(const UnixListener& listener) {
    while (true) {
      UniqueFd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.valid()) {
        if (errno == EINTR) continue;
        if (errno == EMFILE || errno == ENFILE)
          absl::SleepFor(absl::Milliseconds(50));  // Not a busy loop until one closes.
        return;
      }
      PeerCredentials peer;
      if (GetPeerCredentials(fd.get(), &peer) < 0 || (listener.admit && !listener.admit(peer))) {
        GetLogger("rpc")->warn("connection refused socket={} uid={} pid={}", listener.path,
                               peer.uid, peer.pid);
        continue;
      }
      {
        MutexLock lock(&mu_);
        peers_[fd.get()] =
            peer;  // A closed connection's number is taken by a later one: bounded by the fd limit.
      }
      grpc::AddInsecureChannelFromFd(server_.get(), fd.release());
    }
  }

  grpc::ServerBuilder builder_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<UnixListener> listeners_;
  std::vector<Port> ports_;
  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::thread acceptor_;

  mutable Mutex mu_;
  std::map<int, PeerCredentials> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<RpcServer> RpcServer::Create() { return std::make_unique<RpcServerImpl>(); }

std::vector<std::string> PeerUris(const grpc::ServerContextBase& context) {
  std::vector<std::string> uris;
  const auto auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return uris;
  for (const grpc::string_ref& name : auth->GetPeerIdentity()) {
    const std::string text(name.data(), name.size());
    if (absl::StrContains(text, "://")) uris.push_back(text);
  }
  return uris;
}

}  // namespace ringd
