#include "worker/logs/log_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "gtest/gtest.h"

namespace ringd::worker {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<uint32_t> ReadIndex(const std::string& path) {
  const std::string bytes = ReadAll(path);
  std::vector<uint32_t> records(bytes.size() / 4);
  memcpy(records.data(), bytes.data(), records.size() * 4);
  return records;
}

class LogFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/log-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name() + "/job/rank-0.log";
  }
  std::unique_ptr<LogFile> Open() { return LogFile::Open(path_).value(); }
  std::string path_;
};

constexpr uint32_t kStderr = 0x80000000;

TEST_F(LogFileTest, Write_LogAndIndexAgree) {
  const auto log = Open();
  log->Write(false, "out\n");
  log->Write(true, "error!\n");
  log->Write(false, "");
  EXPECT_EQ(ReadAll(path_), "out\nerror!\n");
  EXPECT_EQ(ReadIndex(path_ + ".index"), (std::vector<uint32_t>{4, kStderr | 7}));
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(LogFileTest, Open_OlderLog_Continued) {
  Open()->Write(true, "one\n");
  Open()->Write(false, "two!\n");
  EXPECT_EQ(ReadAll(path_), "one\ntwo!\n");
  EXPECT_EQ(ReadIndex(path_ + ".index"), (std::vector<uint32_t>{kStderr | 4, 5}));
}

TEST_F(LogFileTest, Open_IndexBehindLog_Mended) {
  Open()->Write(false, "one\n");
  std::ofstream(path_, std::ios::app) << "lost record\n";
  std::ofstream(path_ + ".index", std::ios::app | std::ios::binary) << "xy";  // Half a record.
  Open()->Write(true, "e\n");
  EXPECT_EQ(ReadIndex(path_ + ".index"), (std::vector<uint32_t>{4, 12, kStderr | 2}));
}

TEST_F(LogFileTest, Open_IndexBeyondLog_Rebuilt) {
  Open()->Write(true, "one\n");
  ASSERT_EQ(truncate(path_.c_str(), 2), 0);
  Open();
  EXPECT_EQ(ReadIndex(path_ + ".index"), (std::vector<uint32_t>{2}));
}

TEST_F(LogFileTest, Write_DiskFull_CountsWhatIsLost) {
  const auto log = Open();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = 10;
  setrlimit(RLIMIT_FSIZE, &limit);
  log->Write(false, "1234567\n");
  log->Write(false, "abcdefg\n");  // Two bytes fit.
  log->Write(false, "hijklmn\n");
  setrlimit(RLIMIT_FSIZE, &before);
  log->Write(false, "again\n");
  const std::string notice = "ringd-worker: 14 bytes of output were lost here\n";
  EXPECT_EQ(ReadAll(path_), "1234567\nab" + notice + "again\n");
  EXPECT_EQ(ReadIndex(path_ + ".index"),
            (std::vector<uint32_t>{8, 2, kStderr | static_cast<uint32_t>(notice.size()), 6}));
}

TEST_F(LogFileTest, Open_LinkInTheWay_Refused) {
  Open();
  unlink(path_.c_str());
  ASSERT_EQ(symlink("/dev/null", path_.c_str()), 0);
  EXPECT_FALSE(LogFile::Open(path_).ok());
}

}  // namespace
}  // namespace ringd::worker
