#include "client/session/memory_limit.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace ringd::session {
namespace {

class MemoryLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/limit-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    Write("/proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

constexpr uint64_t kMegabyte = 1048576;

TEST_F(MemoryLimitTest, NoCgroup_Ram) {
  const MemoryLimit limit = ReadMemoryLimit("", root_);
  EXPECT_EQ(limit.limit_bytes, 16384 * kMegabyte);
  EXPECT_EQ(limit.available_bytes, 8192 * kMegabyte);
  EXPECT_EQ(limit.source, "RAM");
}

TEST_F(MemoryLimitTest, Version2_TightestAbove) {
  Write("/proc/self/cgroup", "0::/slice/job\n");
  Write("/sys/fs/cgroup/slice/job/memory.max", "max\n");
  Write("/sys/fs/cgroup/slice/job/memory.current", "0\n");
  Write("/sys/fs/cgroup/slice/memory.max", "1048576000\n");     // 1,000 MB.
  Write("/sys/fs/cgroup/slice/memory.current", "419430400\n");  // 400 MB, of which
  Write("/sys/fs/cgroup/slice/memory.stat", "anon 5\ninactive_file 104857600\n");  // 100 MB can go.
  const MemoryLimit limit = ReadMemoryLimit("", root_);
  EXPECT_EQ(limit.limit_bytes, 1000 * kMegabyte);
  EXPECT_EQ(limit.available_bytes, 700 * kMegabyte);
  EXPECT_EQ(limit.source, "memory cgroup");
}

TEST_F(MemoryLimitTest, Version1_TakesMemoryController) {
  Write("/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/job\n0::/\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "104857600\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "209715200\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  const MemoryLimit limit = ReadMemoryLimit("", root_);
  EXPECT_EQ(limit.limit_bytes, 100 * kMegabyte);
  EXPECT_EQ(limit.available_bytes, 0u);
}

TEST_F(MemoryLimitTest, CgroupGiven_Counts) {
  Write("/sys/fs/cgroup/ringd/j-1/memory.max", "52428800\n");
  Write("/sys/fs/cgroup/ringd/j-1/memory.current", "0\n");
  EXPECT_EQ(ReadMemoryLimit("/sys/fs/cgroup/ringd/j-1", root_).limit_bytes, 50 * kMegabyte);
}

TEST(FormatBytes, ReadsWell) {
  EXPECT_EQ(FormatBytes(0), "0 bytes");
  EXPECT_EQ(FormatBytes(1536), "1.5 KB");
  EXPECT_EQ(FormatBytes(256 * kMegabyte), "256 MB");
  EXPECT_EQ(FormatBytes(1288490188), "1.2 GB");
}

}  // namespace
}  // namespace ringd::session
