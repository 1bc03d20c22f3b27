#include "daemon/logs/log_reader.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using testing::HasSubstr;

constexpr uint32_t kStderr = uint32_t{1} << 31;

// Writes a log as worker/README.md describes it.
class LogWriter {
 public:
  explicit LogWriter(const std::string& path)
      : log_(path, std::ios::app | std::ios::binary),
        index_(path + ".index", std::ios::app | std::ios::binary) {}
  void Write(const std::string& text, bool is_stderr = false) {
    log_ << text << std::flush;
    WriteRecord(static_cast<uint32_t>(text.size()) | (is_stderr ? kStderr : 0));
  }
  void WriteRecord(uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) index_ << static_cast<char>(word >> shift & 0xff);
    index_.flush();
  }
  void WriteIndexByte(char byte) { index_ << byte << std::flush; }

 private:
  std::ofstream log_;
  std::ofstream index_;
};

class LogsTest : public testing::Test {
 protected:
  LogsTest() : directory_(testing::TempDir() + "/logs-XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    mkdir((directory_ + "/j-1").c_str(), 0700);
    mkdir((directory_ + "/folders").c_str(), 0700);
    path_ = directory_ + "/j-1/rank-0.log";
  }
  std::string directory_;
  std::string path_;
};

TEST_F(LogsTest, RankLog_Read_TellsTheStreamsApartFromAnyOffset) {
  LogWriter writer(path_);
  writer.Write("one\n");
  writer.Write("two\n");
  writer.Write("bad\n", true);
  writer.Write("three\n");
  RankLog log = RankLog::Open(path_, getuid()).value();
  const RankLog::Chunk all = log.Read(0, 1000).value();
  ASSERT_EQ(all.pieces.size(), 3u);
  EXPECT_EQ(all.pieces[0].data(), "one\ntwo\n");
  EXPECT_FALSE(all.pieces[0].standard_error());
  EXPECT_EQ(all.pieces[1].data(), "bad\n");
  EXPECT_TRUE(all.pieces[1].standard_error());
  EXPECT_EQ(all.next_offset, 18u);
  const RankLog::Chunk part = log.Read(6, 4).value();
  ASSERT_EQ(part.pieces.size(), 2u);
  EXPECT_EQ(part.pieces[0].data(), "o\n");
  EXPECT_EQ(part.pieces[1].data(), "ba");
  EXPECT_EQ(part.next_offset, 10u);
  EXPECT_TRUE(log.Read(18, 10)->pieces.empty());
  EXPECT_TRUE(absl::IsOutOfRange(log.Read(19, 10).status()));
}

TEST_F(LogsTest, RankLog_Read_SeesWhatTheIndexCoversOnly) {
  LogWriter writer(path_);
  writer.Write("one\n");
  RankLog log = RankLog::Open(path_, getuid()).value();
  std::ofstream(path_, std::ios::app) << "later\n";
  writer.WriteIndexByte(6);  // Half of a record.
  EXPECT_EQ(log.Size().value(), 4u);
  for (int i = 0; i < 3; ++i) writer.WriteIndexByte(0);
  EXPECT_EQ(log.Read(4, 100)->pieces[0].data(), "later\n");
}

TEST_F(LogsTest, RankLog_Read_IndexClaimsMoreThanThereIs_IsDataLoss) {
  LogWriter writer(path_);
  writer.Write("one\n");
  writer.WriteRecord(0x7fffffff);
  RankLog log = RankLog::Open(path_, getuid()).value();
  EXPECT_TRUE(absl::IsDataLoss(log.Read(0, 1000).status()));
}

TEST_F(LogsTest, RankLog_FindTail_CountsWholeAndUnfinishedLines) {
  LogWriter writer(path_);
  writer.Write("one\ntwo\nthree\n");
  RankLog log = RankLog::Open(path_, getuid()).value();
  EXPECT_EQ(log.FindTail(1).value(), 8u);
  EXPECT_EQ(log.FindTail(2).value(), 4u);
  EXPECT_EQ(log.FindTail(3).value(), 0u);
  EXPECT_EQ(log.FindTail(9).value(), 0u);
  writer.Write("half");
  EXPECT_EQ(log.FindTail(1).value(), 14u);
  EXPECT_EQ(log.FindTail(2).value(), 8u);
}

