#include "client/cli/run/run_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/futex.h"

namespace ringd::cli {
namespace {

constexpr char kTemplate[] = "/ringd-XXXXXX";
// The longest socket below it: a worker's.
constexpr char kLongestSocket[] = "/d/w/j-1-65535.sock";
constexpr size_t kMaxSocketPath = 107;
// For daemon and ranks to end by themselves once ringctl is gone: more than the short grace that
// they give their ranks.
constexpr int64_t kPatienceUs = 15 * 1000 * 1000;

void Remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

void AwaitOrKill(const std::vector<UniqueFd>& processes) {
  const int64_t deadline_us = MonotonicMicros() + kPatienceUs;
  for (const UniqueFd& process : processes) {
    pollfd entry{process.get(), POLLIN, 0};
    int rc = 0;
    do {
      const int64_t left_ms = (deadline_us - MonotonicMicros()) / 1000;
      rc = poll(&entry, 1, left_ms > 0 ? static_cast<int>(left_ms) : 0);
    } while (rc < 0 && errno == EINTR);
    if (rc == 0) syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
  }
}

// The caretaker's life. Messages on the line are pids; pid 0: all is cleaned up. The line's end
// without that: clean up.
[[noreturn]] void TakeCare(int line, const std::string& path) {
  setsid();
  prctl(PR_SET_NAME, "ringctl-care");
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) dup2(null, fd);
  if (chdir("/") != 0) _exit(1);
  std::vector<UniqueFd> processes;
  pid_t pid = 0;
  while (true) {
    const ssize_t bytes = read(line, &pid, sizeof(pid));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes != sizeof(pid)) break;
    if (pid == 0) _exit(0);
    UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (process.valid()) processes.push_back(std::move(process));
  }
  AwaitOrKill(processes);
  Remove(path);
  _exit(0);
}

bool IsUsable(const std::string& path) {
  struct stat info;
  return !path.empty() && path[0] == '/' &&
         path.size() + strlen(kTemplate) + strlen(kLongestSocket) <= kMaxSocketPath &&
         stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && access(path.c_str(), W_OK) == 0;
}

}  // namespace

std::string RunDirectoryBase(const std::string& xdg_runtime_dir, const std::string& tmpdir) {
  for (const std::string& candidate : {xdg_runtime_dir, tmpdir}) {
    if (IsUsable(candidate)) return candidate;
  }
  return "/tmp";
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Create() {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  std::string path = RunDirectoryBase(variable("XDG_RUNTIME_DIR"), variable("TMPDIR")) + kTemplate;
  if (mkdtemp(path.data()) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "can't make a directory ", path, ": ", strerror(errno), "; set TMPDIR to a writable one"));
  }
  std::unique_ptr<RunDirectory> directory(new RunDirectory(path));
  int line[2];
  if (pipe2(line, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("can't make a pipe: ", strerror(errno)));
  }
  directory->caretaker_line_.reset(line[1]);
  UniqueFd end(line[0]);
  directory->caretaker_ = fork();
  if (directory->caretaker_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("can't fork: ", strerror(errno)));
  }
  if (directory->caretaker_ == 0) {
    close(line[1]);
    TakeCare(line[0], path);
  }
  return directory;
}

void RunDirectory::Watch(pid_t pid) {
  // Smaller than PIPE_BUF: whole or not at all.
  if (write(caretaker_line_.get(), &pid, sizeof(pid)) < 0) return;
}

RunDirectory::~RunDirectory() {
  Remove(path_);
  Watch(0);
  caretaker_line_.reset();
  if (caretaker_ > 0) waitpid(caretaker_, nullptr, 0);
}

}  // namespace ringd::cli
