// Unix sockets of type SOCK_SEQPACKET or SOCK_STREAM, and packets with file descriptors.
// Functions return 0 (or a count) on success and -errno on failure, since libringd.so uses them
// too.
#ifndef RINGD_COMMON_BASE_UNIX_SOCKET_H_
#define RINGD_COMMON_BASE_UNIX_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/sealed_memory.h"

namespace ringd {

inline constexpr int kMaxPacketFds = 16;

// Binds and listens on `path` with permission bits `mode`. A stale socket file (nobody accepts) is
// replaced; -EADDRINUSE when somebody does. -ENAMETOOLONG for paths over 107 bytes.
int ListenUnix(const std::string& path, int type, mode_t mode, UniqueFd* listener);
// timeout_us bounds the wait for a full backlog. -ENOENT, -ECONNREFUSED as the kernel says.
int ConnectUnix(const std::string& path, int type, UniqueFd* socket);

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
int GetPeerCredentials(int socket, PeerCredentials* credentials);

// One packet with up to kMaxPacketFds descriptors (not taken over). Blocks unless the socket is
// non-blocking. -EPIPE, no SIGPIPE.
int SendPacket(int socket, const void* data, size_t bytes, const int* fds, int fd_count);
// Bytes received (0: the peer closed). A longer packet is -EMSGSIZE, truncated descriptors
// -EMSGSIZE; all descriptors arrive close-on-exec. timeout_us < 0: no limit; else -ETIMEDOUT.
ssize_t ReceivePacket(int socket, void* data, size_t capacity, std::vector<UniqueFd>* fds,
                      int64_t timeout_us);

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_UNIX_SOCKET_H_
