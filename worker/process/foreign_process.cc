#include "worker/process/foreign_process.h"

#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ringd::worker {
namespace {

// Not in Debian 12's headers.
constexpr int kSocketPeerPidfd = 77;  // SO_PEERPIDFD
struct PidfdInfo {                    // struct pidfd_info, its first version.
  uint64_t mask;
  uint64_t cgroup;
  uint32_t ids[11];
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kPidfdInfoExit = 1u << 3;
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

// Of /proc/PID/stat, its last field but for those that later kernels may add; only while nobody has
// reaped it.
std::optional<int> StatusOfZombie(pid_t pid) {
  constexpr size_t kState = 0, kExitCode = 49;
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  // Not by iterators: they throw where the process is reaped between.
  std::string line;
  std::getline(file, line, '\0');
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::string rest = line.substr(name_end + 1);
  const std::vector<std::string> fields =
      absl::StrSplit(rest, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int status = 0;
  if (fields.size() <= kExitCode || fields[kState] != "Z" ||
      !absl::SimpleAtoi(fields[kExitCode], &status)) {
    return std::nullopt;
  }
  return status;
}

}  // namespace

UniqueFd OpenPeerPidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kSocketPeerPidfd, &fd, &length) == 0) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd(fd);
  }
  UniqueFd opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (HungUp(socket)) opened.reset();
  return opened;
}

bool HungUp(int socket) {
  pollfd entry{socket, POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0;
}

bool HasEnded(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return pidfd >= 0 && poll(&entry, 1, 0) > 0;
}

std::optional<int> FindWaitStatus(int pidfd, pid_t pid) {
  // A zombie has the one, a reaped process the other: the second look is for one reaped between.
  for (int look = 0; look < 2; ++look) {
    if (const std::optional<int> status = StatusOfZombie(pid)) return status;
    PidfdInfo info{};
    info.mask = kPidfdInfoExit;
    if (ioctl(pidfd, kPidfdGetInfo, &info) == 0 && (info.mask & kPidfdInfoExit) != 0) {
      return info.exit_code;
    }
  }
  return std::nullopt;
}

}  // namespace ringd::worker
