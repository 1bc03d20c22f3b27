#include "worker/process/foreign_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace ringd::worker {
namespace {

// A child that has ended and that nobody has reaped.
struct Ended {
  pid_t pid;
  UniqueFd pidfd;
};

Ended EndBy(int exit_code, int signal) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (signal != 0) kill(getpid(), signal);
    _exit(exit_code);
  }
  Ended ended{pid, UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
  pollfd entry{ended.pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 10'000), 1);
  EXPECT_TRUE(HasEnded(ended.pidfd.get()));
  return ended;
}

TEST(FindWaitStatus, Zombie_ItsStatus) {
  const Ended exited = EndBy(7, 0);
  const auto exit_status = FindWaitStatus(exited.pidfd.get(), exited.pid);
  ASSERT_TRUE(exit_status.has_value());
  EXPECT_TRUE(WIFEXITED(*exit_status));
  EXPECT_EQ(WEXITSTATUS(*exit_status), 7);
  const Ended killed = EndBy(0, SIGKILL);
  const auto kill_status = FindWaitStatus(killed.pidfd.get(), killed.pid);
  ASSERT_TRUE(kill_status.has_value());
  EXPECT_TRUE(WIFSIGNALED(*kill_status));
  EXPECT_EQ(WTERMSIG(*kill_status), SIGKILL);
  waitpid(exited.pid, nullptr, 0);
  waitpid(killed.pid, nullptr, 0);
}

TEST(FindWaitStatus, ReapedProcess_TheSameOrNone) {
  const Ended exited = EndBy(7, 0);
  waitpid(exited.pid, nullptr, 0);
  const auto status = FindWaitStatus(exited.pidfd.get(), exited.pid);
  EXPECT_EQ(WEXITSTATUS(status.value_or(7 << 8)), 7);  // None before Linux 6.15.
}

TEST(FindWaitStatus, ReapedAtTheSameTime_TheSameOrNone) {
  for (int i = 0; i < 300; ++i) {
    const Ended exited = EndBy(7, 0);
    std::thread reaper([&] { waitpid(exited.pid, nullptr, 0); });
    const auto status = FindWaitStatus(exited.pidfd.get(), exited.pid);
    reaper.join();
    ASSERT_EQ(WEXITSTATUS(status.value_or(7 << 8)), 7);
  }
}

}  // namespace
}  // namespace ringd::worker
