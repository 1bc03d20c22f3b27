#include "worker/testing/worker_harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/unix_socket.h"
#include "proto/attach.h"

namespace ringd::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr char kWorkerProgram[] = "worker/ringd-worker";  // In the test's runfiles.

std::string MakeDirectory() {
  std::string pattern = "/tmp/ringd-worker-test-XXXXXX";
  return mkdtemp(pattern.data());
}

template <typename Done>
bool WaitUntil(Done done) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace

WorkerTest::WorkerTest() : directory_(MakeDirectory()), daemon_(directory_) {
  daemon_.Start();
  spec_.set_job("j-1");
  spec_.set_token(daemon_.token());
  spec_.set_node("node-a");
  spec_.mutable_layout()->set_rank(3);
  spec_.mutable_layout()->set_size(4);
  spec_.mutable_layout()->set_local_rank(1);
  spec_.mutable_layout()->set_local_size(2);
  spec_.mutable_layout()->set_node_rank(1);
  spec_.mutable_layout()->set_node_count(2);
  spec_.set_daemon_socket("unix:" + daemon_.socket());
  spec_.set_worker_socket(directory_ + "/w.sock");
  spec_.set_working_directory(directory_);
  spec_.set_log_path(directory_ + "/log/rank-3.log");
  spec_.set_embedded(true);
  spec_.mutable_grace()->set_seconds(5);
  spec_.set_arena_bytes(16u << 20);
  spec_.set_arena_max_bytes(64u << 20);
  spec_.set_slots_used(2);
  spec_.set_umask(022);
  (*spec_.mutable_environment())["PATH"] = "/usr/bin:/bin";
}

WorkerTest::~WorkerTest() {
  if (worker_.pid > 0) kill(worker_.pid, SIGKILL);
  daemon_.Kill();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void WorkerTest::SetCommand(const std::vector<std::string>& command) {
  spec_.clear_command();
  for (const std::string& word : command) spec_.add_command(word);
}

absl::StatusOr<Child> WorkerTest::Spawn(const std::string& mode, int output) {
  const UniqueFd memory(memfd_create("spec", MFD_CLOEXEC));
  const std::string data = spec_.SerializeAsString();
  if (write(memory.get(), data.data(), data.size()) != static_cast<ssize_t>(data.size())) abort();
  SpawnOptions options;
  options.argv = {kWorkerProgram, mode, "3"};
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    const char* value = getenv(name);
    if (value != nullptr) options.environment.push_back(absl::StrCat(name, "=", value));
  }
  options.new_session = true;
  options.fds = {{1, output}, {2, STDERR_FILENO}, {3, memory.get()}};
  return ringd::Spawn(options);
}

void WorkerTest::StartWorker() {
  absl::StatusOr<Child> child = Spawn("--spec-fd", STDERR_FILENO);
  ASSERT_TRUE(child.ok()) << child.status();
  worker_ = *std::move(child);
}

int WorkerTest::RunCheck(std::string* output) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) abort();
  absl::StatusOr<Child> child = Spawn("--check-fd", ends[1]);
  close(ends[1]);
  const UniqueFd reader(ends[0]);
  char buffer[4096];
  ssize_t got;
  while ((got = read(reader.get(), buffer, sizeof(buffer))) > 0) output->append(buffer, got);
  const auto status = WaitForExit(*child, kPatience);
  return status.ok() && status->signal == 0 ? status->exit_code : -1;
}

pid_t WorkerTest::ExpectStarted() {
  const auto report = daemon_.NextReport();
  EXPECT_TRUE(report.has_value() && report->has_started())
      << (report ? report->ShortDebugString() : "no report");
  return report ? report->started().pid() : 0;
}

node::v1::RankExited WorkerTest::ExpectExited() {
  const auto report = daemon_.NextReport();
  EXPECT_TRUE(report.has_value() && report->has_exited())
      << (report ? report->ShortDebugString() : "no report");
  return report ? report->exited() : node::v1::RankExited();
}

std::string WorkerTest::ExpectFailed() {
  const auto report = daemon_.NextReport();
  EXPECT_TRUE(report.has_value() && report->has_failed())
      << (report ? report->ShortDebugString() : "no report");
  return report ? report->failed().reason() : "";
}

void WorkerTest::Acknowledge() {
  node::v1::WorkerOrder order;
  order.mutable_acknowledge();
  daemon_.Order(order);
}

void WorkerTest::Terminate(absl::Duration grace) {
  node::v1::WorkerOrder order;
  order.mutable_terminate()->mutable_grace()->set_nanos(
      static_cast<int>(absl::ToInt64Nanoseconds(grace)));
  order.mutable_terminate()->set_reason("test");
  daemon_.Order(order);
}

void WorkerTest::SendSignal(int signal) {
  node::v1::WorkerOrder order;
  order.mutable_signal()->set_signal(signal);
  daemon_.Order(order);
}

int WorkerTest::WaitForWorker() {
  const auto status = WaitForExit(worker_, kPatience);
  if (!status.ok()) return -1;
  worker_.pid = 0;
  return status->signal != 0 ? 128 + status->signal : status->exit_code;
}

node::v1::RankExited WorkerTest::RunToEnd(const std::string& script) {
  SetCommand(Shell(script));
  StartWorker();
  ExpectStarted();
  const node::v1::RankExited exited = ExpectExited();
  Acknowledge();
  EXPECT_EQ(WaitForWorker(), 0);
  return exited;
}

std::string WorkerTest::ReadFile(const std::string& name) const {
  std::ifstream file(directory_ + "/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string WorkerTest::ReadIndex() const {
  const std::string bytes = ReadFile("log/rank-3.log.index");
  std::string words;
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    uint32_t record;
    memcpy(&record, bytes.data() + i, 4);
    absl::StrAppend(&words, words.empty() ? "" : ", ", record >> 31 ? "err " : "out ",
                    record & 0x7fffffff);
  }
  return words;
}

bool WorkerTest::WaitForFile(const std::string& name) const {
  return WaitUntil([&] { return !ReadFile(name).empty(); });
}

bool WorkerTest::WaitForDeath(pid_t pid) {
  return WaitUntil([&] {
    std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
    std::string line;
    return !std::getline(file, line) || line.find(") Z ") != std::string::npos;
  });
}

WorkerTest::Answer WorkerTest::SayHello(uint32_t layout_version) const {
  Answer answer;
  EXPECT_EQ(ConnectUnix(spec_.worker_socket(), SOCK_SEQPACKET, &answer.socket), 0);
  attach::ClientHello hello;
  memset(&hello, 0, sizeof(hello));
  hello.header = {attach::Kind::kClientHello, attach::kVersion};
  hello.layout_version = layout_version;
  hello.abi_version = 1;
  hello.pid = getpid();
  Ask(&answer, &hello, sizeof(hello));
  return answer;
}

void WorkerTest::Ask(Answer* connection, const void* request, size_t bytes) {
  EXPECT_EQ(SendPacket(connection->socket.get(), request, bytes, nullptr, 0), 0);
  connection->packet.resize(4096);
  const ssize_t got =
      ReceivePacket(connection->socket.get(), connection->packet.data(), connection->packet.size(),
                    &connection->fds, absl::ToInt64Microseconds(kPatience));
  EXPECT_GE(got, 0) << strerror(static_cast<int>(-got));
  connection->packet.resize(got > 0 ? got : 0);
}

}  // namespace ringd::worker
