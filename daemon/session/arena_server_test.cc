#include "daemon/session/arena_server.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/sealed_memory.h"
#include "common/base/version.h"
#include "daemon/session/fake_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/arena.h"

namespace ringd::daemon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kBytes = arena::kMinBytes;
constexpr int64_t kAnswerMicros = 5'000'000;

// Short: test folders' own names are longer than a socket's path may be.
std::string ShortDirectory() {
  char name[] = "/tmp/arena-XXXXXX";
  return mkdtemp(name) == nullptr ? "" : name;
}

class ArenaServerTest : public testing::Test {
 protected:
  ArenaServerTest()
      : directory_(ShortDirectory()),
        path_(directory_ + "/a.sock"),
        table_({.node = "a", .arena_socket = path_}) {
    cluster::v1::Prepare order;
    order.set_job("j-1");
    order.set_uid(getuid());
    order.set_token("token");
    order.add_nodes()->set_rank_count(2);
    table_.AddJob(order);
    ArenaServerOptions options;
    options.path = path_;
    options.arena_max_bytes = 4 * kBytes;
    server_ = ArenaServer::Create(options, &engine_, &table_).value();
    secret_ = Attach();
    socket_ = Connect();
  }

  ~ArenaServerTest() override {
    server_.reset();
    rmdir(directory_.c_str());
  }

  std::string Attach() {
    node::v1::AttachRequest request;
    request.set_job("j-1");
    request.set_token("token");
    request.set_layout_version(arena::kLayoutVersion);
    request.set_version(kVersion);
    return table_.AttachProgram({getpid(), getuid(), getgid()}, request).value().session();
  }
  UniqueFd Connect() {
    UniqueFd socket;
    EXPECT_EQ(ConnectUnix(path_, SOCK_SEQPACKET, &socket), 0);
    return socket;
  }
  static UniqueFd Memory(uint64_t bytes = kBytes) {
    UniqueFd fd;
    EXPECT_EQ(CreateSealedMemory("test", bytes, &fd), 0);
    return fd;
  }
  attach::ArenaOffer Offer(uint64_t arena, uint32_t segment = 0, uint64_t bytes = kBytes) const {
    attach::ArenaOffer offer{};
    offer.header = {attach::Kind::kArenaOffer, attach::kVersion};
    memcpy(offer.session, secret_.data(), secret_.size());
    offer.arena = arena;
    offer.segment = segment;
    offer.bytes = bytes;
    return offer;
  }
  // The answer's code, -1: the connection was closed. Its text and descriptors are kept.
  template <typename Message>
  int Ask(const Message& message, const std::vector<int>& fds) {
    return AskBytes(&message, sizeof(message), fds);
  }
  int AskBytes(const void* data, size_t bytes, const std::vector<int>& fds) {
    if (SendPacket(socket_.get(), data, bytes, fds.data(), static_cast<int>(fds.size())) < 0)
      return -1;
    attach::ArenaAccept accept{};
    answer_fds_.clear();
    const ssize_t got =
        ReceivePacket(socket_.get(), &accept, sizeof(accept), &answer_fds_, kAnswerMicros);
    if (got != sizeof(accept) || accept.header.kind != attach::Kind::kArenaAccept) return -1;
    text_ = accept.text;
    return static_cast<int>(accept.code);
  }
  static constexpr int Code(arena::Code code) { return static_cast<int>(code); }

  const std::string directory_;
  const std::string path_;
  FakeEngine engine_;
  SessionTable table_;
  std::unique_ptr<ArenaServer> server_;
  std::string secret_;
  UniqueFd socket_;
  std::string text_;
  std::vector<UniqueFd> answer_fds_;
};

TEST_F(ArenaServerTest, Offer_FirstAndSecondSegment_ReachTheEngine) {
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
  EXPECT_EQ(answer_fds_.size(), 1u);  // The doorbell.
  EXPECT_EQ(Ask(Offer(1, 1, 8192), {Memory(8192).get()}), Code(arena::Code::kOk));
  EXPECT_TRUE(answer_fds_.empty());
  EXPECT_THAT(engine_.Take(), ElementsAre("client j-1 0 1 16777216", "segment j-1 0 1 1 8192"));
}