TEST_F(LogsTest, RankLog_Open_LinksAndFilesOfOthers_AreRefused) {
  LogWriter writer(directory_ + "/real.log");
  writer.Write("secret");
  ASSERT_EQ(symlink((directory_ + "/real.log").c_str(), path_.c_str()), 0);
  LogWriter index(path_);
  EXPECT_TRUE(absl::IsPermissionDenied(RankLog::Open(path_, getuid()).status()));
  EXPECT_TRUE(
      absl::IsPermissionDenied(RankLog::Open(directory_ + "/real.log", getuid() + 1).status()));
  ASSERT_EQ(mkfifo((directory_ + "/fifo.log").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(RankLog::Open(directory_ + "/fifo.log", getuid()).status()));
  EXPECT_TRUE(absl::IsNotFound(RankLog::Open(directory_ + "/none.log", getuid()).status()));
}

class LogReaderTest : public LogsTest {
 protected:
  LogReaderTest()
      : reader_({directory_, directory_ + "/folders"}, [this](cluster::v1::LogData data) {
          MutexLock lock(&mu_);
          answers_.push_back(std::move(data));
          changed_.Signal();
        }) {
    reader_.AddJob("j-1", getuid(), directory_ + "/j-1");
  }
  cluster::v1::LogData Next() {
    MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + absl::Seconds(5);
    while (answers_.empty() && absl::Now() < deadline)
      changed_.WaitWithTimeout(&mu_, absl::Milliseconds(50));
    if (answers_.empty()) return {};
    cluster::v1::LogData data = answers_.front();
    answers_.erase(answers_.begin());
    return data;
  }
  static cluster::v1::ReadLog Order(uint64_t request, uint64_t offset, bool wait) {
    cluster::v1::ReadLog order;
    order.set_request(request);
    order.set_job("j-1");
    order.set_offset(offset);
    order.set_wait(wait);
    return order;
  }
  Mutex mu_;
  CondVar changed_;
  std::vector<cluster::v1::LogData> answers_;
  LogReader reader_;
};

TEST_F(LogReaderTest, Read_WaitsForMoreUntilTheRankHasEnded) {
  reader_.Read(Order(1, 0, true));  // Before there is a file.
  LogWriter writer(path_);
  writer.Write("one\n");
  cluster::v1::LogData data = Next();
  EXPECT_EQ(data.request(), 1u);
  ASSERT_EQ(data.pieces_size(), 1);
  EXPECT_EQ(data.next_offset(), 4u);
  EXPECT_FALSE(data.finished());
  reader_.Read(Order(2, 4, true));
  writer.Write("two\n");
  EXPECT_EQ(Next().pieces(0).data(), "two\n");
  reader_.Read(Order(3, 8, true));
  reader_.EndRank("j-1", 0);
  data = Next();
  EXPECT_EQ(data.request(), 3u);
  EXPECT_TRUE(data.finished());
}

TEST_F(LogReaderTest, Read_ToTheEnd_ClosesTheLog) {
  const std::string folder = std::filesystem::canonical(directory_).string();
  const auto open_logs = [&folder] {
    int count = 0;
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      count += std::filesystem::read_symlink(fd, ignored).string().rfind(folder, 0) == 0;
    }
    return count;
  };
  { LogWriter(path_).Write("one\n"); }
  reader_.Read(Order(1, 0, true));
  Next();
  EXPECT_EQ(open_logs(), 2);
  reader_.EndRank("j-1", 0);
  reader_.Read(Order(2, 4, true));
  EXPECT_TRUE(Next().finished());
  EXPECT_EQ(open_logs(), 0);
}

TEST_F(LogReaderTest, Read_NothingMoreWithinItsTime_AnswersEmpty) {
  LogWriter writer(path_);
  writer.Write("one\n");
  reader_.Read(Order(1, 4, true));
  const absl::Time begin = absl::Now();
  const cluster::v1::LogData data = Next();
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(900));
  EXPECT_EQ(data.request(), 1u);
  EXPECT_EQ(data.pieces_size(), 0);
  EXPECT_FALSE(data.finished());
  EXPECT_TRUE(data.error().empty());
}

TEST_F(LogReaderTest, Read_WithTailAndBound_BeginsThereAndStopsThere) {
  LogWriter writer(path_);
  writer.Write("one\ntwo\nthree\n");
  cluster::v1::ReadLog order = Order(1, 0, false);
  order.set_tail_lines(2);
  order.set_max_bytes(5);
  reader_.Read(order);
  const cluster::v1::LogData data = Next();
  EXPECT_EQ(data.pieces(0).data(), "two\nt");
  EXPECT_EQ(data.next_offset(), 9u);
}

TEST_F(LogReaderTest, Read_AfterTheJobIsForgotten_FindsItsOwnFolderToo) {
  const std::string own = directory_ + "/own";
  mkdir(own.c_str(), 0700);
  LogWriter writer(own + "/rank-0.log");
  writer.Write("mine\n");
  reader_.AddJob("j-1", getuid(), own);
  reader_.EndJob("j-1");
  reader_.Read(Order(1, 0, true));
  EXPECT_EQ(Next().pieces(0).data(), "mine\n");
  reader_.Read(Order(2, 5, true));
  EXPECT_TRUE(Next().finished());
}

TEST_F(LogReaderTest, Read_UnknownJobOrRank_IsAnError) {
  reader_.EndJob("j-1");
  for (const char* job : {"j-7", "../j-1", "", "."}) {
    cluster::v1::ReadLog order = Order(1, 0, true);
    order.set_job(job);
    reader_.Read(order);
    const cluster::v1::LogData data = Next();
    EXPECT_FALSE(data.error().empty()) << job;
    EXPECT_TRUE(data.finished());
  }
}

TEST_F(LogReaderTest, AddJob_OfTheSameName_ForgetsTheOldFiles) {
  LogWriter(path_).Write("old old old\n");
  reader_.Read(Order(1, 0, false));
  EXPECT_EQ(Next().pieces(0).data(), "old old old\n");
  unlink(path_.c_str());
  unlink((path_ + ".index").c_str());
  LogWriter(path_).Write("new\n");
  reader_.AddJob("j-1", getuid(), directory_ + "/j-1");
  reader_.Read(Order(2, 0, false));
  EXPECT_EQ(Next().pieces(0).data(), "new\n");
}

}  // namespace
}  // namespace ringd::daemon
