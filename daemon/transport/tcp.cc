#include "daemon/transport/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status/macros.h"

namespace ringd::daemon {
namespace {

constexpr int kListenBacklog = 128;
constexpr int kKeepaliveSeconds = 1;
constexpr int kKeepaliveProbes = 5;
constexpr absl::Duration kGentleCloseLimit = absl::Seconds(5);

absl::StatusOr<std::vector<SocketAddress>> Resolve(const HostPort& target, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(target.host.c_str(), absl::StrCat(target.port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("can't resolve host ", target.host, ": ", gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    if (entry->ai_addrlen > sizeof(address.storage)) continue;
    memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.bytes = entry->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  if (addresses.empty()) {
    return absl::UnavailableError(absl::StrCat("host ", target.host, " has no address"));
  }
  return addresses;
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

absl::StatusOr<UniqueFd> BindAndListen(const SocketAddress& address) {
  UniqueFd fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd.valid()) return absl::UnavailableError(strerror(errno));
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 ||
      listen(fd.get(), kListenBacklog) != 0) {
    return absl::UnavailableError(strerror(errno));
  }
  return fd;
}

int PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

// True once the peer has closed too.
bool DrainUntilEnd(int fd) {
  char discarded[4096];
  while (true) {
    const ssize_t count = recv(fd, discarded, sizeof(discarded), MSG_DONTWAIT);
    if (count > 0) continue;
    if (count < 0 && errno == EINTR) continue;
    return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort result;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &result.port) || result.port < 0 ||
      result.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "' is not host:port with a port from 0 to 65535"));
  }
  result.host = address.substr(0, colon);
  if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find_first_of(":[]") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "': write IPv6 addresses as [host]:port"));
  }
  return result;
}

std::shared_ptr<Resolution> StartResolution(const std::string& address) {
  auto resolution = std::make_shared<Resolution>();
  const absl::StatusOr<HostPort> target = ParseHostPort(address);
  if (!target.ok()) {
    resolution->result = target.status();
    resolution->done = true;
    return resolution;
  }
  resolution->result = Resolve(*target, AI_NUMERICHOST);
  if (resolution->result.ok()) {
    resolution->done = true;
    return resolution;
  }
  try {
    std::thread([resolution, target = *target] {
      resolution->result = Resolve(target, 0);
      resolution->done.store(true, std::memory_order_release);
    }).detach();
  } catch (const std::system_error& error) {
    resolution->result =
        absl::UnavailableError(absl::StrCat("can't start a resolver thread: ", error.what()));
    resolution->done = true;
  }
  return resolution;
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& address) {
  RINGD_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(address));
  RINGD_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, Resolve(target, AI_PASSIVE));
  absl::Status last;
  for (const SocketAddress& candidate : addresses) {
    absl::StatusOr<UniqueFd> fd = BindAndListen(candidate);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return absl::UnavailableError(absl::StrCat("can't listen on data address ", address, ": ",
                                             std::string(last.message()),
                                             "; choose an address of this host and a free port"));
}

int LocalPort(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return PortOf(address);
}

std::string PeerName(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  char host[INET6_ADDRSTRLEN];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host, sizeof(host), nullptr,
                  0, NI_NUMERICHOST) != 0) {
    return "?";
  }
  return absl::StrCat(host, ":", PortOf(address));
}

absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address) {
  UniqueFd fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd.valid()) return absl::UnavailableError(strerror(errno));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 &&
      errno != EINPROGRESS) {
    return absl::UnavailableError(strerror(errno));
  }
  return fd;
}

int SocketError(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

bool IsConnectedToItself(int fd) {
  sockaddr_storage local{};
  sockaddr_storage peer{};
  socklen_t local_bytes = sizeof(local);
  socklen_t peer_bytes = sizeof(peer);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_bytes) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
         local_bytes == peer_bytes && memcmp(&local, &peer, local_bytes) == 0;
}

void ConfigureDataSocket(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  constexpr char kCongestionControl[] = "cubic";
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCongestionControl, sizeof(kCongestionControl) - 1);
}

absl::Duration PeerSilence(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return absl::ZeroDuration();
  return absl::Milliseconds(std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv));
}

void CloseGently(EventLoop* loop, UniqueFd fd) {
  if (!fd.valid()) return;
  if (shutdown(fd.get(), SHUT_WR) != 0 || DrainUntilEnd(fd.get())) return;
  struct Closing {
    UniqueFd fd;
    uint64_t timer = 0;
  };
  auto closing = std::make_shared<Closing>();
  closing->fd = std::move(fd);
  const int number = closing->fd.get();
  const absl::Status watched = loop->Watch(number, EPOLLIN, [loop, closing](uint32_t) {
    if (!DrainUntilEnd(closing->fd.get())) return;
    loop->CancelTimer(closing->timer);
    loop->Unwatch(closing->fd.get());
    closing->fd.reset();
  });
  if (!watched.ok()) return;
  closing->timer = loop->AddTimer(kGentleCloseLimit, [loop, closing] {
    loop->Unwatch(closing->fd.get());
    closing->fd.reset();
  });
}

}  // namespace ringd::daemon
