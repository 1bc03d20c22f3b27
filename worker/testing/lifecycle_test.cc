// From start to report: commands, exit codes, signals, what is left behind, the daemon's death.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "worker/testing/worker_harness.h"

namespace ringd::worker {
namespace {

class LifecycleTest : public WorkerTest {};

TEST_F(LifecycleTest, ExitCode_Reported) {
  const auto exited = RunToEnd("echo trouble >&2; exit 7");
  EXPECT_EQ(exited.exit_code(), 7);
  EXPECT_EQ(exited.signal(), 0);
  EXPECT_EQ(exited.stderr_tail(), "trouble");
  EXPECT_EQ(exited.reason(), "");
  EXPECT_FALSE(exited.oom_killed());
  EXPECT_GT(exited.peak_memory_bytes(), 100000u);
  EXPECT_NE(access(spec_.worker_socket().c_str(), F_OK), 0);  // Removed.
}

TEST_F(LifecycleTest, Environment_IdentityAndUsersAlone) {
  (*spec_.mutable_environment())["GREETING"] = "hello world";
  EXPECT_EQ(RunToEnd("env > env.txt; pwd > pwd.txt; umask > umask.txt").exit_code(), 0);
  const std::string environment = ReadFile("env.txt");
  EXPECT_TRUE(absl::StrContains(environment, "RINGD_RANK=3\n"));
  EXPECT_TRUE(absl::StrContains(environment, "RINGD_SOCKET=" + spec_.worker_socket() + "\n"));
  EXPECT_TRUE(absl::StrContains(environment, "GREETING=hello world\n"));
  EXPECT_FALSE(absl::StrContains(environment, "TEST_TMPDIR"));  // The worker's own.
  EXPECT_EQ(ReadFile("pwd.txt"), directory_ + "\n");
  EXPECT_EQ(ReadFile("umask.txt"), "0022\n");
}

TEST_F(LifecycleTest, Descriptors_StandardOnesAlone) {
  RunToEnd("ls /proc/self/fd | tr '\\n' ' ' > fds.txt; readlink /proc/self/fd/0 > stdin.txt");
  EXPECT_EQ(ReadFile("fds.txt"), "0 1 2 3 ");  // 3: ls reading the folder.
  EXPECT_EQ(ReadFile("stdin.txt"), "/dev/null\n");
}

TEST_F(LifecycleTest, Output_LinesInLogAndIndex) {
  RunToEnd(
      "printf 'one\\n'; sleep 0.2; printf 'two\\n' >&2; sleep 0.2; printf '10%%\\r'; sleep 0.2; "
      "printf 'tail'");
  EXPECT_EQ(ReadFile("log/rank-3.log"), "one\ntwo\n10%\rtail");
  EXPECT_EQ(ReadIndex(), "out 4, err 4, out 4, out 4");
}

TEST_F(LifecycleTest, UnfinishedLine_ShownSoon) {
  SetCommand(Shell("printf 'loading...'; sleep 30"));
  StartWorker();
  ExpectStarted();
  EXPECT_TRUE(WaitForFile("log/rank-3.log"));
  EXPECT_EQ(ReadFile("log/rank-3.log"), "loading...");
  Terminate(absl::Milliseconds(100));
  EXPECT_EQ(ExpectExited().signal(), SIGTERM);
}

TEST_F(LifecycleTest, MuchOutput_NothingLost) {
  RunToEnd("i=0; while [ $i -lt 20000 ]; do echo \"line $i of many\"; i=$((i+1)); done");
  std::string expected;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&expected, "line ", i, " of many\n");
  EXPECT_TRUE(ReadFile("log/rank-3.log") == expected);
}

TEST_F(LifecycleTest, KilledFromOutside_Said) {
  SetCommand(Shell("exec sleep 30"));
  StartWorker();
  kill(ExpectStarted(), SIGKILL);
  const auto exited = ExpectExited();
  EXPECT_EQ(exited.signal(), SIGKILL);
  EXPECT_EQ(exited.reason(),
            "killed by SIGKILL from outside ringd (the kernel's OOM killer, or kill -9)");
}

TEST_F(LifecycleTest, Terminate_TermFirst) {
  SetCommand(
      Shell("exec 2>/dev/null; trap 'echo bye; exit 3' TERM; echo ready > ready; while :; do sleep "
            "0.01; done"));
  StartWorker();
  ExpectStarted();
  ASSERT_TRUE(WaitForFile("ready"));
  Terminate(absl::Milliseconds(900));
  EXPECT_EQ(ExpectExited().exit_code(), 3);
  EXPECT_EQ(ReadFile("log/rank-3.log"), "bye\n");
}

TEST_F(LifecycleTest, Terminate_IgnoredTerm_KilledAfterGrace) {
  SetCommand(Shell("trap '' TERM; echo ready > ready; while :; do sleep 0.01; done"));
  StartWorker();
  ExpectStarted();
  ASSERT_TRUE(WaitForFile("ready"));
  const absl::Time start = absl::Now();
  Terminate(absl::Milliseconds(300));
  const auto exited = ExpectExited();
  EXPECT_EQ(exited.signal(), SIGKILL);
  EXPECT_EQ(exited.reason(), "");
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(299));
}

