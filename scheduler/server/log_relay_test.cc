#include "scheduler/server/log_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "scheduler/state/machine_harness.h"

namespace ringd::scheduler {
namespace {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.
using testing::HasSubstr;

class FakeSink : public LogSink {
 public:
  bool idle() const override { return !busy && !ended; }
  void Send(LogChunk chunk) override {
    busy = true;
    text += absl::StrCat(chunk.rank(), "<");
    for (const LogPiece& piece : chunk.pieces()) text += piece.data();
    text += ">";
  }
  void End(absl::Status status) override {
    if (!ended) ended = std::move(status);
  }
  bool busy = false;
  std::string text;
  std::optional<absl::Status> ended;
};

class LogRelayTest : public testing::Test {
 protected:
  LogRelayTest()
      : relay_(h_.machine.get(), [this](ConnectionId id, NodeOrder order) {
          reads_.push_back(order.read_log());
          to_.push_back(id);
        }) {
    a_ = h_.Join("a", 1);
    b_ = h_.Join("b", 1);
    job_ = *h_.Submit(MachineHarness::Spec(2));
  }
  void Run() {
    h_.Prepared(a_, job_);
    h_.Prepared(b_, job_);
    h_.Started(a_, job_, 0);
    h_.Started(b_, job_, 1);
    relay_.OnChange(job_, now_);
  }
  LogRelay::ReaderId Open(int rank, bool follow, int tail = 0) {
    LogsRequest request;
    request.set_rank(rank);
    request.set_follow(follow);
    request.set_tail_lines(tail);
    return reader_ = relay_.Open(job_, request, &sink_, now_);
  }
  void Answer(const ReadLog& read, const std::string& text, bool finished = false) {
    LogData data;
    data.set_request(read.request());
    if (!text.empty()) data.add_pieces()->set_data(text);
    data.set_next_offset(read.offset() + text.size());
    data.set_finished(finished);
    relay_.OnData(read.rank() == 0 ? a_ : b_, data, now_);
  }
  void Written() {
    sink_.busy = false;
    relay_.Pump(reader_, now_);
  }

  MachineHarness h_;
  ConnectionId a_ = 0;
  ConnectionId b_ = 0;
  std::string job_;
  absl::Duration now_ = absl::Seconds(1);
  std::vector<ReadLog> reads_;
  std::vector<ConnectionId> to_;
  FakeSink sink_;
  LogRelay relay_;
  LogRelay::ReaderId reader_ = 0;
};

TEST_F(LogRelayTest, Open_NoSuchRank_IsRefused) {
  EXPECT_EQ(Open(2, false), 0u);
  EXPECT_THAT(std::string(sink_.ended->message()), HasSubstr("its ranks are 0 to 1"));
}

TEST_F(LogRelayTest, Open_WithoutFollowBeforeTheStart_EndsEmpty) {
  Open(-1, false);
  ASSERT_TRUE(sink_.ended.has_value());
  EXPECT_TRUE(sink_.ended->ok());
}

TEST_F(LogRelayTest, Follow_BeforeTheStart_WaitsThenReadsToTheEnd) {
  Open(-1, true);
  EXPECT_TRUE(reads_.empty());
  Run();
  ASSERT_EQ(reads_.size(), 2u);
  EXPECT_EQ(to_[0], a_);
  EXPECT_EQ(to_[1], b_);
  EXPECT_TRUE(reads_[0].wait());
  Answer(reads_[0], "hello\n");
  EXPECT_EQ(sink_.text, "0<hello\n>");
  ASSERT_EQ(reads_.size(), 3u);
  EXPECT_EQ(reads_[2].offset(), 6u);
  Answer(reads_[1], "", /*finished=*/true);
  Answer(reads_[2], "bye\n", /*finished=*/true);
  EXPECT_FALSE(sink_.ended.has_value()) << "a chunk waits for the client";
  Written();
  EXPECT_EQ(sink_.text, "0<hello\n>0<bye\n>");
  Written();
  ASSERT_TRUE(sink_.ended.has_value());
  EXPECT_TRUE(sink_.ended->ok());
}

TEST_F(LogRelayTest, SlowClient_NothingMoreIsAskedForThanTheWindow) {
  Run();
  Open(0, true);
  for (size_t i = 0; i < 3 * kLogWindow; ++i) {
    if (i < reads_.size()) Answer(reads_[i], "x");
  }
  EXPECT_EQ(reads_.size(), kLogWindow + 1) << "one is being written, a window waits";
  Written();
  EXPECT_EQ(reads_.size(), kLogWindow + 2);
}

TEST_F(LogRelayTest, Tail_IsAskedForOnce) {
  Run();
  Open(1, true, /*tail=*/5);
  ASSERT_EQ(reads_.size(), 1u);
  EXPECT_EQ(reads_[0].tail_lines(), 5);
  Answer(reads_[0], "x");
  EXPECT_EQ(reads_[1].tail_lines(), 0);
}

TEST_F(LogRelayTest, WithoutFollow_EndsWhereTheOutputEndsNow) {
  Run();
  Open(0, false);
  Answer(reads_[0], "abc");
  Written();
  EXPECT_FALSE(reads_[1].wait());
  Answer(reads_[1], "");
  ASSERT_TRUE(sink_.ended.has_value());
  EXPECT_TRUE(sink_.ended->ok());
}

TEST_F(LogRelayTest, Follow_NodeAnswersNothingAtOnce_IsNotAskedInALoop) {
  Run();
  Open(0, true);
  Answer(reads_[0], "");
  EXPECT_EQ(reads_.size(), 1u);
  now_ += kLogPause;
  relay_.OnChange("", now_);
  EXPECT_EQ(reads_.size(), 2u);
}

TEST_F(LogRelayTest, Follow_DaemonRestarts_GoesOnAtTheSameOffset) {
  Run();
  Open(0, true);
  Answer(reads_[0], "abc");
  Written();
  h_.Disconnect(a_);
  relay_.OnConnectionGone(a_, now_);
  EXPECT_EQ(reads_.size(), 2u);
  NodeHello hello = h_.Hello("a", 1);
  hello.add_jobs()->set_job(job_);
  hello.mutable_jobs(0)->set_generation(1);
  *hello.mutable_jobs(0)->add_ranks() = h_.Update(job_, 0, 100);
  const ConnectionId again = h_.Join(hello);
  relay_.OnChange("", now_);
  ASSERT_EQ(reads_.size(), 3u);
  EXPECT_EQ(to_[2], again);
  EXPECT_EQ(reads_[2].offset(), 3u);
}

TEST_F(LogRelayTest, WithoutFollow_NodeAway_SaysWhoHoldsTheLog) {
  Run();
  h_.Disconnect(b_);
  Open(1, false);
  ASSERT_TRUE(sink_.ended.has_value());
  EXPECT_EQ(sink_.ended->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sink_.ended->message(), "node b, which holds the output of rank 1, is away");
}

TEST_F(LogRelayTest, Close_LateAnswers_AreDropped) {
  Run();
  Open(0, true);
  relay_.Close(reader_);
  Answer(reads_[0], "late");
  EXPECT_EQ(sink_.text, "");
}

TEST_F(LogRelayTest, OnData_FromAnotherNode_IsIgnored) {
  Run();
  Open(0, true);
  LogData data;
  data.set_request(reads_[0].request());
  data.add_pieces()->set_data("forged");
  relay_.OnData(b_, data, now_);
  EXPECT_EQ(sink_.text, "");
}

}  // namespace
}  // namespace ringd::scheduler
