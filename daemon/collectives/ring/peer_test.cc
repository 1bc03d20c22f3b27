// One node of a ring of two against a hand-written peer: flow control, aborts in mid-frame, and a
// peer that lies.
#include <string.h>
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "daemon/collectives/ring/failure.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/collectives/ring/ring_cluster.h"
#include "gtest/gtest.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kGeneration = 6;
constexpr uint64_t kSignature = 77;
constexpr uint32_t kPiece = 256 << 10;

struct Frame {
  wire::FrameHeader header{};
  std::string payload;
};

class RingPeerTest : public testing::Test {
 protected:
  void SetUp() override {
    RingSockets sockets;
    MakePair(&sockets.right, &from_right_);
    MakePair(&sockets.left, &to_left_);
    communicator_ =
        MakeRingCommunicator(MakeLayouts({1, 1})[0], kGeneration, sockets, &loop_,
                             [this](const Outcome& outcome) { ring_failures_.push_back(outcome); });
  }

  static void MakePair(int* ours, UniqueFd* theirs) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    *ours = pair[0];
    theirs->reset(pair[1]);
  }

  void Drive(int rounds = 50) {
    for (int i = 0; i < rounds; ++i) {
      loop_.Poll(absl::ZeroDuration());
      communicator_->Progress();
    }
  }

  // What the node has sent to its right neighbour; Drive in between, so that it can send on.
  std::vector<Frame> Sent(int fd) {
    std::vector<Frame> frames;
    std::string& buffer = fd == from_right_.get() ? right_bytes_ : left_bytes_;
    for (int idle = 0; idle < 3;) {
      char chunk[65536];
      const ssize_t count = recv(fd, chunk, sizeof(chunk), 0);
      if (count > 0) {
        buffer.append(chunk, static_cast<size_t>(count));
        idle = 0;
      } else {
        Drive(5);
        ++idle;
      }
    }
    while (buffer.size() >= sizeof(wire::FrameHeader)) {
      Frame frame;
      memcpy(&frame.header, buffer.data(), sizeof(frame.header));
      const size_t bytes = sizeof(frame.header) + frame.header.payload_bytes;
      if (buffer.size() < bytes) break;
      frame.payload = buffer.substr(sizeof(frame.header), frame.header.payload_bytes);
      buffer.erase(0, bytes);
      if (frame.header.type != wire::FrameType::kPing) frames.push_back(std::move(frame));
    }
    return frames;
  }
  std::vector<Frame> SentRight() { return Sent(from_right_.get()); }
  std::vector<Frame> SentLeft() { return Sent(to_left_.get()); }
  static uint64_t DataBytes(const std::vector<Frame>& frames) {
    uint64_t total = 0;
    for (const Frame& frame : frames) {
      if (frame.header.type == wire::FrameType::kData) total += frame.payload.size();
    }
    return total;
  }

  static wire::FrameHeader Header(wire::FrameType type, uint64_t channel, uint64_t sequence,
                                  uint64_t offset = 0, uint32_t payload_bytes = 0) {
    wire::FrameHeader header{};
    header.magic = wire::kMagic;
    header.type = type;
    header.generation = kGeneration;
    header.channel = channel;
    header.sequence = sequence;
    header.signature = kSignature;
    header.offset = offset;
    header.payload_bytes = payload_bytes;
    return header;
  }
  void Send(int fd, const wire::FrameHeader& header, std::string payload = "") {
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes += payload;
    size_t sent = 0;
    for (int tries = 0; sent < bytes.size() && tries < 1000; ++tries) {
      const ssize_t count = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count > 0) sent += static_cast<size_t>(count);
      Drive(2);
    }
  }
  void SendData(uint64_t channel, uint64_t sequence, uint64_t offset, const std::string& payload) {
    Send(to_left_.get(),
         Header(wire::FrameType::kData, channel, sequence, offset,
                static_cast<uint32_t>(payload.size())),
         payload);
  }
  void SendReady(uint64_t channel, uint64_t sequence, uint64_t limit) {
    Send(from_right_.get(), Header(wire::FrameType::kReady, channel, sequence, limit));
  }

  // An allreduce of bytes in place; all of this node's bytes are `fill`.
  // Sequences of the READYs since the last call.
  std::vector<uint64_t> Announced() {
    std::vector<uint64_t> sequences;
    for (const Frame& frame : SentLeft()) {
      EXPECT_EQ(frame.header.type, wire::FrameType::kReady);
      sequences.push_back(frame.header.sequence);
    }
    return sequences;
  }
  void StartAllreduce(uint64_t channel, uint64_t sequence, uint64_t count, uint8_t fill = 1) {
    buffers_.emplace_back(count, std::byte{fill});
    auto collective = std::make_shared<Collective>();
    collective->operation = Operation::kAllreduce;
    collective->dtype = DType::kUInt8;
    collective->reduction = Reduction::kSum;
    collective->count = count;
    collective->signature = kSignature;
    collective->ranks.push_back({buffers_.back().data(), buffers_.back().data()});
    communicator_->Start({channel, sequence}, collective,
                         [this](const Outcome& outcome) { outcomes_.push_back(outcome); });
    Drive();
  }

  void ExpectBroken(const std::string& what) {
    Drive();
    ASSERT_EQ(ring_failures_.size(), 1u) << what;
    EXPECT_EQ(ring_failures_[0].code, arena::Code::kPeerFailed);
    EXPECT_EQ(ring_failures_[0].node, "b");
    EXPECT_NE(ring_failures_[0].message.find("node b broke the data protocol"), std::string::npos)
        << ring_failures_[0].message;
    EXPECT_NE(ring_failures_[0].message.find(what), std::string::npos)
        << ring_failures_[0].message << " for " << what;
  }

  EventLoop loop_;
  UniqueFd from_right_;  // The peer as right neighbour.
  UniqueFd to_left_;     // The peer as left neighbour.
  std::string right_bytes_;
  std::string left_bytes_;
  std::vector<Outcome> ring_failures_;
  std::vector<Outcome> outcomes_;
  std::deque<std::vector<std::byte>> buffers_;
  std::unique_ptr<Communicator> communicator_;
};

