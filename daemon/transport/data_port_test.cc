#include "daemon/transport/data_port.h"

#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/fd.h"
#include "daemon/transport/handshake.h"
#include "daemon/transport/tcp.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

const char* const kKey = "0123456789abcdef0123456789abcdef";

std::string Address(const DataPort& port) { return absl::StrCat("127.0.0.1:", port.port()); }

std::unique_ptr<DataPort> MakePort(EventLoop* loop) {
  auto port = DataPort::Create(loop, "127.0.0.1:0");
  EXPECT_TRUE(port.ok()) << port.status();
  return *std::move(port);
}

RingOptions Options(int node, int count, const DataPort& right) {
  RingOptions options;
  options.job = "job-1";
  options.generation = 3;
  options.key = kKey;
  options.node_index = node;
  options.node_count = count;
  options.right_address = Address(right);
  options.connect_timeout = absl::Seconds(20);
  return options;
}

// What an OpenRing has come to.
struct Opening {
  std::optional<absl::StatusOr<RingSockets>> result;
  DataPort::RingDone Done() {
    return [this](absl::StatusOr<RingSockets> value) {
      EXPECT_FALSE(result.has_value());
      result = value;
    };
  }
  ~Opening() {
    if (!result.has_value() || !result->ok()) return;
    close((*result)->right);
    close((*result)->left);
    for (const SocketPair& pair : (*result)->shortcuts) {
      close(pair.right);
      close(pair.left);
    }
  }
};

template <typename Condition>
bool PollUntil(EventLoop* loop, Condition condition, absl::Duration limit = absl::Seconds(30)) {
  const absl::Time end = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > end) return false;
    loop->Poll(absl::Milliseconds(20));
  }
  return true;
}

UniqueFd Connect(const DataPort& port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

bool IsClosed(int fd) {
  char byte;
  const ssize_t count = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return count == 0 || (count < 0 && errno != EAGAIN);
}

void ExpectConnected(int from, int to) {
  const char sent = 'x';
  char received = 0;
  ASSERT_EQ(send(from, &sent, 1, MSG_NOSIGNAL), 1);
  pollfd ready{to, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
  ASSERT_EQ(recv(to, &received, 1, 0), 1);
  EXPECT_EQ(received, sent);
}

class Rings : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    for (int i = 0; i < count_; ++i) ports_.push_back(MakePort(&loop_));
    for (int i = 0; i < count_; ++i) {
      RingOptions options = Options(i, count_, *ports_[(i + 1) % count_]);
      for (int k = 1; k <= ShortcutCount(count_); ++k) {
        options.shortcut_addresses.push_back(Address(*ports_[(i + (1 << k)) % count_]));
      }
      ports_[i]->OpenRing(options, openings_[i].Done());
    }
    for (Opening& opening : openings_) {
      ASSERT_TRUE(PollUntil(&loop_, [&] { return opening.result.has_value(); }));
      ASSERT_TRUE(opening.result->ok()) << opening.result->status();
    }
  }
  // Of node i, counted round.
  const RingSockets& sockets(int i) const { return **openings_[i % count_].result; }

  const int count_ = GetParam();
  EventLoop loop_;
  std::vector<std::unique_ptr<DataPort>> ports_;
  std::vector<Opening> openings_ = std::vector<Opening>(count_);
};

TEST_P(Rings, OpenRing_OnAllNodes_ConnectsEachToItsRightNeighbour) {
  for (int i = 0; i < count_; ++i) {
    ExpectConnected(sockets(i).right, sockets(i + 1).left);
    ExpectConnected(sockets(i + 1).left, sockets(i).right);
  }
}

