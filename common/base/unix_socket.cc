#include "common/base/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/futex.h"

namespace ringd {
namespace {

constexpr int kBacklog = 128;
constexpr int64_t kProbeMicros = 200'000;
constexpr int64_t kConnectRetryMicros = 1000;

// A path that begins with a zero byte is a name in the abstract namespace: no file, no mode.
bool IsAbstract(const std::string& path) { return path[0] == '\0'; }

int FillAddress(const std::string& path, sockaddr_un* address) {
  memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address->sun_path)) return -ENAMETOOLONG;
  memcpy(address->sun_path, path.data(), path.size());
  return 0;
}

// 1: readable or hung up, 0: timed out, -errno.
int WaitReadable(int socket, int64_t timeout_us) {
  const int64_t deadline = MonotonicMicros() + timeout_us;
  while (true) {
    pollfd entry{socket, POLLIN, 0};
    const int64_t left = timeout_us < 0 ? -1 : std::max<int64_t>(0, deadline - MonotonicMicros());
    const int rc = poll(&entry, 1, left < 0 ? -1 : static_cast<int>((left + 999) / 1000));
    if (rc >= 0) return rc;
    if (errno != EINTR) return -errno;
  }
}

void TakeDescriptors(msghdr* message, std::vector<UniqueFd>* fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

}  // namespace

int ListenUnix(const std::string& path, int type, mode_t mode, UniqueFd* listener) {
  sockaddr_un address;
  if (const int rc = FillAddress(path, &address); rc < 0) return rc;
  UniqueFd socket_fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid()) return -errno;
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (bind(socket_fd.get(), generic, sizeof(address)) < 0) {
    if (errno != EADDRINUSE) return -errno;
    struct stat info;
    if (lstat(path.c_str(), &info) < 0 || !S_ISSOCK(info.st_mode)) return -EADDRINUSE;
    UniqueFd probe;
    const int rc = ConnectUnix(path, type, &probe);
    if (rc != -ECONNREFUSED && rc != -ENOENT) return -EADDRINUSE;
    unlink(path.c_str());
    if (bind(socket_fd.get(), generic, sizeof(address)) < 0) return -errno;
  }
  if ((!IsAbstract(path) && chmod(path.c_str(), mode) < 0) ||
      listen(socket_fd.get(), kBacklog) < 0) {
    const int error = errno;
    if (!IsAbstract(path)) unlink(path.c_str());
    return -error;
  }
  *listener = std::move(socket_fd);
  return 0;
}

int ConnectUnix(const std::string& path, int type, UniqueFd* socket_out) {
  sockaddr_un address;
  if (const int rc = FillAddress(path, &address); rc < 0) return rc;
  UniqueFd socket_fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd.valid()) return -errno;
  const int64_t deadline = MonotonicMicros() + kProbeMicros;
  while (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) <
         0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN || MonotonicMicros() > deadline)
      return -errno;  // EAGAIN: the backlog is full.
    usleep(kConnectRetryMicros);
  }
  const int flags = fcntl(socket_fd.get(), F_GETFL);
  if (fcntl(socket_fd.get(), F_SETFL, flags & ~O_NONBLOCK) < 0) return -errno;
  *socket_out = std::move(socket_fd);
  return 0;
}

int GetPeerCredentials(int socket, PeerCredentials* credentials) {
  ucred peer;
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) return -errno;
  *credentials = {peer.pid, peer.uid, peer.gid};
  return 0;
}

int SendPacket(int socket, const void* data, size_t bytes, const int* fds, int fd_count) {
  if (fd_count < 0 || fd_count > kMaxPacketFds) return -EINVAL;
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))] = {};
  if (fd_count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
  }
  while (true) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) return 0;
    if (errno != EINTR) return -errno;
  }
}

ssize_t ReceivePacket(int socket, void* data, size_t capacity, std::vector<UniqueFd>* fds,
                      int64_t timeout_us) {
  if (timeout_us >= 0) {
    const int rc = WaitReadable(socket, timeout_us);
    if (rc < 0) return rc;
    if (rc == 0) return -ETIMEDOUT;
  }
  iovec part{data, capacity};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return -errno;
  std::vector<UniqueFd> taken;
  TakeDescriptors(&message, &taken);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return -EMSGSIZE;
  if (fds != nullptr) *fds = std::move(taken);
  return received;
}

}  // namespace ringd