TEST_F(RingPeerTest, Ready_NotYet_OnlyTheEagerWindowIsSent) {
  StartAllreduce(0, 1, 16 << 20);
  EXPECT_EQ(DataBytes(SentRight()), uint64_t{wire::kEagerWindowBytes});
  StartAllreduce(1, 1, 16 << 20);
  EXPECT_EQ(DataBytes(SentRight()), 0u);
  SendReady(0, 1, (1 << 20) + 2 * kPiece);  // Frees the window and allows two pieces more.
  std::vector<Frame> frames = SentRight();
  uint64_t first = 0, second = 0;
  for (const Frame& frame : frames)
    (frame.header.channel == 0 ? first : second) += frame.payload.size();
  EXPECT_EQ(first, 2 * kPiece);
  EXPECT_EQ(second, uint64_t{wire::kEagerWindowBytes});
}

TEST_F(RingPeerTest, Start_MoreThanFour_AnnouncesFourInOrder) {
  for (uint64_t sequence = 1; sequence <= 10; ++sequence) StartAllreduce(0, sequence, 100'000);
  EXPECT_EQ(Announced(), (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_F(RingPeerTest, Start_ManySmall_AnnouncesSixtyFourAndNoneBehindALargeOne) {
  for (uint64_t sequence = 1; sequence <= 80; ++sequence) StartAllreduce(0, sequence, 4);
  for (uint64_t sequence = 1; sequence <= 9; ++sequence) {
    StartAllreduce(1, sequence, sequence == 6 ? 100'000 : 4);
  }
  std::vector<uint64_t> expected(64);
  std::iota(expected.begin(), expected.end(), 1);
  for (const uint64_t sequence : {1, 2, 3, 4, 5}) expected.push_back(sequence);
  EXPECT_EQ(Announced(), expected);
}

TEST_F(RingPeerTest, EarlyPayload_BeforeTheStart_IsKeptAndUsed) {
  // Two nodes: we own segment 0 first, the peer's first is segment 1, of bytes 3 and 4 of 5.
  SendData(0, 1, 0, "\x10\x20");
  SendReady(0, 1, 5);
  StartAllreduce(0, 1, 5);
  const std::vector<Frame> frames = SentRight();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].payload, "\x01\x01\x01");
  EXPECT_EQ(frames[1].payload, "\x11\x21");
  EXPECT_TRUE(outcomes_.empty());
  SendData(0, 1, 2, "\x05\x06\x07");
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(outcomes_[0].ok());
  const uint8_t expected[] = {5, 6, 7, 0x11, 0x21};
  EXPECT_EQ(memcmp(buffers_[0].data(), expected, 5), 0);
}

TEST_F(RingPeerTest, Abort_InMidFrame_FinishesTheFrameWithItsOldBytes) {
  SendReady(0, 1, 16 << 20);
  StartAllreduce(0, 1, 16 << 20, 9);  // The socket takes a part of the first frames only.
  communicator_->Abort({0, 1}, {arena::Code::kInvalidArgument, "no more"});
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].message, "no more");
  std::fill(buffers_[0].begin(), buffers_[0].end(), std::byte{0xff});
  buffers_[0].clear();
  buffers_[0].shrink_to_fit();
  const std::vector<Frame> frames = SentRight();
  ASSERT_GE(frames.size(), 2u);
  size_t aborts = 0;
  for (const Frame& frame : frames) {
    if (frame.header.type == wire::FrameType::kAbort) {
      ++aborts;
      continue;
    }
    EXPECT_EQ(aborts, 0u) << "payload after the abort";
    EXPECT_EQ(frame.payload.find_first_not_of('\x09'), std::string::npos);
  }
  EXPECT_EQ(aborts, 1u);
  // Payload that is still on its way to us goes nowhere.
  SendData(0, 1, 0, std::string(kPiece, 'x'));
  Drive();
  EXPECT_TRUE(ring_failures_.empty());
}

TEST_F(RingPeerTest, Abort_WhileItsPayloadComes_DiscardsTheRest) {
  StartAllreduce(0, 1, 4 * kPiece);
  const wire::FrameHeader header = Header(wire::FrameType::kData, 0, 1, 0, kPiece);
  Send(to_left_.get(), header, std::string(1000, 'x'));
  communicator_->Abort({0, 1}, {arena::Code::kInvalidArgument, "no more"});
  ASSERT_EQ(outcomes_.size(), 1u);
  buffers_[0].clear();
  buffers_[0].shrink_to_fit();
  const std::string rest(kPiece - 1000, 'x');
  size_t sent = 0;
  while (sent < rest.size()) {
    const ssize_t count =
        send(to_left_.get(), rest.data() + sent, rest.size() - sent, MSG_NOSIGNAL);
    if (count > 0) sent += static_cast<size_t>(count);
    Drive(2);
  }
  // The stream is still in step: the next operation works.
  SendData(0, 2, 0, "\x01");
  SendReady(0, 2, 2);
  StartAllreduce(0, 2, 2);
  SendData(0, 2, 1, "\x05");
  SentRight();  // Makes room in the socket for what is left of the first operation's frame.
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_TRUE(outcomes_[1].ok());
  EXPECT_TRUE(ring_failures_.empty());
}

TEST_F(RingPeerTest, Flood_SeenBefore_IsNotAppliedAgain) {
  int told = 0;
  communicator_->set_peer_failure_handler([&](OperationKey, bool, const Outcome&) { ++told; });
  const std::string text = EncodeFailure({{arena::Code::kPeerFailed, "x"}, ""});
  wire::FrameHeader header =
      Header(wire::FrameType::kAbort, 0, 1, 0, static_cast<uint32_t>(text.size()));
  header.origin = 1;
  header.flood = 1;
  Send(to_left_.get(), header, text);
  Send(from_right_.get(), header, text);
  EXPECT_EQ(told, 1);
  header.sequence = 2;
  header.flood = 2;
  Send(from_right_.get(), header, text);
  EXPECT_EQ(told, 2);
  // Each was passed on once, to the other side.
  EXPECT_EQ(SentRight().size(), 1u);
  EXPECT_EQ(SentLeft().size(), 1u);
}

TEST_F(RingPeerTest, Peer_Closes_AfterItsLastWords_TheyAreHeard) {
  StartAllreduce(0, 1, 1000);
  const std::string text =
      EncodeFailure({{arena::Code::kPeerFailed, "rank 3 died", 3, "z", -1, 9, "tail"}, ""});
  wire::FrameHeader header =
      Header(wire::FrameType::kAbortFrom, 0, 1, 0, static_cast<uint32_t>(text.size()));
  header.origin = 1;
  header.flood = 1;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += text;
  ASSERT_EQ(send(from_right_.get(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  from_right_.reset();
  Drive();
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].message, "rank 3 died");
  EXPECT_EQ(outcomes_[0].signal, 9);
  EXPECT_EQ(outcomes_[0].stderr_tail, "tail");
  ASSERT_EQ(ring_failures_.size(), 1u);
  EXPECT_NE(ring_failures_[0].message.find("lost connection to node b"), std::string::npos);
}

TEST_F(RingPeerTest, Early_MoreThanTheWindow_BreaksTheRing) {
  for (int i = 0; i < 4; ++i) SendData(0, 1, i * kPiece, std::string(kPiece, 'x'));
  Drive();
  EXPECT_TRUE(ring_failures_.empty());
  SendData(1, 1, 0, "x");
  ExpectBroken("eager window");
}

TEST_F(RingPeerTest, Early_MoreFramesThanAllowed_BreaksTheRing) {
  for (int i = 0; i < 8; ++i) SendData(0, 1, i, "x");
  EXPECT_TRUE(ring_failures_.empty());
  SendData(0, 1, 8, "x");
  ExpectBroken("eager window");
}

TEST_F(RingPeerTest, Early_FramesThatDontFit_BreakTheRingAtTheStart) {
  SendData(0, 1, 0, "xyz");
  StartAllreduce(0, 1, 5);
  ExpectBroken("does not fit");
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].code, arena::Code::kPeerFailed);
}