TEST_P(Rings, OpenRing_Shortcuts_ConnectEachToNodesFurtherRight) {
  const size_t expected = count_ < 4 ? 0 : count_ == 4 ? 1 : 2;  // 2; 2 and 4 places.
  for (int i = 0; i < count_; ++i) {
    ASSERT_EQ(sockets(i).shortcuts.size(), expected);
    for (size_t k = 0; k < expected; ++k) {
      ExpectConnected(sockets(i).shortcuts[k].right, sockets(i + (2 << k)).shortcuts[k].left);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(NodeCounts, Rings, testing::Values(2, 3, 4, 5, 8));

TEST(DataPort, OpenRing_ShortcutMissing_NamesTheNode) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  auto c = MakePort(&loop);
  RingOptions options = Options(0, 4, *b);
  options.shortcut_addresses = {Address(*c)};
  options.connect_timeout = absl::Milliseconds(200);
  c.reset();
  Opening opening;
  a->OpenRing(options, opening.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return opening.result.has_value(); }));
  const std::string message(opening.result->status().message());
  EXPECT_NE(message.find("can't reach node 2 at " + options.shortcut_addresses[0]),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("node 2, has not connected"), std::string::npos) << message;
}

TEST(DataPort, OpenRing_WrongNumberOfShortcuts_IsInvalid) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  for (const int count : {2, 3, 5}) {  // None, none, two would fit.
    RingOptions options = Options(0, count, *a);
    options.shortcut_addresses = {Address(*a)};
    Opening opening;
    a->OpenRing(options, opening.Done());
    ASSERT_TRUE(PollUntil(&loop, [&] { return opening.result.has_value(); }));
    EXPECT_EQ(opening.result->status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(DataPort, Create_AddressTaken_NamesAddressAndCause) {
  EventLoop loop;
  const auto port = MakePort(&loop);
  const auto second = DataPort::Create(&loop, Address(*port));
  ASSERT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(Address(*port)), std::string::npos);
  EXPECT_NE(second.status().message().find("in use"), std::string::npos);
}

TEST(DataPort, Create_NoPort_IsInvalid) {
  EventLoop loop;
  for (const char* address : {"", "localhost", "localhost:", "localhost:70000", ":1", "::1:5"}) {
    EXPECT_EQ(DataPort::Create(&loop, address).status().code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(DataPort, OpenRing_HostName_IsResolved) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  Opening at_a, at_b;
  RingOptions options = Options(0, 2, *b);
  options.right_address = absl::StrCat("localhost:", b->port());
  a->OpenRing(options, at_a.Done());
  b->OpenRing(Options(1, 2, *a), at_b.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return at_a.result && at_b.result; }));
  EXPECT_TRUE(at_a.result->ok()) << at_a.result->status();
}

TEST(DataPort, OpenRing_NeighbourOpensLater_HoldsTheConnection) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  Opening at_a, at_b;
  a->OpenRing(Options(0, 2, *b), at_a.Done());
  EXPECT_FALSE(PollUntil(
      &loop, [&] { return at_a.result.has_value(); }, absl::Milliseconds(200)));
  b->OpenRing(Options(1, 2, *a), at_b.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return at_a.result && at_b.result; }));
  EXPECT_TRUE(at_a.result->ok()) << at_a.result->status();
  EXPECT_TRUE(at_b.result->ok()) << at_b.result->status();
}

TEST(DataPort, OpenRing_NeighbourListensLater_DialsAgain) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  auto b = MakePort(&loop);
  const std::string b_address = Address(*b);
  Opening at_a, at_b;
  RingOptions options = Options(0, 2, *b);
  b.reset();
  a->OpenRing(options, at_a.Done());
  EXPECT_FALSE(PollUntil(
      &loop, [&] { return at_a.result.has_value(); }, absl::Milliseconds(100)));
  auto again = DataPort::Create(&loop, b_address);
  ASSERT_TRUE(again.ok()) << again.status();
  (*again)->OpenRing(Options(1, 2, *a), at_b.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return at_a.result && at_b.result; }));
  EXPECT_TRUE(at_a.result->ok()) << at_a.result->status();
}

