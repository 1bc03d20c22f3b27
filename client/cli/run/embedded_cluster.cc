#include "client/cli/run/embedded_cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/output/file_text.h"
#include "common/base/unix_socket.h"
#include "common/base/version.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(10);
constexpr absl::Duration kEndTimeout = absl::Seconds(10);
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr int kLifelineFd = 3;
constexpr int kLogLines = 10;

bool HasEnded(const Child& child) {
  pollfd entry{child.pidfd.get(), POLLIN, 0};
  return child.pid > 0 && poll(&entry, 1, 0) > 0;
}

}  // namespace

std::string LocalNodeName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof(name) - 1);
  const std::string text(name);
  const std::string node = text.substr(0, text.find('.'));
  return node.empty() ? "localhost" : node;
}

EmbeddedCluster::EmbeddedCluster(std::unique_ptr<RunDirectory> directory, Options options)
    : directory_(std::move(directory)), options_(std::move(options)) {
  scheduler_.name = "ringd-scheduler";
  scheduler_.log = directory_->path() + "/scheduler.log";
  daemon_.name = "ringd";
  daemon_.log = directory_->path() + "/daemon.log";
}

absl::StatusOr<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::Start(
    std::unique_ptr<RunDirectory> directory, Options options) {
  std::unique_ptr<EmbeddedCluster> cluster(
      new EmbeddedCluster(std::move(directory), std::move(options)));
  RINGD_RETURN_IF_ERROR(cluster->StartAll());
  RINGD_RETURN_IF_ERROR(cluster->AwaitSocket());
  RINGD_ASSIGN_OR_RETURN(
      cluster->client_,
      ClusterClient::Connect({.address = "unix:" + cluster->directory_->path() + "/s.sock"}));
  RINGD_RETURN_IF_ERROR(cluster->AwaitNode());
  return cluster;
}

EmbeddedCluster::~EmbeddedCluster() {
  client_.reset();
  lifeline_.reset();
  for (const Process* process : {&daemon_, &scheduler_}) {
    if (process->child.pid == 0) continue;
    if (WaitForExit(process->child, kEndTimeout).ok()) continue;
    syscall(SYS_pidfd_send_signal, process->child.pidfd.get(), SIGKILL, nullptr, 0);
    (void)WaitForExit(process->child, kEndTimeout);
  }
}

absl::Status EmbeddedCluster::StartProcess(const std::string& name,
                                           std::vector<std::string> arguments, int lifeline,
                                           Process* process) {
  const UniqueFd log(open(process->log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) {
    return absl::FailedPreconditionError(absl::StrCat(process->log, ": ", strerror(errno)));
  }
  SpawnOptions spawn;
  spawn.argv = {SiblingProgram(name)};
  spawn.argv.insert(spawn.argv.end(), arguments.begin(), arguments.end());
  for (char** entry = environ; *entry != nullptr; ++entry) spawn.environment.emplace_back(*entry);
  spawn.new_session = true;  // A terminal's Ctrl-C is ringctl's to deal with.
  spawn.fds = {{STDERR_FILENO, log.get()}, {kLifelineFd, lifeline}};
  auto child = Spawn(spawn);
  if (!child.ok()) {
    return absl::Status(
        child.status().code(),
        absl::StrCat(child.status().message(),
                     ": ringctl starts the programs that lie beside it; install them there"));
  }
  process->child = *std::move(child);
  directory_->Watch(process->child.pid);
  return absl::OkStatus();
}

absl::Status EmbeddedCluster::StartAll() {
  int line[2];
  if (pipe2(line, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("can't make a pipe: ", strerror(errno)));
  }
  lifeline_.reset(line[1]);
  const UniqueFd end(line[0]);
  const std::string& run = directory_->path();
  const std::string socket = absl::StrCat("unix:", run, "/s.sock");
  const std::string lifeline = absl::StrCat(kLifelineFd);
  RINGD_RETURN_IF_ERROR(StartProcess("ringd-scheduler",
                                     {"--embedded", "--listen", socket, "--state-directory",
                                      run + "/state", "--lifeline-fd", lifeline},
                                     end.get(), &scheduler_));
  return StartProcess(
      "ringd",
      {"--embedded", "--scheduler", socket, "--run-directory", run + "/d", "--state-directory",
       run + "/d-state", "--log-directory", run + "/log", "--slots", absl::StrCat(options_.slots),
       "--lifeline-fd", lifeline, "--name", options_.node_name},
      end.get(), &daemon_);
}

absl::Status EmbeddedCluster::CheckHealth() const {
  for (const Process* process : {&scheduler_, &daemon_}) {
    if (!HasEnded(process->child)) continue;
    return absl::InternalError(
        absl::StrCat(process->name, " has ended; the end of its log:\n",
                     LastLines(ReadFileText(process->log), kLogLines, "  ")));
  }
  return absl::OkStatus();
}

absl::Status EmbeddedCluster::CheckStart() const {
  if (options_.interrupted()) return absl::CancelledError("interrupted");
  return CheckHealth();
}

absl::Status EmbeddedCluster::AwaitSocket() {
  const std::string path = directory_->path() + "/s.sock";
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (true) {
    RINGD_RETURN_IF_ERROR(CheckStart());
    UniqueFd probe;
    if (ConnectUnix(path, SOCK_STREAM, &probe) == 0) return absl::OkStatus();
    if (absl::Now() > deadline) {
      return absl::InternalError(absl::StrCat(
          "ringd-scheduler did not listen within ", absl::FormatDuration(kStartTimeout),
          "; the end of its log:\n", LastLines(ReadFileText(scheduler_.log), kLogLines, "  ")));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status EmbeddedCluster::AwaitNode() {
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (true) {
    RINGD_RETURN_IF_ERROR(CheckStart());
    RINGD_ASSIGN_OR_RETURN(const auto nodes, client_->Nodes());
    if (!nodes.empty() && nodes[0].state() == "up") {
      if (nodes[0].version() == kVersion) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat(SiblingProgram("ringd"), " is version ",
                                                        nodes[0].version(), ", this is ringctl ",
                                                        kVersion, ": install one version of both"));
    }
    if (absl::Now() > deadline) {
      return absl::InternalError(absl::StrCat(
          "ringd did not join within ", absl::FormatDuration(kStartTimeout),
          "; the end of its log:\n", LastLines(ReadFileText(daemon_.log), kLogLines, "  ")));
    }
    absl::SleepFor(kPollInterval);
  }
}

}  // namespace ringd::cli
