#include "client/cli/local/processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/output/file_text.h"
#include "common/base/unix_socket.h"
#include "common/process/process.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(10);
constexpr absl::Duration kKillPatience = absl::Seconds(5);
constexpr mode_t kPrivate = 0600;

std::vector<std::string> Entries(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(directory.c_str()), closedir);
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

std::vector<pid_t> AllPids() {
  std::vector<pid_t> pids;
  for (const std::string& name : Entries("/proc")) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(name, &pid)) pids.push_back(pid);
  }
  return pids;
}

absl::StatusOr<ProcessStat> StatOf(pid_t pid) {
  return ParseProcessStat(ReadFileText(absl::StrCat("/proc/", pid, "/stat")));
}

// A process that ran when it was looked at.
struct Process {
  pid_t pid = 0;
  uint64_t start_time = 0;

  bool Runs() const {
    const auto stat = StatOf(pid);
    return stat.ok() && stat->start_time == start_time && stat->state != 'Z' && stat->state != 'X';
  }
  void Signal(int signal) const {
    if (Runs()) kill(pid, signal);
  }
};

std::vector<Process> Look(const std::vector<pid_t>& pids) {
  std::vector<Process> processes;
  for (const pid_t pid : pids) {
    const auto stat = StatOf(pid);
    if (stat.ok()) processes.push_back({pid, stat->start_time});
  }
  return processes;
}

// True once all have ended.
bool AwaitEnd(const std::vector<Process>& processes, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  while (
      std::any_of(processes.begin(), processes.end(), [](const Process& p) { return p.Runs(); })) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(kPollInterval);
  }
  return true;
}

void Stop(const std::vector<Process>& processes, absl::Duration patience,
          const std::function<std::vector<Process>()>& also_to_kill) {
  for (const Process& process : processes) process.Signal(SIGTERM);
  if (AwaitEnd(processes, patience)) return;
  std::vector<Process> left = also_to_kill();
  left.insert(left.end(), processes.begin(), processes.end());
  for (const Process& process : left) process.Signal(SIGKILL);
  AwaitEnd(left, kKillPatience);
}

std::vector<pid_t> DescendantsOf(const std::vector<pid_t>& roots) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : AllPids()) {
    if (const auto stat = StatOf(pid); stat.ok()) children.emplace(stat->parent, pid);
  }
  std::vector<pid_t> found;
  std::vector<pid_t> todo = roots;
  while (!todo.empty()) {
    const pid_t pid = todo.back();
    todo.pop_back();
    for (auto [it, end] = children.equal_range(pid); it != end; ++it) {
      found.push_back(it->second);
      todo.push_back(it->second);
    }
  }
  return found;
}

std::string NamespacePath(const std::string& netns) { return "/run/netns/" + netns; }

absl::StatusOr<Child> SpawnIn(const std::string& netns, const SpawnOptions& spawn) {
  if (netns.empty()) return Spawn(spawn);
  absl::StatusOr<Child> child = absl::UnknownError("not started");
  std::thread([&] {  // The namespace is a thread's: this one's ends with it.
    const absl::Status entered = EnterNamespace(netns);
    child = entered.ok() ? Spawn(spawn) : absl::StatusOr<Child>(entered);
  })
      .join();
  return child;
}

}  // namespace

