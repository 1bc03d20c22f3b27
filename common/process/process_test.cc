#include "common/process/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/read_to_end.h"

namespace ringd {
namespace {

TEST(ProcessTest, RunToEnd_OutputOfTheNamedDescriptors_AndExitCode) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "printf one; printf two >&2; printf $X >&2; exit 3"};
  options.environment = {"X=three"};
  const auto both = RunToEnd(options, {1, 2}, 100, absl::Seconds(5));
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->output, "onetwothree");
  EXPECT_EQ(both->status.exit_code, 3);
  EXPECT_EQ(RunToEnd(options, {2}, 5, absl::Seconds(5))->output, "twoth");
}

TEST(ProcessTest, RunToEnd_ProgramThatStays_IsKilled) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "exec sleep 60 >&- 2>&-"};
  options.environment = OwnEnvironment();
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(RunToEnd(options, {1}, 100, absl::Milliseconds(100)).status()));
}

TEST(ProcessTest, Spawn_DescriptorsSwapped_EachLandsInItsPlace) {
  int a[2], b[2];
  ASSERT_EQ(pipe2(a, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(b, O_CLOEXEC), 0);
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "printf one >&1; printf two >&5; ls /proc/self/fd | wc -l >&1"};
  options.environment = {"PATH=/usr/bin:/bin"};
  options.fds = {{1, a[1]}, {5, b[1]}};
  auto child = Spawn(options);
  ASSERT_TRUE(child.ok()) << child.status();
  close(a[1]);
  close(b[1]);
  EXPECT_EQ(ReadToEnd(b[0]), "two");
  EXPECT_EQ(ReadToEnd(a[0]).substr(0, 3), "one");
  EXPECT_EQ(WaitForExit(*child, absl::Seconds(5))->exit_code, 0);
  close(a[0]);
  close(b[0]);
}

TEST(ProcessTest, Spawn_LowLimitOfOpenFiles_IsEnough) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  int a[2];
  ASSERT_EQ(pipe2(a, O_CLOEXEC), 0);
  const rlimit low{static_cast<rlim_t>(a[1] + 8), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "printf one"};
  options.fds = {{1, a[1]}, {3, a[1]}};
  auto child = Spawn(options);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(child.ok()) << child.status();
  close(a[1]);
  EXPECT_EQ(ReadToEnd(a[0]), "one");
  EXPECT_EQ(WaitForExit(*child, absl::Seconds(5))->exit_code, 0);
  close(a[0]);
}

TEST(ProcessTest, Spawn_NoSuchProgram_IsNotFound) {
  SpawnOptions options;
  options.argv = {"/nowhere/program"};
  EXPECT_EQ(Spawn(options).status().code(), absl::StatusCode::kNotFound);
}

TEST(ProcessTest, WaitForExit_Killed_TellsTheSignal) {
  SpawnOptions options;
  options.argv = {"/bin/sleep", "100"};
  auto child = Spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(WaitForExit(*child, absl::Milliseconds(10)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  kill(child->pid, SIGKILL);
  EXPECT_EQ(WaitForExit(*child, absl::Seconds(5))->signal, SIGKILL);
}

TEST(ProcessTest, Spawn_ParentIgnoresSignals_ChildDoesNot) {
  signal(SIGTERM, SIG_IGN);
  SpawnOptions options;
  options.argv = {"/bin/sleep", "100"};
  auto child = Spawn(options);
  signal(SIGTERM, SIG_DFL);
  ASSERT_TRUE(child.ok());
  kill(child->pid, SIGTERM);
  EXPECT_EQ(WaitForExit(*child, absl::Seconds(5))->signal, SIGTERM);
}

TEST(ProcessTest, NotifySystemd_SocketNamed_SendsTheState) {
  const std::string path = absl::StrCat("/tmp/ringd-notify-", getpid());
  unlink(path.c_str());
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  setenv("NOTIFY_SOCKET", path.c_str(), 1);
  NotifySystemd("READY=1");
  unsetenv("NOTIFY_SOCKET");
  char buffer[32];
  const ssize_t length = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  EXPECT_EQ(std::string(buffer, std::max<ssize_t>(length, 0)), "READY=1");
  unlink(path.c_str());
}

TEST(WatchdogTest, WokenAllTheTime_TellsWhenDue) {
  setenv("WATCHDOG_USEC", "100000", 1);
  unsetenv("WATCHDOG_PID");
  Watchdog watchdog;
  EXPECT_GT(watchdog.TimeoutMillis(), 0);
  EXPECT_LE(watchdog.TimeoutMillis(), 50);
  usleep(60000);
  EXPECT_EQ(watchdog.TimeoutMillis(), 0);
  watchdog.TellIfDue();
  EXPECT_GT(watchdog.TimeoutMillis(), 0);
  unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(Watchdog().TimeoutMillis(), -1);
}

}  // namespace
}  // namespace ringd
