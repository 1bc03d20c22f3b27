// TCP sockets for the data path: addresses, options, and how to part with one.
#ifndef RINGD_DAEMON_TRANSPORT_TCP_H_
#define RINGD_DAEMON_TRANSPORT_TCP_H_

#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {

struct HostPort {
  std::string host;  // Without the brackets of "[::1]:80".
  int port = 0;
};
// "host:port" or "[v6]:port".  INVALID_ARGUMENT: anything else.
absl::StatusOr<HostPort> ParseHostPort(const std::string& address);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// A look-up of "host:port" under way. Numeric hosts are done at once; names are looked up by a
// thread of their own, since the resolver blocks. `result` is set once `done` (acquire) is true.
struct Resolution {
  std::atomic<bool> done{false};
  absl::StatusOr<std::vector<SocketAddress>> result = absl::UnknownError("unresolved");
};
std::shared_ptr<Resolution> StartResolution(const std::string& address);

// Blocks until the name is resolved. A non-blocking listening socket with SO_REUSEADDR.
// INVALID_ARGUMENT: not "host:port"; UNAVAILABLE: can't resolve or bind (names address and cause).
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address);
// Port that the socket is bound to; 0 if none.
int LocalPort(int fd);
// "127.0.0.1:4000" of the other end, for logs; "?" where there is none.
std::string PeerName(int fd);

// A non-blocking socket whose connect has begun; writable when it is over (SocketError tells how).
absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address);
// errno of a finished connect, 0 if it succeeded.
int SocketError(int fd);
// Dialling a free port of this host can, by chance, meet one's own socket.
bool IsConnectedToItself(int fd);

// TCP_NODELAY, keepalive probes each second, and congestion control by cubic where the host allows
// it. No TCP_USER_TIMEOUT: it also cuts a live peer off whose window stays closed; PeerSilence does
// the watching.
void ConfigureDataSocket(int fd);

// How long the peer's kernel has sent no packet at all, acknowledgements included; zero if unknown.
absl::Duration PeerSilence(int fd);

// Closes the socket once the peer has read all that was written: shuts the sending side down and
// discards what still comes until the peer closes too, at most a few seconds. (A close with unread
// input would reset the connection.)
void CloseGently(EventLoop* loop, UniqueFd fd);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_TRANSPORT_TCP_H_