absl::StatusOr<ProcessStat> ParseProcessStat(const std::string& line) {
  // "PID (NAME) STATE PARENT ...": a name may have spaces and brackets. start_time is field 22.
  constexpr size_t kParent = 1, kStartTime = 19;
  const size_t name_end = line.rfind(')');
  const std::string rest = name_end == std::string::npos ? "" : line.substr(name_end + 1);
  const std::vector<absl::string_view> fields =
      absl::StrSplit(rest, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  ProcessStat stat;
  if (fields.size() <= kStartTime || fields[0].size() != 1 ||
      !absl::SimpleAtoi(fields[kParent], &stat.parent) ||
      !absl::SimpleAtoi(fields[kStartTime], &stat.start_time)) {
    return absl::InvalidArgumentError("is no line of /proc/PID/stat");
  }
  stat.state = fields[0][0];
  return stat;
}

absl::Status EnterNamespace(const std::string& netns) {
  const UniqueFd fd(open(NamespacePath(netns).c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.valid() && setns(fd.get(), CLONE_NEWNET) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "can't enter network namespace ", netns, ": ", strerror(errno),
      geteuid() != 0 ? "; run it as root" : "; 'ringctl local down' and 'up' make it anew"));
}

absl::Status StartDetached(const DetachedOptions& options) {
  const UniqueFd log(
      open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kPrivate));
  if (!log.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't write ", options.log, ": ", strerror(errno)));
  }
  SpawnOptions spawn;
  spawn.argv = options.argv;
  spawn.environment = OwnEnvironment();
  spawn.new_session = true;
  spawn.fds = {{STDOUT_FILENO, log.get()}, {STDERR_FILENO, log.get()}};
  RINGD_ASSIGN_OR_RETURN(const Child child, SpawnIn(options.netns, spawn));
  const auto stat = StatOf(child.pid);
  absl::Status status = stat.status();
  if (stat.ok()) {
    const std::string text = absl::StrCat(child.pid, " ", stat->start_time, "\n");
    status = WriteFileText(options.pid_file, text, kPrivate);
  }
  // Without a pid file nobody would find it again.
  if (!status.ok()) kill(child.pid, SIGKILL);
  return status;
}

namespace {

// Pid 0: it doesn't run.
Process ReadPidFile(const std::string& pid_file) {
  const std::vector<std::string> words =
      absl::StrSplit(ReadFileText(pid_file), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  Process process;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &process.pid) || process.pid <= 0 ||
      !absl::SimpleAtoi(words[1], &process.start_time) || !process.Runs()) {
    return {};
  }
  return process;
}

}  // namespace

pid_t RunningPid(const std::string& pid_file) { return ReadPidFile(pid_file).pid; }

void StopProcesses(const std::vector<std::string>& pid_files, absl::Duration patience) {
  std::vector<Process> processes;
  for (const std::string& pid_file : pid_files) {
    const Process process = ReadPidFile(pid_file);
    if (process.pid != 0) processes.push_back(process);
  }
  Stop(processes, patience, [] { return std::vector<Process>(); });
  for (const std::string& pid_file : pid_files) unlink(pid_file.c_str());
}

std::vector<pid_t> WorkersOf(const std::string& run_directory) {
  std::vector<pid_t> pids;
  const std::string folder = run_directory + "/w";
  for (const std::string& job : Entries(folder)) {
    for (const std::string& name : Entries(absl::StrCat(folder, "/", job))) {
      const std::string path = absl::StrCat(folder, "/", job, "/", name);
      UniqueFd socket;
      PeerCredentials listener;  // Of whoever listens: a worker.
      if (absl::EndsWith(name, ".sock") && ConnectUnix(path, SOCK_SEQPACKET, &socket) == 0 &&
          GetPeerCredentials(socket.get(), &listener) == 0 && listener.pid > 0) {
        pids.push_back(listener.pid);
      }
    }
  }
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

void StopWorkers(const std::vector<pid_t>& workers, absl::Duration patience) {
  Stop(Look(workers), patience, [&] { return Look(DescendantsOf(workers)); });
}

void KillAllInNamespace(const std::string& netns) {
  struct stat wanted;
  if (stat(NamespacePath(netns).c_str(), &wanted) != 0) return;
  std::vector<pid_t> pids;
  for (const pid_t pid : AllPids()) {
    struct stat its;
    if (stat(absl::StrCat("/proc/", pid, "/ns/net").c_str(), &its) == 0 &&
        its.st_ino == wanted.st_ino && its.st_dev == wanted.st_dev) {
      pids.push_back(pid);
    }
  }
  const std::vector<Process> processes = Look(pids);
  for (const Process& process : processes) process.Signal(SIGKILL);
  AwaitEnd(processes, kKillPatience);
}

}  // namespace ringd::cli
