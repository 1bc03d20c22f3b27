#include "worker/process/oom.h"

#include <sys/stat.h>

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

TEST(OomWatch, NoCgroup_NeverSeen) {
  EXPECT_FALSE(OomWatch("").Killed());
  EXPECT_FALSE(OomWatch("/no/such/cgroup").Killed());
}

}  // namespace
}  // namespace ringd::worker
