// What needs root: another user's rank, a memory limit of its own.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/testing/worker_harness.h"

namespace ringd::worker {
namespace {

class PrivilegedTest : public WorkerTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || chown(directory_.c_str(), 0, 0) != 0) GTEST_SKIP() << "needs root";
  }
  // A memory cgroup of this test's own with a limit; "" where none can be made.
  std::string MakeCgroup(uint64_t limit) {
    const std::string name = absl::StrCat("ringd-worker-test-", getpid());
    const std::pair<const char*, const char*> kTries[] = {
        {"/sys/fs/cgroup/memory/", "/memory.limit_in_bytes"}, {"/sys/fs/cgroup/", "/memory.max"}};
    for (const auto& [mount, file] : kTries) {
      cgroup_ = mount + name;
      if (mkdir(cgroup_.c_str(), 0755) != 0) continue;
      std::ofstream limit_file(cgroup_ + file);
      if (limit_file << limit << std::flush) return cgroup_;
      rmdir(cgroup_.c_str());
    }
    return "";
  }
  void TearDown() override {
    if (worker_.pid > 0) kill(worker_.pid, SIGKILL);
    if (!cgroup_.empty()) rmdir(cgroup_.c_str());
  }
  std::string cgroup_;
};

TEST_F(PrivilegedTest, SwitchUser_RunsAsTheUserAlone) {
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(chown(directory_.c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(chmod(daemon_.socket().c_str(), 0666), 0);
  spec_.set_switch_user(true);
  spec_.set_user("nobody");
  spec_.set_uid(kNobody);
  spec_.set_gid(kNobody);
  const auto exited = RunToEnd(
      "(id -u; id -g; id -G; grep CapEff /proc/self/status; echo $USER) > id.txt; stat -c %u "
      "log/rank-3.log > owner.txt");
  EXPECT_EQ(exited.exit_code(), 0);
  EXPECT_EQ(ReadFile("id.txt"), "65534\n65534\n65534\nCapEff:\t0000000000000000\nnobody\n");
  EXPECT_EQ(ReadFile("owner.txt"), "65534\n");
}

TEST_F(PrivilegedTest, MemoryLimit_OomKillSaid) {
  spec_.set_cgroup(MakeCgroup(400u << 20));
  if (spec_.cgroup().empty()) GTEST_SKIP() << "no memory cgroup can be made here";
  const auto exited = RunToEnd("exec tail /dev/zero");  // Keeps what it reads.
  EXPECT_EQ(exited.signal(), SIGKILL);
  EXPECT_TRUE(exited.oom_killed());
  EXPECT_TRUE(absl::StartsWith(exited.reason(), "OOM-killed, peak ")) << exited.reason();
  EXPECT_TRUE(absl::EndsWith(exited.reason(), " of 400 MB")) << exited.reason();
}

}  // namespace
}  // namespace ringd::worker
