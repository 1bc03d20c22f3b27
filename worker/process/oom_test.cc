#include "worker/process/oom.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace ringd::worker {
namespace {

class OomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/oom-" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    mkdir(directory_.c_str(), 0755);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
  }
  std::string directory_;
};

TEST_F(OomTest, Version2_CounterRises_Seen) {
  Write("memory.events", "low 0\nhigh 3\nmax 9\noom 1\noom_kill 1\n");
  const OomWatch watch(directory_);
  EXPECT_FALSE(watch.Killed());
  Write("memory.events", "low 0\nhigh 3\nmax 9\noom 2\noom_kill 2\n");
  EXPECT_TRUE(watch.Killed());
  Write("memory.peak", "1288490188\n");
  Write("memory.max", "1073741824\n");
  EXPECT_EQ(watch.Describe(), "OOM-killed, peak 1.2 GB of 1 GB");
}

TEST_F(OomTest, Version1_CounterRises_Seen) {
  Write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  const OomWatch watch(directory_);
  Write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_TRUE(watch.Killed());
  Write("memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(watch.Describe(), "OOM-killed, limit 1 MB");
}

TEST_F(OomTest, LimitIsOfAGroupAbove_Said) {
  const std::string group = directory_ + "/rank";
  mkdir(group.c_str(), 0755);
  Write("memory.limit_in_bytes", "419430400\n");
  Write("rank/memory.limit_in_bytes", "9223372036854771712\n");
  Write("rank/memory.max_usage_in_bytes", "314572800\n");
  EXPECT_EQ(OomWatch(group).Describe(), "OOM-killed, peak 300 MB of 400 MB");
}

class OwnMemoryCgroupTest : public OomTest {
 protected:
  void Make(const std::string& path, const std::string& text = "") {
    const std::filesystem::path file = directory_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
};

TEST_F(OwnMemoryCgroupTest, Version1_IsThatOfTheMemoryController) {
  Make("/proc/self/cgroup", "9:pids:/p\n4:memory:/jobs/x\n0::/\n");
  Make("/sys/fs/cgroup/memory/jobs/x/memory.oom_control");
  EXPECT_EQ(OwnMemoryCgroup(directory_), directory_ + "/sys/fs/cgroup/memory/jobs/x");
}

TEST_F(OwnMemoryCgroupTest, Version2WithoutTheController_IsTheClosestAbove) {
  Make("/proc/self/cgroup", "0::/user/shell/rank\n");
  Make("/sys/fs/cgroup/user/memory.events");
  EXPECT_EQ(OwnMemoryCgroup(directory_), directory_ + "/sys/fs/cgroup/user");
}

TEST_F(OwnMemoryCgroupTest, NamespaceAboveOurs_IsTheMount) {
  Make("/proc/self/cgroup", "4:memory:/../other\n");
  Make("/sys/fs/cgroup/memory/memory.oom_control");
  EXPECT_EQ(OwnMemoryCgroup(directory_), directory_ + "/sys/fs/cgroup/memory");
}

TEST_F(OwnMemoryCgroupTest, NoController_IsNone) {
  EXPECT_EQ(OwnMemoryCgroup(directory_), "");
  Make("/proc/self/cgroup", "0::/user\n");
  EXPECT_EQ(OwnMemoryCgroup(directory_), "");
}

TEST(OomWatch, NoCgroup_NeverSeen) {
  EXPECT_FALSE(OomWatch("").Killed());
  EXPECT_FALSE(OomWatch("/no/such/cgroup").Killed());
}

}  // namespace
}  // namespace ringd::worker