TEST_F(ArenaServerTest, Offer_OfUnsealedOrSmallMemory_IsRefused) {
  const UniqueFd plain(memfd_create("plain", MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(plain.get(), kBytes), 0);
  EXPECT_EQ(Ask(Offer(1), {plain.get()}), Code(arena::Code::kInvalidArgument));
  EXPECT_EQ(Ask(Offer(1, 0, 4096), {Memory(4096).get()}), Code(arena::Code::kInvalidArgument));
  EXPECT_EQ(Ask(Offer(1, 0, 2 * kBytes), {Memory(kBytes).get()}),
            Code(arena::Code::kInvalidArgument));
  EXPECT_EQ(Ask(Offer(1), {0}),
            Code(arena::Code::kInvalidArgument));  // Standard input is no memfd.
  EXPECT_EQ(Ask(Offer(1), {}), Code(arena::Code::kInvalidArgument));
  EXPECT_THAT(engine_.Take(), IsEmpty());
}

TEST_F(ArenaServerTest, Offer_AboveArenaMax_IsRefusedAndNamesIt) {
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
  EXPECT_EQ(Ask(Offer(1, 1, 4 * kBytes), {Memory(4 * kBytes).get()}),
            Code(arena::Code::kResourceExhausted));
  EXPECT_THAT(text_, HasSubstr("arena_max"));
}

TEST_F(ArenaServerTest, Offer_SegmentOutOfTurn_IsRefused) {
  EXPECT_EQ(Ask(Offer(1, 1, 8192), {Memory(8192).get()}), Code(arena::Code::kInvalidArgument));
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
  EXPECT_EQ(Ask(Offer(1, 2, 8192), {Memory(8192).get()}), Code(arena::Code::kInvalidArgument));
  EXPECT_EQ(Ask(Offer(2, 1, 8192), {Memory(8192).get()}), Code(arena::Code::kInvalidArgument));
}

TEST_F(ArenaServerTest, Offer_WrongSession_IsRefused) {
  attach::ArenaOffer offer = Offer(1);
  offer.session[5] ^= 1;
  EXPECT_EQ(Ask(offer, {Memory().get()}), Code(arena::Code::kUnavailable));
  EXPECT_THAT(engine_.Take(), IsEmpty());
}

TEST_F(ArenaServerTest, Offer_SameMemoryAfterReattach_IsAcceptedWithoutTheEngine) {
  const UniqueFd memory = Memory();
  EXPECT_EQ(Ask(Offer(1), {memory.get()}), Code(arena::Code::kOk));
  engine_.Take();
  secret_ = Attach();
  socket_ = Connect();
  EXPECT_EQ(Ask(Offer(1), {memory.get()}), Code(arena::Code::kOk));
  EXPECT_EQ(answer_fds_.size(), 1u);
  EXPECT_THAT(engine_.Take(), IsEmpty());
}

TEST_F(ArenaServerTest, Offer_ArenaThatAnotherDaemonHasServed_JobsOperationsFailFirst) {
  const UniqueFd memory = Memory();
  const uint64_t incarnation = 77;
  ASSERT_EQ(pwrite(memory.get(), &incarnation, sizeof(incarnation),
                   offsetof(arena::ArenaHeader, incarnation)),
            8);
  EXPECT_EQ(Ask(Offer(1), {memory.get()}), Code(arena::Code::kOk));
  EXPECT_THAT(engine_.Take(), ElementsAre(HasSubstr("fail j-1 the daemon was restarted"),
                                          HasSubstr("client j-1 0 1")));
}

TEST_F(ArenaServerTest, Offer_OtherMemoryWhileAClientIsThere_IsRefusedUntilItIsDetachedOrReplaced) {
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
  EXPECT_NE(Ask(Offer(2), {Memory().get()}), Code(arena::Code::kOk));
  attach::ClientDetached detached{};
  detached.header = {attach::Kind::kClientDetached, attach::kVersion};
  memcpy(detached.session, secret_.data(), secret_.size());
  detached.arena = 1;
  EXPECT_EQ(Ask(detached, {}), Code(arena::Code::kOk));
  EXPECT_EQ(Ask(Offer(2), {Memory().get()}), Code(arena::Code::kOk));
  engine_.Take();
  secret_ = Attach();  // Another program of the rank.
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
  EXPECT_THAT(engine_.Take(), ElementsAre("gone j-1 0 2", "client j-1 0 1 16777216"));
}

TEST_F(ArenaServerTest, ClientAttached_WithItsPidfdOnly) {
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
  engine_.Take();
  attach::ClientAttached attached{};
  attached.header = {attach::Kind::kClientAttached, attach::kVersion};
  memcpy(attached.session, secret_.data(), secret_.size());
  attached.arena = 1;
  attached.pid = getpid();
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  ASSERT_TRUE(pidfd.valid());
  EXPECT_EQ(Ask(attached, {0}), Code(arena::Code::kInvalidArgument));
  EXPECT_EQ(Ask(attached, {pidfd.get()}), Code(arena::Code::kOk));
  EXPECT_THAT(engine_.Take(), ElementsAre("process j-1 0 1 me"));
  attached.pid = 1;
  EXPECT_EQ(Ask(attached, {pidfd.get()}), Code(arena::Code::kInvalidArgument));
}

TEST_F(ArenaServerTest, Packet_OfNoKnownKindOrSize_ClosesThisConnectionAlone) {
  UniqueFd other = Connect();
  const attach::Header header{attach::Kind::kWelcome, attach::kVersion};
  EXPECT_EQ(Ask(header, {}), -1);
  socket_ = Connect();
  EXPECT_EQ(AskBytes("x", 1, {}), -1);
  socket_ = Connect();
  const std::string large(8000, 'x');
  EXPECT_EQ(AskBytes(large.data(), large.size(), {}), -1);
  socket_ = std::move(other);
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
}

TEST_F(ArenaServerTest, Packet_OfAnotherVersion_IsAnsweredWithBoth) {
  attach::ArenaOffer offer = Offer(1);
  offer.header.version = 77;
  EXPECT_EQ(Ask(offer, {}), Code(arena::Code::kInvalidArgument));
  EXPECT_THAT(text_, HasSubstr("77"));
}

TEST_F(ArenaServerTest, EndRank_ReleasesItsArena) {
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), Code(arena::Code::kOk));
  engine_.Take();
  server_->EndRank("j-1", 0);
  server_->EndRank("j-1", 1);  // Has none.
  EXPECT_EQ(Ask(Offer(2), {Memory().get()}), Code(arena::Code::kOk));
  EXPECT_THAT(engine_.Take(), ElementsAre("gone j-1 0 1", "client j-1 0 2 16777216"));
}

TEST_F(ArenaServerTest, Connect_OfAUserWithoutAJob_IsClosed) {
  table_.RemoveJob("j-1");
  socket_ = Connect();
  EXPECT_EQ(Ask(Offer(1), {Memory().get()}), -1);
}

TEST_F(ArenaServerTest, Create_WhereAnotherServes_IsRefused) {
  ArenaServerOptions options;
  options.path = path_;
  EXPECT_TRUE(absl::IsAlreadyExists(ArenaServer::Create(options, &engine_, &table_).status()));
}

}  // namespace
}  // namespace ringd::daemon
