#include "common/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/futex.h"
#include "common/base/read_to_end.h"

namespace ringd {
namespace {

// Sources of the child's descriptors are moved above this before any is put in place, so that none
// overwrites another. No higher than needed: the limit of open files may be low.
int FirstTemporaryFd(const std::map<int, int>& fds) {
  int highest = STDERR_FILENO;
  for (const auto& [target, source] : fds) highest = std::max({highest, target, source});
  return highest + 1;
}

class SpawnActions {
 public:
  SpawnActions() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~SpawnActions() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }

  // 0 or an errno: EBADF where a descriptor is beyond the limit of open files.
  int SetDescriptors(const std::map<int, int>& fds) {
    int rc = 0;
    const auto add = [&rc](int result) { rc = rc == 0 ? result : rc; };
    int temporary = FirstTemporaryFd(fds);
    for (const auto& [target, source] : fds)
      add(posix_spawn_file_actions_adddup2(&actions_, source, temporary++));
    for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
      if (fds.count(fd) == 0)
        add(posix_spawn_file_actions_addopen(&actions_, fd, "/dev/null", O_RDWR, 0));
    }
    temporary = FirstTemporaryFd(fds);
    int next = STDERR_FILENO + 1;
    for (const auto& [target, source] : fds) {
      add(posix_spawn_file_actions_adddup2(&actions_, temporary++, target));
      next = std::max(next, target + 1);
    }
    // Descriptors between those named are close-on-exec throughout this code base.
    add(posix_spawn_file_actions_addclosefrom_np(&actions_, next));
    return rc;
  }

  void SetAttributes(bool new_session) {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    if (new_session) flags |= POSIX_SPAWN_SETSID;
    posix_spawnattr_setflags(&attributes_, flags);
  }

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<Child> Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("spawn: no program");
  const std::string& program = options.argv[0];
  SpawnActions actions;
  if (const int rc = actions.SetDescriptors(options.fds); rc != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("can't start ", program, ": ", strerror(rc), "; raise ulimit -n"));
  }
  actions.SetAttributes(options.new_session);
  pid_t pid = 0;
  const int rc = posix_spawn(&pid, program.c_str(), actions.actions(), actions.attributes(),
                             Pointers(options.argv).data(), Pointers(options.environment).data());
  if (rc == ENOENT || rc == EACCES)
    return absl::NotFoundError(absl::StrCat(program, ": ", strerror(rc)));
  if (rc != 0)
    return absl::ResourceExhaustedError(absl::StrCat("can't start ", program, ": ", strerror(rc)));
  Child child;
  child.pid = pid;
  child.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  return child;
}

absl::StatusOr<ExitStatus> WaitForExit(const Child& child, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (child.pidfd.valid()) {
    pollfd entry{child.pidfd.get(), POLLIN, 0};
    const int64_t left =
        std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0, INT_MAX);
    const int rc =
        poll(&entry, 1, timeout == absl::InfiniteDuration() ? -1 : static_cast<int>(left));
    if (rc > 0) break;
    if (rc == 0)
      return absl::DeadlineExceededError(absl::StrCat("process ", child.pid, " still runs"));
    if (errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
  }
  int status = 0;
  pid_t reaped;
  do {
    reaped = waitpid(child.pid, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  if (reaped < 0)
    return absl::NotFoundError(absl::StrCat("process ", child.pid, ": ", strerror(errno)));
  ExitStatus result;
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  } else {
    result.exit_code = WEXITSTATUS(status);
  }
  return result;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

absl::StatusOr<Finished> RunToEnd(SpawnOptions options, const std::vector<int>& fds, size_t limit,
                                  absl::Duration timeout) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("can't make a pipe: ", strerror(errno)));
  }
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  for (const int fd : fds) options.fds[fd] = input.get();
  absl::StatusOr<Child> child = Spawn(options);
  if (!child.ok()) return child.status();
  input.reset();
  Finished finished;
  finished.output = ReadToEnd(output.get(), limit);
  absl::StatusOr<ExitStatus> status = WaitForExit(*child, timeout);
  if (!status.ok()) {
    kill(child->pid, SIGKILL);
    WaitForExit(*child, absl::InfiniteDuration()).IgnoreError();
    return status.status();
  }
  finished.status = *status;
  return finished;
}

std::string SiblingProgram(const std::string& name) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return name;
  const std::string self(path, length);
  return absl::StrCat(self.substr(0, self.rfind('/')), "/", name);
}

void NotifySystemd(const std::string& state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || (path[0] != '/' && path[0] != '@') ||
      strlen(path) >= sizeof(address.sun_path))
    return;
  strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
  if (path[0] == '@') address.sun_path[0] = '\0';
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + strlen(path));
  sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address),
         length);
}

absl::Duration WatchdogInterval() {
  const char* period = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  int64_t micros = 0;
  if (period == nullptr || !absl::SimpleAtoi(period, &micros) || micros <= 0)
    return absl::ZeroDuration();
  if (pid != nullptr && absl::StrCat(getpid()) != pid) return absl::ZeroDuration();
  return absl::Microseconds(micros) / 2;
}

Watchdog::Watchdog()
    : interval_us_(absl::ToInt64Microseconds(WatchdogInterval())),
      next_us_(MonotonicMicros() + interval_us_) {}

int Watchdog::TimeoutMillis() const {
  if (interval_us_ == 0) return -1;
  const int64_t left = std::max<int64_t>(next_us_ - MonotonicMicros(), 0);
  return static_cast<int>((left + 999) / 1000);
}

void Watchdog::TellIfDue() {
  const int64_t now = MonotonicMicros();
  if (interval_us_ == 0 || now < next_us_) return;
  NotifySystemd("WATCHDOG=1");
  next_us_ = now + interval_us_;
}

}  // namespace ringd
