#include "client/cli/local/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process/process.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr size_t kMaxOutputBytes = 4096;

std::string ReadAll(int fd) {
  std::string text;
  char buffer[1024];
  while (true) {
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    if (text.size() < kMaxOutputBytes) text.append(buffer, static_cast<size_t>(bytes));
  }
}

}  // namespace

std::string FindTool(const std::string& name) {
  const char* path = std::getenv("PATH");
  const std::string folders =
      absl::StrCat(path != nullptr ? path : "", ":/usr/sbin:/usr/bin:/sbin:/bin");
  for (const absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty())) {
    const std::string candidate = absl::StrCat(folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

absl::Status RunTool(const std::string& command_line) {
  SpawnOptions spawn;
  spawn.argv = absl::StrSplit(command_line, ' ', absl::SkipEmpty());
  const std::string path = FindTool(spawn.argv[0]);
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no program ", spawn.argv[0], " here"));
  }
  spawn.argv[0] = path;
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("can't make a pipe: ", strerror(errno)));
  }
  const UniqueFd output(pipe_ends[0]);
  UniqueFd input(pipe_ends[1]);
  spawn.fds = {{STDOUT_FILENO, input.get()}, {STDERR_FILENO, input.get()}};
  spawn.environment = {"LC_ALL=C"};
  RINGD_ASSIGN_OR_RETURN(const Child child, Spawn(spawn));
  input.reset();
  const std::string text = ReadAll(output.get());
  auto status = WaitForExit(child, kTimeout);
  if (!status.ok()) {
    kill(child.pid, SIGKILL);
    (void)WaitForExit(child, kTimeout);
    return absl::FailedPreconditionError(absl::StrCat("'", command_line, "' does not end"));
  }
  if (status->signal == 0 && status->exit_code == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("'", command_line, "' failed: ", absl::StripAsciiWhitespace(text)));
}

}  // namespace ringd::cli