TEST(DataPort, OpenRing_OtherKey_IsUnauthenticated) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  Opening at_a, at_b;
  RingOptions options = Options(0, 2, *b);
  options.key[31] = 'X';
  a->OpenRing(options, at_a.Done());
  b->OpenRing(Options(1, 2, *a), at_b.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return at_a.result && at_b.result; }));
  EXPECT_EQ(at_a.result->status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(at_b.result->status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_NE(at_a.result->status().message().find(Address(*b)), std::string::npos);
}

TEST(DataPort, OpenRing_NobodyThere_NamesNeighboursAtTheDeadline) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  auto b = MakePort(&loop);
  RingOptions options = Options(0, 2, *b);
  options.connect_timeout = absl::Milliseconds(200);
  b.reset();
  Opening opening;
  a->OpenRing(options, opening.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return opening.result.has_value(); }));
  const absl::Status status = opening.result->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find(options.right_address), std::string::npos) << status;
  EXPECT_NE(status.message().find("refused"), std::string::npos) << status;
  EXPECT_NE(status.message().find("node 1, has not connected"), std::string::npos) << status;
}

TEST(DataPort, OpenRing_BadOptions_AreInvalid) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  std::vector<RingOptions> bad(5, Options(0, 2, *a));
  bad[0].job = "";
  bad[1].job = std::string(64, 'j');
  bad[2].key = "short";
  bad[3].node_index = 2;
  bad[4].right_address = "nowhere";
  for (const RingOptions& options : bad) {
    Opening opening;
    a->OpenRing(options, opening.Done());
    ASSERT_TRUE(PollUntil(&loop, [&] { return opening.result.has_value(); }));
    EXPECT_EQ(opening.result->status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(DataPort, OpenRing_Twice_SecondIsRefused) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  Opening first, second;
  a->OpenRing(Options(0, 2, *a), first.Done());
  a->OpenRing(Options(0, 2, *a), second.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return second.result.has_value(); }));
  EXPECT_EQ(second.result->status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(first.result.has_value());
}

TEST(DataPort, CloseRing_BeforeItIsDone_ForgetsTheCallback) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  Opening opening;
  RingOptions options = Options(0, 2, *b);
  options.connect_timeout = absl::Milliseconds(20);
  a->OpenRing(options, opening.Done());
  loop.Poll(absl::ZeroDuration());
  a->CloseRing(options.job, options.generation);
  a->CloseRing(options.job, options.generation);
  EXPECT_FALSE(PollUntil(
      &loop, [&] { return opening.result.has_value(); }, absl::Milliseconds(60)));
}

TEST(DataPort, Accept_Garbage_IsDroppedAndRingsStillForm) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  Opening at_a, at_b;
  b->OpenRing(Options(1, 2, *a), at_b.Done());
  const UniqueFd stranger = Connect(*b);
  const char request[] = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_GT(send(stranger.get(), request, sizeof(request), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(PollUntil(&loop, [&] { return IsClosed(stranger.get()); }));
  a->OpenRing(Options(0, 2, *b), at_a.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return at_a.result && at_b.result; }));
  EXPECT_TRUE(at_a.result->ok() && at_b.result->ok());
}

TEST(DataPort, Accept_WrongProof_NeverReachesTheRing) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  Opening at_a, at_b;
  b->OpenRing(Options(1, 2, *a), at_b.Done());
  const UniqueFd impostor = Connect(*b);
  const wire::Hello hello = MakeHello("job-1", 3, 0, 1);
  ASSERT_EQ(send(impostor.get(), &hello, sizeof(hello), 0), static_cast<ssize_t>(sizeof(hello)));
  wire::Challenge challenge{};
  ASSERT_TRUE(PollUntil(&loop, [&] {
    return recv(impostor.get(), &challenge, sizeof(challenge), MSG_DONTWAIT) ==
           static_cast<ssize_t>(sizeof(challenge));
  }));
  EXPECT_TRUE(CheckChallenge(kKey, hello, challenge));
  const wire::Proof proof = MakeProof(std::string(32, 'k'), hello, challenge);
  ASSERT_EQ(send(impostor.get(), &proof, sizeof(proof), 0), static_cast<ssize_t>(sizeof(proof)));
  EXPECT_TRUE(PollUntil(&loop, [&] { return IsClosed(impostor.get()); }));
  EXPECT_FALSE(at_b.result.has_value());
  a->OpenRing(Options(0, 2, *b), at_a.Done());
  ASSERT_TRUE(PollUntil(&loop, [&] { return at_a.result && at_b.result; }));
  ExpectConnected((*at_a.result)->right, (*at_b.result)->left);
}