TEST_F(RingPeerTest, Data_AtAnotherOffset_BreaksTheRing) {
  StartAllreduce(0, 1, 5);
  SendData(0, 1, 1, "xy");
  ExpectBroken("does not fit");
}

TEST_F(RingPeerTest, Data_OfAnotherSize_BreaksTheRing) {
  StartAllreduce(0, 1, 4 * kPiece);
  SendData(0, 1, 0, std::string(kPiece + 1, 'x'));
  ExpectBroken("does not fit");
}

TEST_F(RingPeerTest, Data_EmptyWhereBytesAreDue_BreaksTheRing) {
  StartAllreduce(0, 1, 5);
  SendData(0, 1, 0, "");
  ExpectBroken("empty frame");
}

TEST_F(RingPeerTest, Data_FromTheRight_BreaksTheRing) {
  Send(from_right_.get(), Header(wire::FrameType::kData, 0, 1, 0, 1), "x");
  ExpectBroken("left neighbour");
}

TEST_F(RingPeerTest, Data_OfAnOperationThatIsOver_BreaksTheRing) {
  StartAllreduce(0, 1, 2);
  SendReady(0, 1, 2);
  SendData(0, 1, 0, "x");
  SendData(0, 1, 1, "y");
  ASSERT_EQ(outcomes_.size(), 1u);
  SendData(0, 1, 2, "z");
  ExpectBroken("is over");
}

