#include "client/cli/run/bound_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/output/file_text.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kEndTimeout = absl::Seconds(10);
constexpr int kLifelineFd = 3;
constexpr int kLogLines = 10;

}  // namespace

absl::StatusOr<Lifeline> Lifeline::Create() {
  int line[2];
  if (pipe2(line, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("can't make a pipe: ", strerror(errno)));
  }
  Lifeline lifeline;
  lifeline.end.reset(line[0]);
  lifeline.held.reset(line[1]);
  return lifeline;
}

absl::StatusOr<std::unique_ptr<BoundProcess>> BoundProcess::Start(
    const std::string& name, std::vector<std::string> arguments, const Lifeline& lifeline,
    RunDirectory* directory) {
  const std::string path = absl::StrCat(directory->path(), "/", name, ".log");
  const UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(errno)));
  }
  SpawnOptions spawn;
  spawn.argv = {SiblingProgram(name)};
  spawn.argv.insert(spawn.argv.end(), arguments.begin(), arguments.end());
  spawn.argv.insert(spawn.argv.end(), {"--lifeline-fd", absl::StrCat(kLifelineFd)});
  spawn.environment = OwnEnvironment();
  spawn.new_session = true;  // A terminal's Ctrl-C is ringctl's to deal with.
  spawn.fds = {{STDERR_FILENO, log.get()}, {kLifelineFd, lifeline.end.get()}};
  auto child = Spawn(spawn);
  if (!child.ok()) {
    return absl::Status(
        child.status().code(),
        absl::StrCat(child.status().message(),
                     ": ringctl starts the programs that lie beside it; install them there"));
  }
  directory->Watch(child->pid);
  return std::unique_ptr<BoundProcess>(new BoundProcess(name, path, *std::move(child)));
}

BoundProcess::~BoundProcess() {
  if (WaitForExit(child_, kEndTimeout).ok()) return;
  syscall(SYS_pidfd_send_signal, child_.pidfd.get(), SIGKILL, nullptr, 0);
  (void)WaitForExit(child_, kEndTimeout);
}

bool BoundProcess::HasEnded() const {
  pollfd entry{child_.pidfd.get(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

absl::Status BoundProcess::CheckHealth() const {
  return HasEnded() ? Failure("has ended") : absl::OkStatus();
}

absl::Status BoundProcess::Failure(const std::string& what) const {
  return absl::InternalError(absl::StrCat(name_, " ", what, "; the end of its log:\n",
                                          LastLines(ReadFileText(log_), kLogLines, "  ")));
}

}  // namespace ringd::cli
