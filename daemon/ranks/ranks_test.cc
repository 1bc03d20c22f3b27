// Processes of ranks: real ones, made of /bin/sh.
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/process/process.h"
#include "common/sync/mutex.h"
#include "daemon/ranks/process_watcher.h"
#include "daemon/ranks/rank_spawner.h"
#include "daemon/ranks/rank_sweeper.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(10);

Child Shell(const std::string& script, const std::string& socket) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", script};
  options.environment = {"PATH=/usr/bin:/bin", "RINGD_SOCKET=" + socket};
  options.new_session = true;
  return ringd::Spawn(options).value();
}

bool Ends(const Child& child) { return WaitForExit(child, kLong).ok(); }

class RanksTest : public testing::Test {
 protected:
  RanksTest() : directory_("/tmp/ranks-XXXXXX") { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~RanksTest() override { std::filesystem::remove_all(directory_); }
  std::string WriteProgram(const std::string& name, const std::string& script) const {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0755);
    return path;
  }
  std::string ReadFile(const std::string& name) const {
    std::ifstream file(absl::StrCat(directory_, "/", name));
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }
  cluster::v1::Prepare Order() const {
    cluster::v1::Prepare order;
    order.set_job("j-1");
    order.set_generation(1);
    for (int i = 0; i < 2; ++i) {
      auto* node = order.add_nodes();
      node->set_data_address(absl::StrCat("10.0.0.", i + 1, ":7472"));
      node->set_first_rank(i * 2);
      node->set_rank_count(2);
    }
    order.set_node_index(1);
    order.set_token(std::string(32, 't'));
    order.set_uid(getuid());
    order.mutable_spec()->add_command("true");
    order.mutable_spec()->mutable_grace()->set_seconds(7);
    return order;
  }
  SpawnerOptions Options(const std::string& worker) const {
    SpawnerOptions options;
    options.node = "b";
    options.worker_program = worker;
    options.run_directory = directory_;
    options.log_directory = directory_ + "/logs";
    options.daemon_socket = directory_ + "/ringd.sock";
    mkdir((directory_ + "/w").c_str(), 0700);
    mkdir((directory_ + "/logs").c_str(), 0700);
    return options;
  }
  std::string directory_;
};

TEST_F(RanksTest, SweepRank_KillsTheSessionAndWhatCarriesItsSocket) {
  const std::string socket = directory_ + "/0.sock";
  const Child rank = Shell("sleep 70 & sleep 70", socket);
  const Child escaped = Shell("exec sleep 71", socket);  // A session of its own.
  const Child stranger = Shell("exec sleep 72", directory_ + "/1.sock");
  absl::SleepFor(absl::Milliseconds(100));
  SweepOptions options;
  options.uid = getuid();
  options.worker_socket = socket;
  options.pid = rank.pid;
  EXPECT_EQ(SweepRank(options, kLong), 0);
  EXPECT_TRUE(Ends(rank));
  EXPECT_TRUE(Ends(escaped));
  EXPECT_EQ(kill(stranger.pid, 0), 0);
  options.worker_socket = "";
  options.pid = 0;
  options.worker_pid = stranger.pid;
  EXPECT_EQ(SweepRank(options, kLong), 0);
  EXPECT_TRUE(Ends(stranger));
}

TEST_F(RanksTest, SweepRank_ProcessesOfAnotherUser_AreLeftAlone) {
  const Child rank = Shell("exec sleep 73", directory_ + "/0.sock");
  absl::SleepFor(absl::Milliseconds(50));
  SweepOptions options;
  options.uid = getuid() + 1;
  options.worker_socket = directory_ + "/0.sock";
  options.pid = rank.pid;
  EXPECT_EQ(SweepRank(options, kLong), 0);
  EXPECT_EQ(kill(rank.pid, 0), 0);
  kill(rank.pid, SIGKILL);
  EXPECT_TRUE(Ends(rank));
}

TEST_F(RanksTest, ProcessStartTime_NamesAProcess) {
  EXPECT_GT(ProcessStartTime(getpid()), 0u);
  EXPECT_EQ(ProcessStartTime(getpid()), ProcessStartTime(getpid()));
  EXPECT_EQ(ProcessStartTime(0), 0u);
}

TEST_F(RanksTest, ProcessWatcher_TellsHowChildrenEnd) {
  const auto watcher = ProcessWatcher::Create().value();
  Mutex mu;
  CondVar changed;
  std::map<std::string, std::string> ends;
  const auto watch = [&](const std::string& name, Child child) {
    watcher->Watch(child.pid, std::move(child.pidfd), [&, name](const std::string& how) {
      MutexLock lock(&mu);
      ends[name] = how;
      changed.Signal();
    });
  };
  watch("code", Shell("exit 3", ""));
  watch("signal", Shell("kill -9 $$", ""));
  MutexLock lock(&mu);
  const absl::Time deadline = absl::Now() + kLong;
  while (ends.size() < 2 && absl::Now() < deadline)
    changed.WaitWithTimeout(&mu, absl::Milliseconds(50));
  EXPECT_EQ(ends["code"], "exited with code 3");
  EXPECT_EQ(ends["signal"], "was killed by SIGKILL");
}

