#include "daemon/main/socket_access.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "common/base/unix_socket.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

constexpr uid_t kUser = 4711;
constexpr uid_t kOther = 4712;

class SocketAccessTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
    path_ = directory_ + "/s";
    ASSERT_EQ(ListenUnix(path_, SOCK_STREAM, 0600, &listener_), 0);
    if (absl::IsUnavailable(GrantSocket(path_, {}))) GTEST_SKIP() << "no access control lists here";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  int Mode() const {
    struct stat info;
    return stat(path_.c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 07777) : -1;
  }
  bool MayConnect(uid_t uid) const {
    const pid_t child = fork();
    if (child == 0) {
      UniqueFd socket;
      const bool changed = setgid(uid) == 0 && setuid(uid) == 0;
      _exit(!changed ? 2 : ConnectUnix(path_, SOCK_STREAM, &socket) == 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  std::string directory_ = "/tmp/access-XXXXXX";
  std::string path_;
  UniqueFd listener_;
};

TEST_F(SocketAccessTest, ModeIsClosedToOthers) {
  EXPECT_EQ(Mode(), 0600);
  ASSERT_TRUE(GrantSocket(path_, {kUser}).ok());
  EXPECT_EQ(Mode(), 0660);
  ASSERT_TRUE(GrantSocket(path_, {}).ok());
  EXPECT_EQ(Mode(), 0600);
}

TEST_F(SocketAccessTest, NamedUsersAloneConnect) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_TRUE(GrantSocket(path_, {kUser}).ok());
  EXPECT_TRUE(MayConnect(kUser));
  EXPECT_FALSE(MayConnect(kOther));
  ASSERT_TRUE(GrantSocket(path_, {kOther, kUser + 10}).ok());
  EXPECT_FALSE(MayConnect(kUser));
  EXPECT_TRUE(MayConnect(kOther));
}

TEST_F(SocketAccessTest, NoSocket_NotFound) {
  EXPECT_TRUE(absl::IsNotFound(GrantSocket(path_ + "x", {kUser})));
}

}  // namespace
}  // namespace ringd::daemon
