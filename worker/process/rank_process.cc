#include "worker/process/rank_process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/macros.h"

namespace ringd::worker {
namespace {

constexpr int kExitNotStarted = 127;
constexpr int kSignalCount = 65;

enum class Step : int { kDirectory, kAffinity, kExecute };

struct StartFailure {
  Step step;
  int error;
};

struct Pipe {
  UniqueFd reader, writer;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0)
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", strerror(errno)));
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// What the child needs after the fork, ready made.
struct ChildPlan {
  const RankCommand* command;
  std::vector<char*> argv, shell_argv, environment;
  cpu_set_t cpus;
  pid_t worker;
  int go, failed, null, out, err;
};

[[noreturn]] void FailChild(const ChildPlan& plan, Step step) {
  const StartFailure failure{step, errno};
  [[maybe_unused]] const ssize_t written = write(plan.failed, &failure, sizeof(failure));
  _exit(kExitNotStarted);
}

void ResetSignals() {
  for (int signal = 1; signal < kSignalCount; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  const RankCommand& command = *plan.command;
  setsid();
  ResetSignals();
  if (command.die_with_worker) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != plan.worker) _exit(kExitNotStarted);
  }
  dup2(plan.null, STDIN_FILENO);
  dup2(plan.out, STDOUT_FILENO);
  dup2(plan.err, STDERR_FILENO);
  syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
  char go = 0;
  ssize_t got;
  do {
    got = read(plan.go, &go, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) _exit(kExitNotStarted);
  umask(command.umask);
  if (chdir(command.directory.c_str()) < 0) FailChild(plan, Step::kDirectory);
  if (!command.cpus.empty() && sched_setaffinity(0, sizeof(plan.cpus), &plan.cpus) < 0) {
    FailChild(plan, Step::kAffinity);
  }
  execve(command.program.c_str(), plan.argv.data(), plan.environment.data());
  if (errno == ENOEXEC) {  // A script without #!, as execvp and every shell treat it.
    execve("/bin/sh", plan.shell_argv.data(), plan.environment.data());
  }
  FailChild(plan, Step::kExecute);
}

ChildPlan MakePlan(const RankCommand& command) {
  ChildPlan plan{};
  plan.command = &command;
  plan.argv = Pointers(command.argv);
  plan.shell_argv = {const_cast<char*>("sh"), const_cast<char*>(command.program.c_str())};
  plan.shell_argv.insert(plan.shell_argv.end(), plan.argv.begin() + 1, plan.argv.end());
  plan.environment = Pointers(command.environment);
  CPU_ZERO(&plan.cpus);
  for (const int cpu : command.cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &plan.cpus);
  }
  plan.worker = getpid();
  return plan;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Prepare(const RankCommand& command) {
  RINGD_ASSIGN_OR_RETURN(Pipe go, MakePipe());
  RINGD_ASSIGN_OR_RETURN(Pipe failed, MakePipe());
  RINGD_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  RINGD_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid())
    return absl::ResourceExhaustedError(absl::StrCat("/dev/null: ", strerror(errno)));
  ChildPlan plan = MakePlan(command);
  plan.go = go.reader.get();
  plan.failed = failed.writer.get();
  plan.null = null.get();
  plan.out = out.writer.get();
  plan.err = err.writer.get();
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", strerror(errno)));
  if (pid == 0) {
    close(go.writer.get());  // Else the child would not see the worker's end.
    RunChild(plan);
  }
  auto process = absl::WrapUnique(new RankProcess());
  process->pid_ = pid;
  process->program_ = command.program;
  process->directory_ = command.directory;
  process->pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  process->go_ = std::move(go.writer);
  process->failed_ = std::move(failed.reader);
  process->stdout_ = std::move(out.reader);
  process->stderr_ = std::move(err.reader);
  return process;
}

absl::Status RankProcess::Start() {
  if (write(go_.get(), "g", 1) != 1) return absl::InternalError("the prepared process has ended");
  go_.reset();
  StartFailure failure;
  ssize_t got;
  do {
    got = read(failed_.get(), &failure, sizeof(failure));
  } while (got < 0 && errno == EINTR);
  failed_.reset();
  if (got != sizeof(failure)) return absl::OkStatus();
  const char* reason = strerror(failure.error);
  switch (failure.step) {
    case Step::kDirectory:
      return absl::InvalidArgumentError(absl::StrCat(directory_, ": ", reason, " (--cwd)"));
    case Step::kAffinity:
      return absl::InvalidArgumentError(absl::StrCat("binding the rank to its CPUs: ", reason));
    case Step::kExecute:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(program_, ": ", reason));
}

bool RankProcess::Signal(int signal) const {
  if (pidfd_.valid()) return syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) == 0;
  return kill(pid_, signal) == 0;
}

void RankProcess::SignalGroup(int signal) const {
  if (kill(-pid_, signal) < 0) kill(pid_, signal);  // Before its setsid there is no such group.
}

}  // namespace ringd::worker