TEST_F(RanksTest, MakeSpec_HasTheRanksPlaceAndPaths) {
  SpawnerOptions options = Options("/bin/true");
  options.reattach_timeout = absl::Seconds(60);
  const RankSpawner spawner(options);
  const node::v1::WorkerSpec spec = spawner.MakeSpec(Order(), 3);
  EXPECT_EQ(spec.layout().rank(), 3);
  EXPECT_EQ(spec.layout().size(), 4);
  EXPECT_EQ(spec.layout().local_rank(), 1);
  EXPECT_EQ(spec.layout().local_size(), 2);
  EXPECT_EQ(spec.layout().node_rank(), 1);
  EXPECT_EQ(spec.layout().node_count(), 2);
  EXPECT_EQ(spec.worker_socket(), directory_ + "/w/j-1/3.sock");
  EXPECT_EQ(spec.log_path(), directory_ + "/logs/j-1/rank-3.log");
  EXPECT_EQ(spec.daemon_socket(), "unix:" + directory_ + "/ringd.sock");
  EXPECT_EQ(spec.master_address(), "10.0.0.1");
  EXPECT_EQ(spec.master_port(), spawner.MakeSpec(Order(), 2).master_port());
  EXPECT_EQ(spec.grace().seconds(), 7);
  EXPECT_EQ(spec.reattach_timeout().seconds(), 60);
  EXPECT_FALSE(spec.switch_user());
  cluster::v1::Prepare order = Order();
  order.set_embedded(true);
  order.mutable_spec()->set_output_directory("/out");
  EXPECT_EQ(spawner.MakeSpec(order, 3).reattach_timeout().seconds(), 0);
  EXPECT_EQ(spawner.MakeSpec(order, 3).log_path(), "/out/rank-3.log");
}

TEST_F(RanksTest, CheckCommand_ExitCodesOfTheHelper_AreTold) {
  const auto check = [&](const std::string& script) {
    return RankSpawner(Options(WriteProgram("worker", script))).CheckCommand(Order());
  };
  EXPECT_TRUE(check("test \"$1 $2\" = '--check-fd 3' && test -s /dev/fd/3").ok());
  const absl::Status bad = check("echo 'no such program: pyhton' >&2; exit 2");
  EXPECT_TRUE(absl::IsInvalidArgument(bad));
  EXPECT_EQ(bad.message(), "no such program: pyhton");
  const absl::Status broken = check("echo crashed >&2; exit 1");
  EXPECT_TRUE(absl::IsUnavailable(broken));
  EXPECT_THAT(std::string(broken.message()), HasSubstr("crashed"));
  EXPECT_TRUE(absl::IsUnavailable(RankSpawner(Options("/nonexistent")).CheckCommand(Order())));
}

TEST_F(RanksTest, CheckCommand_SocketPathTooLong_IsNamed) {
  SpawnerOptions options = Options("/bin/true");
  options.run_directory = "/" + std::string(100, 'x');
  const absl::Status status = RankSpawner(options).CheckCommand(Order());
  EXPECT_THAT(std::string(status.message()), HasSubstr("shorter run_directory"));
}

TEST_F(RanksTest, Spawn_GivesTheSpecAndCleanEnvironmentAndRemovesOldLogs) {
  setenv("SECRET", "x", 1);
  const std::string worker =
      WriteProgram("worker", absl::StrCat("cat <&3 >", directory_, "/spec; env >", directory_,
                                          "/env; ls /proc/self/fd >", directory_, "/fds"));
  const RankSpawner spawner(Options(worker));
  mkdir((directory_ + "/logs/j-1").c_str(), 0700);
  std::ofstream(directory_ + "/logs/j-1/rank-2.log") << "old";
  Child child = spawner.Spawn(Order(), 2).value();
  EXPECT_TRUE(Ends(child));
  node::v1::WorkerSpec spec;
  ASSERT_TRUE(spec.ParseFromString(ReadFile("spec")));
  EXPECT_EQ(spec.layout().rank(), 2);
  EXPECT_EQ(spec.token(), std::string(32, 't'));
  EXPECT_EQ(ReadFile("env").find("SECRET"), std::string::npos);
  EXPECT_NE(access((directory_ + "/logs/j-1/rank-2.log").c_str(), F_OK), 0);
  EXPECT_EQ(access((directory_ + "/w/j-1").c_str(), F_OK), 0);
  spawner.RemoveSockets("j-1");
  EXPECT_NE(access((directory_ + "/w/j-1").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace ringd::daemon