TEST_F(RingPeerTest, Ready_FromTheLeft_BreaksTheRing) {
  Send(to_left_.get(), Header(wire::FrameType::kReady, 0, 1));
  ExpectBroken("READY");
}

TEST_F(RingPeerTest, Ready_BeyondTheStream_BreaksTheRing) {
  StartAllreduce(0, 1, 4);
  SendReady(0, 1, 5);
  ExpectBroken("limit");
}

TEST_F(RingPeerTest, Ready_TakenBack_BreaksTheRing) {
  StartAllreduce(0, 1, 4 * kPiece);
  SendReady(0, 1, 2 * kPiece);
  SendReady(0, 1, kPiece);
  ExpectBroken("limit");
}

TEST_F(RingPeerTest, Header_EachFieldWrong_BreaksTheRing) {
  using Type = wire::FrameType;
  std::vector<std::pair<std::string, wire::FrameHeader>> lies;
  const auto add = [&](const std::string& what, wire::FrameHeader header) {
    lies.push_back({what, header});
  };
  wire::FrameHeader header = Header(Type::kPing, 0, 0);
  header.magic = 1;
  add("no frame", header);
  header = Header(Type::kPing, 0, 0);
  header.generation = 5;
  add("generation 5", header);
  header = Header(Type::kPing, 0, 0);
  header.flags = 1;
  add("flags 1", header);
  add("type 0", Header(Type::kInvalid, 0, 0));
  add("type 9", Header(static_cast<Type>(9), 0, 0));
  add("type 5", Header(Type::kPing, 0, 0, 0, 1));
  add("type 1", Header(Type::kReady, 0, 1, 0, 1));
  add("type 2", Header(Type::kData, 0, 1, 0, (1 << 20) + 1));
  add("type 3", Header(Type::kAbort, 0, 1, 0, 8));
  add("type 4", Header(Type::kAbortFrom, 0, 1, 0, (1 << 20) + 1));
  for (const auto& [what, lie] : lies) {
    SetUp();
    ring_failures_.clear();
    Send(to_left_.get(), lie);
    ExpectBroken(what);
  }
}

