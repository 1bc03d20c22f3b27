#include "client/cli/output/rank_output.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "client/cli/output/line_prefixer.h"
#include "common/base/fd.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using ringd::cluster::v1::LogChunk;

TEST(LinePrefixer, WholeLines_GetAPrefixEach) {
  LinePrefixer prefixer(3);
  EXPECT_EQ(prefixer.Add("a\nb\n\n"), "[3] a\n[3] b\n[3] \n");
  EXPECT_EQ(prefixer.Finish(), "");
}

TEST(LinePrefixer, PiecesOfALine_WaitForItsEnd) {
  LinePrefixer prefixer(0);
  EXPECT_EQ(prefixer.Add("he"), "");
  EXPECT_EQ(prefixer.Add("llo\nwor"), "[0] hello\n");
  EXPECT_EQ(prefixer.Finish(), "[0] wor\n");
  EXPECT_EQ(prefixer.Finish(), "");
}

TEST(LinePrefixer, ProgressBars_GetAPrefixAfterEachReturn) {
  LinePrefixer trailing(1);
  EXPECT_EQ(trailing.Add("10%\r20%\r"), "[1] 10%\r[1] 20%\r");
  EXPECT_EQ(trailing.Finish(), "\n");
  LinePrefixer leading(1);
  EXPECT_EQ(leading.Add("\r10%\r20%"), "\r[1] 10%\r");
  EXPECT_EQ(leading.Finish(), "[1] 20%\n");
}

TEST(LinePrefixer, ReturnAndNewline_AreOneEnd) {
  LinePrefixer prefixer(2);
  EXPECT_EQ(prefixer.Add("a\r\nb\r"), "[2] a\r\n[2] b\r");
  EXPECT_EQ(prefixer.Add("\nc\n"), "\n[2] c\n");
}

TEST(LinePrefixer, EndlessLine_IsPassedOnWithOnePrefix) {
  LinePrefixer prefixer(0);
  const std::string piece(kMaxHeldLineBytes + 1, 'x');
  EXPECT_EQ(prefixer.Add(piece), "[0] " + piece);
  EXPECT_EQ(prefixer.Add("y\nz\n"), "y\n[0] z\n");
}

class RankOutputTest : public ::testing::Test {
 protected:
  RankOutputTest() {
    int out[2], err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC | O_NONBLOCK), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC | O_NONBLOCK), 0);
    out_read_.reset(out[0]);
    out_.reset(out[1]);
    err_read_.reset(err[0]);
    err_.reset(err[1]);
  }

  static LogChunk Chunk(int rank, const std::string& data, bool standard_error = false) {
    LogChunk chunk;
    chunk.set_rank(rank);
    chunk.add_pieces()->set_data(data);
    chunk.mutable_pieces(0)->set_standard_error(standard_error);
    return chunk;
  }

  static std::string Read(const UniqueFd& fd) {
    char buffer[4096];
    const ssize_t bytes = read(fd.get(), buffer, sizeof(buffer));
    return bytes > 0 ? std::string(buffer, static_cast<size_t>(bytes)) : "";
  }

  UniqueFd out_, out_read_, err_, err_read_;
};

TEST_F(RankOutputTest, OneRank_PassesBytesThrough) {
  RankOutput output(out_.get(), err_.get(), false);
  EXPECT_TRUE(output.Write(Chunk(0, std::string("\0\r50%", 5))));
  EXPECT_TRUE(output.Write(Chunk(0, "warn", true)));
  EXPECT_TRUE(output.Finish());
  EXPECT_EQ(Read(out_read_), std::string("\0\r50%", 5));
  EXPECT_EQ(Read(err_read_), "warn");
}

TEST_F(RankOutputTest, SeveralRanks_NeverMixLines) {
  RankOutput output(out_.get(), err_.get(), true);
  EXPECT_TRUE(output.Write(Chunk(0, "a")));
  EXPECT_TRUE(output.Write(Chunk(1, "b\n")));
  EXPECT_TRUE(output.Write(Chunk(0, "e\n", true)));
  EXPECT_TRUE(output.Write(Chunk(0, "c\n")));
  EXPECT_EQ(Read(out_read_), "[1] b\n[0] ac\n");
  EXPECT_EQ(Read(err_read_), "[0] e\n");
}

TEST_F(RankOutputTest, Restart_SkipsWhatWasWritten) {
  RankOutput output(out_.get(), err_.get(), false);
  EXPECT_TRUE(output.Write(Chunk(0, "abc")));
  output.Restart();
  EXPECT_TRUE(output.Write(Chunk(0, "ab")));
  EXPECT_TRUE(output.Write(Chunk(0, "cd")));
  output.Restart();
  EXPECT_TRUE(output.Write(Chunk(0, "abcdef")));
  EXPECT_EQ(Read(out_read_), "abcdef");
}

TEST_F(RankOutputTest, ReaderGone_IsReported) {
  signal(SIGPIPE, SIG_IGN);
  RankOutput output(out_.get(), err_.get(), false);
  out_read_.reset();
  EXPECT_FALSE(output.Write(Chunk(0, "x")));
}

TEST(RankOutput, Taker_GetsStandardOutputOnce_AlsoAfterARestart) {
  const UniqueFd null(open("/dev/null", O_WRONLY));
  std::string taken;
  RankOutput output(null.get(), null.get(), true, [&](int rank, const std::string& data) {
    taken += std::to_string(rank) + ":" + data;
    return data != "stop";
  });
  LogChunk chunk;
  chunk.set_rank(1);
  chunk.add_pieces()->set_data("ab");
  auto* error = chunk.add_pieces();
  error->set_standard_error(true);
  error->set_data("no");
  EXPECT_TRUE(output.Write(chunk));
  output.Restart();
  chunk.add_pieces()->set_data("c");
  EXPECT_TRUE(output.Write(chunk));
  EXPECT_EQ(taken, "1:ab1:c");
  LogChunk last;
  last.add_pieces()->set_data("stop");
  EXPECT_FALSE(output.Write(last));
}

}  // namespace
}  // namespace ringd::cli
