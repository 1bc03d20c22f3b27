#include "client/cli/run/run_directory.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

TEST(RunDirectoryBase, TakesTheFirstThatIsUsableAndShort) {
  const std::string tmp = ::testing::TempDir();
  EXPECT_EQ(RunDirectoryBase("/nonexistent", "/dev/shm"), "/dev/shm");
  EXPECT_EQ(RunDirectoryBase("/dev/shm", tmp), "/dev/shm");
  EXPECT_EQ(RunDirectoryBase("", ""), "/tmp");
  EXPECT_EQ(RunDirectoryBase("relative", "/etc/passwd"), "/tmp");
  EXPECT_EQ(RunDirectoryBase(std::string(100, '/'), ""), "/tmp");
}

TEST(RunDirectory, IsPrivateAndGoesWithItsObject) {
  auto directory = RunDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  const std::string path = (*directory)->path();
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  ASSERT_EQ(mkdir((path + "/inner").c_str(), 0700), 0);
  directory->reset();
  EXPECT_FALSE(Exists(path));
}

TEST(RunDirectory, OwnerKilled_CaretakerWaitsForItsProcessesAndRemovesIt) {
  int line[2];
  ASSERT_EQ(pipe(line), 0);
  const pid_t watched = fork();
  if (watched == 0) {  // Ends by itself when the line closes.
    close(line[1]);
    char byte;
    _exit(read(line[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(line[0]);
  int names[2];
  ASSERT_EQ(pipe(names), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    auto directory = RunDirectory::Create();
    if (!directory.ok()) _exit(1);
    (*directory)->Watch(watched);
    const std::string path = (*directory)->path();
    if (write(names[1], path.data(), path.size()) < 0) _exit(1);
    kill(getpid(), SIGKILL);
  }
  close(names[1]);
  char buffer[256];
  const ssize_t bytes = read(names[0], buffer, sizeof(buffer));
  ASSERT_GT(bytes, 0);
  const std::string path(buffer, static_cast<size_t>(bytes));
  ASSERT_EQ(waitpid(owner, nullptr, 0), owner);
  usleep(100 * 1000);
  EXPECT_TRUE(Exists(path)) << "it went before the process that uses it";
  // The caretaker inherited this end through the owner; closing ours alone wouldn't end the line.
  kill(watched, SIGKILL);
  close(line[1]);
  ASSERT_EQ(waitpid(watched, nullptr, 0), watched);
  for (int i = 0; i < 500 && Exists(path); ++i) usleep(10 * 1000);
  EXPECT_FALSE(Exists(path));
}

}  // namespace
}  // namespace ringd::cli
