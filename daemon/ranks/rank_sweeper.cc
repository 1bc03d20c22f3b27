#include "daemon/ranks/rank_sweeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/fd.h"
#include "daemon/ranks/cgroup.h"

namespace ringd::daemon {
namespace {

constexpr absl::Duration kRound = absl::Milliseconds(10);

struct ProcessState {
  char state = '?';
  pid_t group = 0;
  pid_t session = 0;
  uint64_t start_time = 0;
};

bool ReadState(pid_t pid, ProcessState* result) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  // Not by iterators: they throw where the process is reaped between.
  std::string text;
  std::getline(file, text, '\0');
  const size_t after_name = text.rfind(')');  // The name may hold anything.
  if (after_name == std::string::npos) return false;
  std::istringstream rest(text.substr(after_name + 1));
  pid_t parent;
  rest >> result->state >> parent >> result->group >> result->session;
  std::string skipped;
  for (int field = 7; field < 22; ++field) rest >> skipped;
  rest >> result->start_time;
  return !rest.fail();
}

bool HasSocket(pid_t pid, const std::string& worker_socket) {
  if (worker_socket.empty()) return false;
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
  const std::string wanted = absl::StrCat("RINGD_SOCKET=", worker_socket);
  std::string entry;
  while (std::getline(file, entry, '\0')) {
    if (entry == wanted) return true;
  }
  return false;
}

bool BelongsToRank(pid_t pid, const SweepOptions& options) {
  struct stat info;
  if (stat(absl::StrCat("/proc/", pid).c_str(), &info) != 0 || info.st_uid != options.uid)
    return false;
  ProcessState state;
  if (!ReadState(pid, &state) || state.state == 'Z' || state.state == 'X') return false;
  if (options.pid > 1 && (state.session == options.pid || state.group == options.pid)) return true;
  return HasSocket(pid, options.worker_socket);
}

// Kills one process if it is (still) the rank's: the pidfd is opened before the check.
bool KillIfOfRank(pid_t pid, const SweepOptions& options) {
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid() || !BelongsToRank(pid, options)) return false;
  syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
  return true;
}

int KillRound(const SweepOptions& options) {
  int found = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) return 0;
  while (const dirent* entry = readdir(proc.get())) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid <= 1 || pid == getpid()) continue;
    if (KillIfOfRank(pid, options)) ++found;
  }
  if (!options.cgroup.empty() && !KillCgroup(options.cgroup)) ++found;
  return found;
}

}  // namespace

int SweepRank(const SweepOptions& options, absl::Duration timeout) {
  // First of all the worker: it must not report the deaths that follow as the rank's own.
  if (options.worker_pid > 1) kill(options.worker_pid, SIGKILL);
  const absl::Time deadline = absl::Now() + timeout;
  int left = KillRound(options);
  while (left > 0 && absl::Now() < deadline) {
    absl::SleepFor(kRound);
    left = KillRound(options);
  }
  unlink(options.worker_socket.c_str());
  return left;
}

uint64_t ProcessStartTime(pid_t pid) {
  ProcessState state;
  return pid > 0 && ReadState(pid, &state) ? state.start_time : 0;
}

}  // namespace ringd::daemon