TEST_F(RingPeerTest, Flood_Malformed_BreaksTheRing) {
  const std::string good = EncodeFailure({{arena::Code::kPeerFailed, "x"}, ""});
  std::vector<std::pair<wire::FrameHeader, std::string>> lies;
  const auto add = [&](const std::string& text, uint32_t origin, uint32_t flood, uint64_t channel) {
    wire::FrameHeader header =
        Header(wire::FrameType::kAbort, channel, 1, 0, static_cast<uint32_t>(text.size()));
    header.origin = origin;
    header.flood = flood;
    lies.push_back({header, text});
  };
  add(good, 2, 1, 0);
  add(good, 1, 0, 0);
  add(good, 1, 1, wire::kAllChannels);
  add(good + "more", 1, 1, 0);
  std::string bad = good;
  bad[0] = 0;  // kOk.
  add(bad, 1, 1, 0);
  bad[0] = 12;  // No code.
  add(bad, 1, 1, 0);
  bad = good;
  bad[16] = static_cast<char>(200);  // message_bytes.
  add(bad, 1, 1, 0);
  for (const auto& [header, text] : lies) {
    SetUp();
    ring_failures_.clear();
    Send(from_right_.get(), header, text);
    ExpectBroken("malformed");
  }
}

TEST(RingFailure, Encode_LongTexts_AreCutToOneFlood) {
  RingFailureText failure;
  failure.outcome.code = arena::Code::kMismatch;
  failure.outcome.message = std::string(100'000, 'm');
  failure.outcome.node = "n";
  failure.description = std::string(2'000'000, 'd');
  const std::string text = EncodeFailure(failure);
  EXPECT_LE(text.size(), wire::kMaxTextBytes);
  const auto decoded = DecodeFailure(reinterpret_cast<const std::byte*>(text.data()), text.size());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->outcome.node, "n");
  EXPECT_EQ(decoded->outcome.message.size(), 65536u);
  EXPECT_GT(decoded->description.size(), 800'000u);
}

}  // namespace
}  // namespace ringd::daemon