TEST(DataPort, Accept_NotTheLeftNeighbour_IsDropped) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  Opening opening;
  a->OpenRing(Options(0, 3, *a), opening.Done());
  const UniqueFd other = Connect(*a);
  const wire::Hello hello = MakeHello("job-1", 3, 1, 0);  // Node 2 is the one on the left.
  ASSERT_EQ(send(other.get(), &hello, sizeof(hello), 0), static_cast<ssize_t>(sizeof(hello)));
  EXPECT_TRUE(PollUntil(&loop, [&] { return IsClosed(other.get()); }));
}

TEST(DataPort, Accept_ManySilentStrangers_AreBoundedAndDontLockOthersOut) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const auto b = MakePort(&loop);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 80; ++i) {
    strangers.push_back(Connect(*b));
    loop.Poll(absl::ZeroDuration());
  }
  Opening at_a, at_b;
  a->OpenRing(Options(0, 2, *b), at_a.Done());
  b->OpenRing(Options(1, 2, *a), at_b.Done());
  ASSERT_TRUE(PollUntil(
      &loop, [&] { return at_a.result && at_b.result; }, absl::Seconds(4)));
  int open = 0;
  for (const UniqueFd& stranger : strangers) open += IsClosed(stranger.get()) ? 0 : 1;
  EXPECT_LE(open, 64);
}

TEST(DataPort, Accept_SilentStranger_IsDroppedAtTheTimeLimit) {
  EventLoop loop;
  const auto a = MakePort(&loop);
  const UniqueFd stranger = Connect(*a);
  const absl::Time start = absl::Now();
  EXPECT_TRUE(PollUntil(&loop, [&] { return IsClosed(stranger.get()); }));
  EXPECT_GE(absl::Now() - start, absl::Seconds(4));
  EXPECT_LE(absl::Now() - start, absl::Seconds(8));
}

TEST(Handshake, CheckHello_EachField_IsChecked) {
  const wire::Hello good = MakeHello("j", 1, 0, 1);
  EXPECT_TRUE(CheckHello(good).ok());
  wire::Hello bad = good;
  bad.magic ^= 1;
  EXPECT_FALSE(CheckHello(bad).ok());
  bad = good;
  bad.version = wire::kVersion + 1;
  EXPECT_FALSE(CheckHello(bad).ok());
  bad = good;
  memset(bad.job, 'j', sizeof(bad.job));
  EXPECT_FALSE(CheckHello(bad).ok());
  bad = good;
  bad.job[0] = '\0';
  EXPECT_FALSE(CheckHello(bad).ok());
}

TEST(Handshake, Macs_OfTheTwoRoles_AreNotInterchangeable) {
  const wire::Hello hello = MakeHello("j", 1, 0, 1);
  const wire::Challenge challenge = MakeChallenge(kKey, hello);
  wire::Proof reflected;
  memcpy(reflected.mac, challenge.mac, sizeof(reflected.mac));
  EXPECT_TRUE(CheckChallenge(kKey, hello, challenge));
  EXPECT_FALSE(CheckProof(kKey, hello, challenge, reflected));
  EXPECT_TRUE(CheckProof(kKey, hello, challenge, MakeProof(kKey, hello, challenge)));
  wire::Hello other = hello;
  other.generation = 2;
  EXPECT_FALSE(CheckProof(kKey, other, challenge, MakeProof(kKey, hello, challenge)));
  other = hello;
  other.group = 2;
  EXPECT_FALSE(CheckProof(kKey, other, challenge, MakeProof(kKey, hello, challenge)));
}

}  // namespace
}  // namespace ringd::daemon
