#include "daemon/transport/link.h"

#include <string.h>
#include <sys/socket.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kGeneration = 4;

// Keeps every data frame's payload, in memory of its own.
class Recorder : public Link::Handler {
 public:
  absl::StatusOr<std::byte*> OnData(const wire::FrameHeader& header) override {
    if (refuse) return absl::InvalidArgumentError("refused");
    if (discard) return nullptr;
    buffers.emplace_back(header.payload_bytes);
    return header.payload_bytes == 0 ? nullptr : buffers.back().data();
  }
  absl::Status OnFrame(const wire::FrameHeader& header, const std::byte* payload) override {
    headers.push_back(header);
    payloads.emplace_back(reinterpret_cast<const char*>(payload),
                          payload == nullptr ? 0 : header.payload_bytes);
    return absl::OkStatus();
  }
  void OnSent(uint64_t tag) override { sent.push_back(tag); }

  bool refuse = false;
  bool discard = false;
  std::deque<std::vector<std::byte>> buffers;
  std::vector<wire::FrameHeader> headers;
  std::vector<std::string> payloads;
  std::vector<uint64_t> sent;
};

class LinkTest : public testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    a_ = std::make_unique<Link>(&loop_, UniqueFd(pair[0]), kGeneration, &at_a_);
    b_ = std::make_unique<Link>(&loop_, UniqueFd(pair[1]), kGeneration, &at_b_);
  }
  void Drive(int rounds = 20, size_t max_bytes = 1 << 20) {
    for (int i = 0; i < rounds; ++i) {
      loop_.Poll(absl::ZeroDuration());
      for (Link* link : {a_.get(), b_.get()}) {
        if (link == nullptr) continue;
        link->Flush(max_bytes);
        link->Receive(max_bytes);
      }
    }
  }
  static wire::FrameHeader Header(wire::FrameType type, uint64_t sequence) {
    wire::FrameHeader header{};
    header.type = type;
    header.sequence = sequence;
    return header;
  }
  void SendData(uint64_t sequence, const std::string& payload, uint64_t tag = 1) {
    a_->SendData(Header(wire::FrameType::kData, sequence),
                 reinterpret_cast<const std::byte*>(payload.data()),
                 static_cast<uint32_t>(payload.size()), tag);
  }

  EventLoop loop_;
  Recorder at_a_, at_b_;
  std::unique_ptr<Link> a_, b_;
};

TEST_F(LinkTest, Frames_OfAllSizes_ArriveWholeAndInOrder) {
  std::mt19937 random(3);
  std::deque<std::string> payloads;
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = i % 7 == 0 ? random() % 400'000 : random() % 300;
    payloads.emplace_back(bytes, static_cast<char>('a' + i % 26));
    SendData(i, payloads.back(), i + 1);
  }
  for (int i = 0; i < 100'000 && at_b_.payloads.size() < 300; ++i) {
    Drive(1, 1 + random() % 100'000);
  }
  ASSERT_EQ(at_b_.payloads.size(), 300u);
  uint64_t total = 0;
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(at_b_.headers[i].sequence, static_cast<uint64_t>(i));
    ASSERT_EQ(at_b_.payloads[i], payloads[i]);
    ASSERT_EQ(at_a_.sent[i], i + 1u);
    total += payloads[i].size();
  }
  EXPECT_EQ(a_->counters().payload_bytes_sent, total);
  EXPECT_EQ(b_->counters().payload_bytes_received, total);
}

TEST_F(LinkTest, Control_OvertakesQueuedDataButNotTheFrameUnderWay) {
  const std::string large(1 << 20, 'x');
  SendData(1, large);
  SendData(2, large);
  a_->Flush(1);  // Fills the socket with a part of the first.
  a_->SendControl(Header(wire::FrameType::kReady, 3), "");
  a_->SendControl(Header(wire::FrameType::kReady, 4), "");
  Drive(100);
  ASSERT_EQ(at_b_.headers.size(), 4u);
  EXPECT_EQ(at_b_.headers[0].sequence, 1u);
  EXPECT_EQ(at_b_.headers[1].sequence, 3u);
  EXPECT_EQ(at_b_.headers[2].sequence, 4u);
  EXPECT_EQ(at_b_.headers[3].sequence, 2u);
}

TEST_F(LinkTest, DropData_RemovesQueuedFramesAndCopiesTheOneUnderWay) {
  std::string first(1 << 20, 'x');
  const std::string second(100, 'y'), third(100, 'z');
  SendData(1, first, 7);
  SendData(2, second, 7);
  SendData(3, third, 8);
  a_->Flush(1);
  a_->DropData(7);
  std::fill(first.begin(), first.end(), '!');
  Drive(100);
  ASSERT_EQ(at_b_.payloads.size(), 2u);
  EXPECT_EQ(at_b_.payloads[0], std::string(1 << 20, 'x'));
  EXPECT_EQ(at_b_.payloads[1], third);
  EXPECT_EQ(at_a_.sent, std::vector<uint64_t>{8});
}

TEST_F(LinkTest, OnData_Null_DiscardsThePayload) {
  at_b_.discard = true;
  const std::string first(300'000, 'x'), second = "y";
  SendData(1, first);
  Drive(100);
  EXPECT_TRUE(at_b_.headers.empty());
  at_b_.discard = false;
  SendData(2, second);
  Drive();
  ASSERT_EQ(at_b_.payloads.size(), 1u);
  EXPECT_EQ(at_b_.payloads[0], "y");
}

TEST_F(LinkTest, OnData_Error_BreaksTheLinkAndCutsThePeerOff) {
  at_b_.refuse = true;
  const std::string payload = "x";
  SendData(1, payload);
  Drive();
  EXPECT_EQ(b_->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LinkTest, Destruction_SendsControlFramesFirst) {
  a_->SendControl(Header(wire::FrameType::kReady, 9), "");
  a_.reset();
  Drive();
  ASSERT_EQ(at_b_.headers.size(), 1u);
  EXPECT_EQ(at_b_.headers[0].sequence, 9u);
  EXPECT_EQ(b_->status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LinkTest, Idle_SendsAPingEachSecond_ThatNobodySees) {
  const absl::Time end = absl::Now() + absl::Milliseconds(2300);
  while (absl::Now() < end) {
    loop_.Poll(absl::Milliseconds(100));
    b_->Receive(1000);
  }
  EXPECT_GE(a_->counters().frames_sent, 1u);
  EXPECT_LE(a_->counters().frames_sent, 3u);
  EXPECT_TRUE(at_b_.headers.empty());
  EXPECT_TRUE(a_->status().ok() && b_->status().ok());
}

}  // namespace
}  // namespace ringd::daemon
