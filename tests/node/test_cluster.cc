#include "tests/node/test_cluster.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/version.h"
#include "common/rpc/rpc.h"
#include "gtest/gtest.h"

namespace ringd::tests {
namespace {

bool IsFinal(cluster::v1::JobState state) {
  return state == cluster::v1::JOB_STATE_SUCCEEDED || state == cluster::v1::JOB_STATE_FAILED ||
         state == cluster::v1::JOB_STATE_CANCELLED || state == cluster::v1::JOB_STATE_PREEMPTED;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

UniqueFd OpenLog(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

}  // namespace

bool Eventually(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

bool Lives(pid_t pid) {
  const std::string stat = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] != 'Z';
}

namespace {

// Those with `text` in /proc/PID/`file`.
std::vector<pid_t> FindProcesses(const std::string& text, const char* file) {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  while (const dirent* entry = readdir(proc.get())) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == getpid()) continue;
    if (ReadAll(absl::StrCat("/proc/", pid, "/", file)).find(text) != std::string::npos &&
        Lives(pid)) {
      pids.push_back(pid);
    }
  }
  return pids;
}

}  // namespace

TestCluster::TestCluster(bool embedded) : embedded_(embedded) {
  char name[] = "/tmp/rn-XXXXXX";  // Short: sockets live below it.
  if (mkdtemp(name) == nullptr) abort();
  directory_ = name;
  StartScheduler();
}

TestCluster::~TestCluster() {
  if (testing::Test::HasFailure()) {
    for (const auto& [name, child] : daemons_) {
      std::fprintf(stderr, "---- daemon %s\n%s\n", name.c_str(), DaemonOutput(name).c_str());
    }
    std::fprintf(stderr, "---- scheduler\n%s\n",
                 ReadAll(absl::StrCat(directory_, "/scheduler.log")).c_str());
  }
  for (auto& [name, child] : daemons_) {
    if (Lives(child.pid)) Kill(child, SIGKILL);
  }
  if (Lives(scheduler_.pid)) Kill(scheduler_, SIGKILL);
  for (const pid_t pid : FindProcesses(absl::StrCat("RINGD_SOCKET=", directory_), "environ"))
    kill(pid, SIGKILL);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string TestCluster::Program(const std::string& path) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/ringd/", path);
}

std::vector<std::string> TestCluster::Environment() const {
  return {"PATH=/usr/local/bin:/usr/bin:/bin", absl::StrCat("HOME=", directory_)};
}

std::string TestCluster::scheduler_address() const {
  return absl::StrCat("unix:", directory_, "/s.sock");
}

void TestCluster::StartScheduler() {
  const UniqueFd log = OpenLog(absl::StrCat(directory_, "/scheduler.log"));
  SpawnOptions options;
  options.argv = {Program("scheduler/ringd-scheduler"),
                  "--listen",
                  scheduler_address(),
                  "--state-directory",
                  absl::StrCat(directory_, "/s"),
                  "--heartbeat-interval",
                  "200ms"};
  if (embedded_) options.argv.push_back("--embedded");
  options.environment = Environment();
  options.fds = {{2, log.get()}};
  scheduler_ = Spawn(options).value();
  const bool answers = Eventually([this] {
    // A channel that found nobody waits long before it tries again.
    stub_ = cluster::v1::Cluster::NewStub(Connect(scheduler_address(), {}).value());
    grpc::ClientContext context;
    cluster::v1::VersionResponse response;
    return stub_->GetVersion(&context, {}, &response).ok();
  });
  EXPECT_TRUE(answers) << ReadAll(absl::StrCat(directory_, "/scheduler.log"));
}

Child& TestCluster::StartDaemon(const std::string& name, const std::vector<std::string>& extra,
                                bool wait) {
  const UniqueFd log = OpenLog(absl::StrCat(directory_, "/", name, ".log"));
  SpawnOptions options;
  options.argv = {Program("daemon/ringd"),
                  "--name",
                  name,
                  "--slots",
                  "4",
                  "--scheduler",
                  scheduler_address(),
                  "--run-directory",
                  absl::StrCat(directory_, "/", name),
                  "--state-directory",
                  absl::StrCat(directory_, "/", name, "-state"),
                  "--worker-program",
                  Program("worker/ringd-worker"),
                  "--arena-bytes",
                  "16MB",
                  "--reattach-timeout",
                  "20s",
                  "--log-level",
                  "debug"};
  if (embedded_) options.argv.push_back("--embedded");
  options.argv.insert(options.argv.end(), extra.begin(), extra.end());
  options.environment = Environment();
  options.fds = {{2, log.get()}};
  for (size_t i = 0; i + 1 < extra.size(); ++i) {
    if (extra[i] == "--lifeline-fd")
      options.fds[std::atoi(extra[i + 1].c_str())] = std::atoi(extra[i + 1].c_str());
  }
  Child& child = daemons_[name] = Spawn(options).value();
  if (!wait) return child;
  const bool joined = Eventually([&] {
    grpc::ClientContext context;
    cluster::v1::NodesResponse response;
    if (!stub_->Nodes(&context, {}, &response).ok()) return false;
    for (const cluster::v1::NodeState& node : response.nodes()) {
      if (node.name() == name && node.state() == "up" && node.daemon_pid() == child.pid)
        return true;
    }
    return false;
  });
  EXPECT_TRUE(joined) << DaemonOutput(name);
  return child;
}

void TestCluster::Kill(Child& child, int signal) {
  kill(child.pid, signal);
  if (signal == SIGKILL) WaitForExit(child, absl::Seconds(10)).IgnoreError();
}

ExitStatus TestCluster::WaitForDaemon(const std::string& name, absl::Duration timeout) {
  const absl::StatusOr<ExitStatus> status = WaitForExit(daemons_.at(name), timeout);
  EXPECT_TRUE(status.ok()) << status.status() << DaemonOutput(name);
  return status.ok() ? *status : ExitStatus{-1, 0};
}

std::string TestCluster::DaemonOutput(const std::string& name) const {
  return ReadAll(absl::StrCat(directory_, "/", name, ".log"));
}

cluster::v1::JobSpec TestCluster::Shell(const std::string& script, int ranks) const {
  cluster::v1::JobSpec spec;
  spec.set_name("test");
  for (const char* word : {"/bin/sh", "-c"}) spec.add_command(word);
  spec.add_command(script);
  spec.set_ranks(ranks);
  spec.set_working_directory(directory_);
  (*spec.mutable_environment())["PATH"] = "/usr/bin:/bin";
  spec.set_umask(022);
  spec.mutable_grace()->set_seconds(1);
  return spec;
}

std::string TestCluster::Submit(const cluster::v1::JobSpec& spec, std::string* error) {
  grpc::ClientContext context;
  cluster::v1::SubmitRequest request;
  *request.mutable_spec() = spec;
  static int count = 0;
  request.set_request_id(absl::StrCat("request-", getpid(), "-", ++count));
  request.set_version(kVersion);
  cluster::v1::SubmitResponse response;
  const grpc::Status status = stub_->Submit(&context, request, &response);
  if (status.ok()) return response.job();
  if (error != nullptr) *error = status.error_message();
  EXPECT_TRUE(error != nullptr) << status.error_message();
  return "";
}

cluster::v1::Job TestCluster::Describe(const std::string& job) {
  grpc::ClientContext context;
  cluster::v1::JobRequest request;
  request.set_job(job);
  cluster::v1::Job response;
  const grpc::Status status = stub_->Describe(&context, request, &response);
  if (!status.ok()) response.set_reason(status.error_message());
  return response;
}

cluster::v1::Job TestCluster::Wait(const std::string& job, absl::Duration timeout) {
  cluster::v1::Job last;
  const bool ended = Eventually(
      [&] {
        last = Describe(job);
        return IsFinal(last.state());
      },
      timeout);
  EXPECT_TRUE(ended) << last.ShortDebugString();
  return last;
}

cluster::v1::Job TestCluster::WaitForRunning(const std::string& job) {
  cluster::v1::Job last;
  const bool running = Eventually([&] {
    last = Describe(job);
    if (last.state() != cluster::v1::JOB_STATE_RUNNING) return false;
    for (const cluster::v1::Rank& rank : last.rank()) {
      if (rank.pid() == 0) return false;
    }
    return true;
  });
  EXPECT_TRUE(running) << last.ShortDebugString();
  return last;
}

std::string TestCluster::Logs(const std::string& job, int rank, int tail_lines) {
  grpc::ClientContext context;
  cluster::v1::LogsRequest request;
  request.set_job(job);
  request.set_rank(rank);
  request.set_tail_lines(tail_lines);
  const auto reader = stub_->Logs(&context, request);
  cluster::v1::LogChunk chunk;
  std::string text;
  while (reader->Read(&chunk)) {
    for (const cluster::v1::LogPiece& piece : chunk.pieces()) text += piece.data();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return text;
}

}  // namespace ringd::tests