TEST_F(LifecycleTest, Terminate_StoppedRank_EndsByTerm) {
  SetCommand(Shell("exec sleep 30"));
  StartWorker();
  const pid_t pid = ExpectStarted();
  kill(pid, SIGSTOP);
  Terminate(absl::Milliseconds(900));
  EXPECT_EQ(ExpectExited().signal(), SIGTERM);
}

TEST_F(LifecycleTest, WorkerGetsTerm_EndsRank) {
  SetCommand(Shell("exec sleep 30"));
  StartWorker();
  ExpectStarted();
  kill(worker_.pid, SIGTERM);
  EXPECT_EQ(ExpectExited().signal(), SIGTERM);
  Acknowledge();
  EXPECT_EQ(WaitForWorker(), 0);
}

TEST_F(LifecycleTest, Signal_ReachesTheDirectChild) {
  SetCommand(
      Shell("trap 'echo got; exit 0' USR1; echo ready > ready; while :; do sleep 0.01; done"));
  StartWorker();
  ExpectStarted();
  ASSERT_TRUE(WaitForFile("ready"));
  SendSignal(SIGUSR1);
  EXPECT_EQ(ExpectExited().exit_code(), 0);
  EXPECT_EQ(ReadFile("log/rank-3.log"), "got\n");
}

TEST_F(LifecycleTest, LeftBehind_DaemonisedHolderOfThePipe_Ended) {
  SetCommand(
      Shell("setsid sh -c 'echo $$ > orphan; exec sleep 30' & while [ ! -s orphan ]; do sleep "
            "0.01; done"));
  StartWorker();
  ExpectStarted();
  const absl::Time start = absl::Now();
  EXPECT_EQ(ExpectExited().exit_code(), 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_TRUE(WaitForDeath(std::stoi(ReadFile("orphan"))));
}

TEST_F(LifecycleTest, LeftBehind_IgnoresTerm_Killed) {
  spec_.mutable_grace()->set_seconds(0);
  spec_.mutable_grace()->set_nanos(200'000'000);
  SetCommand(
      Shell("setsid sh -c 'trap \"\" TERM; echo $$ > orphan; while :; do sleep 0.01; done' & "
            "while [ ! -s orphan ]; do sleep 0.01; done; exit 5"));
  StartWorker();
  ExpectStarted();
  const auto exited = ExpectExited();
  EXPECT_EQ(exited.exit_code(), 5);
  EXPECT_TRUE(WaitForDeath(std::stoi(ReadFile("orphan"))));
}

TEST_F(LifecycleTest, NoSuchProgram_StartFailed) {
  SetCommand({"no-such-program"});
  StartWorker();
  EXPECT_EQ(ExpectFailed(), "no-such-program: no such program (PATH=/usr/bin:/bin)");
  Acknowledge();
  EXPECT_EQ(WaitForWorker(), 0);
}

TEST_F(LifecycleTest, NotAProgram_StartFailed) {
  std::ofstream(directory_ + "/broken") << "#!/no/such/interpreter\n";
  chmod((directory_ + "/broken").c_str(), 0755);
  SetCommand({"./broken"});
  StartWorker();
  EXPECT_EQ(ExpectFailed(), directory_ + "/./broken: No such file or directory");
}

TEST_F(LifecycleTest, ScriptWithoutInterpreter_RunByTheShell) {
  std::ofstream(directory_ + "/script") << "exit 9\n";
  chmod((directory_ + "/script").c_str(), 0755);
  SetCommand({"./script"});
  StartWorker();
  ExpectStarted();
  EXPECT_EQ(ExpectExited().exit_code(), 9);
}

TEST_F(LifecycleTest, LogNotWritable_StartFailed) {
  spec_.set_log_path("/proc/rank-3.log");
  SetCommand(Shell("true"));
  StartWorker();
  EXPECT_TRUE(absl::StartsWith(ExpectFailed(), "opening the rank's log /proc/rank-3.log: "));
}

TEST_F(LifecycleTest, Affinity_Bound) {
  spec_.set_bind_cpus("0");
  RunToEnd(
      "grep Cpus_allowed_list /proc/self/status > cpus.txt; echo $OMP_NUM_THREADS >> cpus.txt");
  EXPECT_EQ(ReadFile("cpus.txt"), "Cpus_allowed_list:\t0\n1\n");
}

TEST_F(LifecycleTest, AttachRefused_NothingStarted) {
  daemon_.RefuseAttach(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job"));
  SetCommand(Shell("echo ran > ran"));
  StartWorker();
  EXPECT_EQ(WaitForWorker(), 1);
  EXPECT_EQ(ReadFile("ran"), "");
}

TEST_F(LifecycleTest, Embedded_DaemonDies_RankEnds) {
  SetCommand(Shell("exec sleep 30"));
  StartWorker();
  const pid_t pid = ExpectStarted();
  daemon_.Kill();
  EXPECT_TRUE(WaitForDeath(pid));
  EXPECT_EQ(WaitForWorker(), 1);
}

TEST_F(LifecycleTest, Embedded_WorkerKilled_RankDiesWithIt) {
  SetCommand(Shell("exec sleep 30"));
  StartWorker();
  const pid_t pid = ExpectStarted();
  kill(worker_.pid, SIGKILL);
  EXPECT_TRUE(WaitForDeath(pid));
}

TEST_F(LifecycleTest, Cluster_DaemonComesBack_SameRankGoesOn) {
  spec_.set_embedded(false);
  spec_.mutable_reattach_timeout()->set_seconds(20);
  SetCommand(Shell("while [ ! -e finish ]; do sleep 0.01; done; exit 4"));
  StartWorker();
  const pid_t pid = ExpectStarted();
  daemon_.Kill();
  daemon_.Start();
  EXPECT_EQ(ExpectStarted(), pid);
  std::ofstream(directory_ + "/finish") << "x";
  EXPECT_EQ(ExpectExited().exit_code(), 4);
  daemon_.Kill();  // Before it acknowledged.
  daemon_.Start();
  EXPECT_EQ(ExpectExited().exit_code(), 4);
  Acknowledge();
  EXPECT_EQ(WaitForWorker(), 0);
}

TEST_F(LifecycleTest, Cluster_DaemonStaysAway_RankEnds) {
  spec_.set_embedded(false);
  spec_.mutable_reattach_timeout()->set_nanos(300'000'000);
  SetCommand(Shell("exec sleep 30"));
  StartWorker();
  const pid_t pid = ExpectStarted();
  daemon_.Kill();
  EXPECT_TRUE(WaitForDeath(pid));
  EXPECT_EQ(WaitForWorker(), 1);
}

TEST_F(LifecycleTest, Check_GoodCommand_Silent) {
  SetCommand(Shell("true"));
  std::string output;
  EXPECT_EQ(RunCheck(&output), 0);
  EXPECT_EQ(output, "");
}

TEST_F(LifecycleTest, Check_MissingScript_OneLine) {
  SetCommand({"python3", "-u", "trian.py"});
  std::ofstream(directory_ + "/python3") << "#!/bin/sh\n";
  chmod((directory_ + "/python3").c_str(), 0755);
  (*spec_.mutable_environment())["PATH"] = ".";
  std::string output;
  EXPECT_EQ(RunCheck(&output), 2);
  EXPECT_EQ(output, "trian.py: no such file (in " + directory_ + ")\n");
}

TEST_F(LifecycleTest, Check_LogFolder_IsMadeOrNamed) {
  SetCommand(Shell("true"));
  spec_.set_check_log_folder(true);
  spec_.set_log_path(directory_ + "/o/p/rank-0.log");
  std::string output;
  EXPECT_EQ(RunCheck(&output), 0);
  EXPECT_EQ(access((directory_ + "/o/p").c_str(), W_OK), 0);
  std::ofstream(directory_ + "/file") << "x";
  spec_.set_log_path(directory_ + "/file/rank-0.log");
  EXPECT_EQ(RunCheck(&output), 2);
  EXPECT_EQ(output,
            directory_ + "/file: Not a directory; --output-dir must name a writable folder\n");
}

TEST_F(LifecycleTest, SwitchUser_Root_Refused) {
  spec_.set_switch_user(true);
  SetCommand(Shell("echo ran > ran"));
  StartWorker();
  EXPECT_EQ(WaitForWorker(), 1);
  EXPECT_EQ(ReadFile("ran"), "");
}

}  // namespace
}  // namespace ringd::worker
