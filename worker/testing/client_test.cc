// The rank's socket: who gets the arena, what the daemon hears of it.
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/session.h"
#include "common/base/sealed_memory.h"
#include "common/base/unix_socket.h"
#include "gtest/gtest.h"
#include "proto/arena.h"
#include "proto/attach.h"
#include "worker/testing/worker_harness.h"

namespace ringd::worker {
namespace {

template <typename Message>
Message As(const std::vector<char>& packet) {
  Message message;
  memset(&message, 0, sizeof(message));
  EXPECT_EQ(packet.size(), sizeof(message));
  if (packet.size() == sizeof(message)) memcpy(&message, packet.data(), sizeof(message));
  return message;
}

std::string Text(const attach::Refusal& refusal) { return refusal.text; }

class ClientTest : public WorkerTest {
 protected:
  void Start() {
    SetCommand(Shell("exec sleep 60"));
    StartWorker();
    rank_pid_ = ExpectStarted();
  }
  ArenaEvent Expect(ArenaEvent::Kind kind) {
    std::optional<ArenaEvent> event = daemon_.NextArenaEvent();
    EXPECT_TRUE(event.has_value());
    if (!event.has_value()) return {};
    EXPECT_EQ(event->kind, kind);
    return *std::move(event);
  }
  // Hello, offer and attached, all as they should be; the arena's number.
  uint64_t Attach(Answer* client) {
    *client = SayHello();
    EXPECT_EQ(As<attach::Welcome>(client->packet).header.kind, attach::Kind::kWelcome);
    const ArenaEvent offer = Expect(ArenaEvent::Kind::kOffer);
    EXPECT_TRUE(offer.sound);
    EXPECT_EQ(offer.segment, 0u);
    EXPECT_EQ(Expect(ArenaEvent::Kind::kAttached).arena, offer.arena);
    return offer.arena;
  }
  static attach::NeedSegment NeedSegment(uint64_t bytes) {
    attach::NeedSegment need;
    memset(&need, 0, sizeof(need));
    need.header = {attach::Kind::kNeedSegment, attach::kVersion};
    need.bytes = bytes;
    return need;
  }
  // A process that says hello and then waits to be killed; -1 if it was refused.
  pid_t ForkClient() {
    int ends[2];
    if (pipe(ends) < 0) abort();
    const pid_t pid = fork();
    if (pid == 0) {
      const Answer answer = SayHello();
      const char ok = answer.packet.size() == sizeof(attach::Welcome) ? 'y' : 'n';
      if (write(ends[1], &ok, 1) != 1) _exit(1);
      while (true) pause();
    }
    char ok = 'n';
    const bool answered = read(ends[0], &ok, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return answered && ok == 'y' ? pid : -1;
  }
  pid_t rank_pid_ = 0;
};

TEST_F(ClientTest, Hello_GetsRankAndArena) {
  Start();
  const Answer answer = SayHello();
  const auto welcome = As<attach::Welcome>(answer.packet);
  EXPECT_EQ(welcome.header.kind, attach::Kind::kWelcome);
  EXPECT_EQ(welcome.rank, 3);
  EXPECT_EQ(welcome.size, 4);
  EXPECT_EQ(welcome.local_rank, 1);
  EXPECT_EQ(welcome.local_size, 2);
  EXPECT_EQ(welcome.node_rank, 1);
  EXPECT_EQ(welcome.node_count, 2);
  EXPECT_EQ(welcome.generation, 7u);
  EXPECT_EQ(welcome.arena_bytes, 16u << 20);
  EXPECT_EQ(welcome.arena_max_bytes, 64u << 20);
  EXPECT_STREQ(welcome.job, "j-1");
  EXPECT_STREQ(welcome.node, "node-a");
  ASSERT_EQ(answer.fds.size(), 2u);
  EXPECT_EQ(CheckSealedMemory(answer.fds[0].get(), 16u << 20), 0);
  const uint64_t ring = 5;
  ASSERT_EQ(write(answer.fds[1].get(), &ring, sizeof(ring)), 8);
  uint64_t rung = 0;
  ASSERT_EQ(read(daemon_.doorbell(), &rung, sizeof(rung)), 8);
  EXPECT_EQ(rung, 5u);

  const ArenaEvent offer = Expect(ArenaEvent::Kind::kOffer);
  EXPECT_TRUE(offer.sound);
  EXPECT_EQ(offer.arena, 1u);
  EXPECT_EQ(offer.bytes, 16u << 20);
  EXPECT_EQ(offer.session.substr(0, 9), "session-1");
  const ArenaEvent attached = Expect(ArenaEvent::Kind::kAttached);
  EXPECT_EQ(attached.arena, 1u);
  EXPECT_EQ(attached.pid, getpid());
}

TEST_F(ClientTest, SecondClient_ToldWhoHoldsTheRank) {
  Start();
  const pid_t holder = ForkClient();
  ASSERT_GT(holder, 0);
  const auto refusal = As<attach::Refusal>(SayHello().packet);
  EXPECT_EQ(refusal.header.kind, attach::Kind::kRefusal);
  EXPECT_EQ(refusal.pid, holder);
  EXPECT_TRUE(absl::StartsWith(Text(refusal),
                               absl::StrCat("rank 3 of job j-1 is held by process ", holder)))
      << Text(refusal);
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
}

TEST_F(ClientTest, ClientShutsDown_NextGetsANewArena) {
  Start();
  for (uint64_t number = 1; number <= 20; ++number) {
    Answer client;
    EXPECT_EQ(Attach(&client), number);
    client.socket.reset();
    if (number % 2 == 0) {  // Else at once: the next hello may overtake the hang-up.
      EXPECT_EQ(Expect(ArenaEvent::Kind::kDetached).arena, number);
      continue;
    }
    client = SayHello();
    EXPECT_EQ(As<attach::Welcome>(client.packet).header.kind, attach::Kind::kWelcome);
    EXPECT_EQ(Expect(ArenaEvent::Kind::kDetached).arena, number);
    EXPECT_EQ(Expect(ArenaEvent::Kind::kOffer).arena, number + 1);
    EXPECT_EQ(Expect(ArenaEvent::Kind::kAttached).arena, number + 1);
    client.socket.reset();
    EXPECT_EQ(Expect(ArenaEvent::Kind::kDetached).arena, ++number);
  }
}

TEST_F(ClientTest, ClientDies_ChildKeepsTheSocket_DetachedAllTheSame) {
  Start();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t client = fork();
  if (client == 0) {
    const Answer answer = SayHello();
    const pid_t child = fork();
    if (child == 0) {
      while (true) pause();
    }
    if (write(ends[1], &child, sizeof(child)) != sizeof(child)) _exit(1);
    raise(SIGKILL);
  }
  pid_t child = 0;
  ASSERT_EQ(read(ends[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  waitpid(client, nullptr, 0);
  Expect(ArenaEvent::Kind::kOffer);
  EXPECT_EQ(Expect(ArenaEvent::Kind::kAttached).pid, client);
  EXPECT_EQ(Expect(ArenaEvent::Kind::kDetached).arena, 1u);
  kill(child, SIGKILL);
}

TEST_F(ClientTest, NeedSegment_Grows) {
  Start();
  Answer client;
  Attach(&client);
  const auto need = NeedSegment((20u << 20) + 1);
  Ask(&client, &need, sizeof(need));
  const auto grant = As<attach::SegmentGrant>(client.packet);
  EXPECT_EQ(grant.header.kind, attach::Kind::kSegmentGrant);
  EXPECT_EQ(grant.segment, 1u);
  EXPECT_GE(grant.bytes, (20u << 20) + 1);
  ASSERT_EQ(client.fds.size(), 1u);
  EXPECT_EQ(CheckSealedMemory(client.fds[0].get(), grant.bytes), 0);
  const ArenaEvent offer = Expect(ArenaEvent::Kind::kOffer);
  EXPECT_TRUE(offer.sound);
  EXPECT_EQ(offer.segment, 1u);
  EXPECT_EQ(offer.bytes, grant.bytes);
}

TEST_F(ClientTest, NeedSegment_BeyondTheMost_RefusedAndGoesOn) {
  Start();
  Answer client;
  Attach(&client);
  auto need = NeedSegment(1u << 30);
  Ask(&client, &need, sizeof(need));
  const auto refusal = As<attach::Refusal>(client.packet);
  EXPECT_EQ(refusal.code, static_cast<uint32_t>(arena::Code::kResourceExhausted));
  EXPECT_TRUE(absl::StrContains(Text(refusal), "16 MB")) << Text(refusal);
  EXPECT_TRUE(absl::StrContains(Text(refusal), "1 GB")) << Text(refusal);
  EXPECT_TRUE(absl::StrContains(Text(refusal), "64 MB")) << Text(refusal);
  need = NeedSegment(1);
  Ask(&client, &need, sizeof(need));
  EXPECT_EQ(As<attach::SegmentGrant>(client.packet).segment, 1u);
}

TEST_F(ClientTest, OtherLayoutVersion_BothNamed) {
  Start();
  const auto refusal = As<attach::Refusal>(SayHello(1).packet);
  EXPECT_EQ(refusal.code, static_cast<uint32_t>(arena::Code::kInvalidArgument));
  EXPECT_EQ(Text(refusal),
            "this program's arena layout is version 1, ringd-worker's is 2; install the same ringd "
            "on both sides");
}

TEST_F(ClientTest, Rubbish_Dropped) {
  Start();
  for (const size_t bytes : {size_t{1}, size_t{8}, size_t{24}, size_t{200}, size_t{5000}}) {
    Answer client;
    ASSERT_EQ(ConnectUnix(spec_.worker_socket(), SOCK_SEQPACKET, &client.socket), 0);
    const std::string rubbish(bytes, '\x7f');
    Ask(&client, rubbish.data(), rubbish.size());  // A refusal or the end of the connection.
    char rest;
    EXPECT_LE(ReceivePacket(client.socket.get(), &rest, 1, nullptr, 5'000'000), 0);
  }
  Answer client;
  EXPECT_EQ(Attach(&client), 1u);
}

TEST_F(ClientTest, DaemonRefusesTheArena_ClientTold) {
  Start();
  daemon_.RefuseOffers(static_cast<uint32_t>(arena::Code::kResourceExhausted),
                       "the daemon's memory limit is reached");
  const auto refusal = As<attach::Refusal>(SayHello().packet);
  EXPECT_EQ(refusal.code, static_cast<uint32_t>(arena::Code::kResourceExhausted));
  EXPECT_EQ(Text(refusal), "the daemon's memory limit is reached");
}

TEST_F(ClientTest, Signal_GoesToTheClient) {
  Start();
  const pid_t client = ForkClient();
  ASSERT_GT(client, 0);
  SendSignal(SIGUSR2);
  int status = 0;
  ASSERT_EQ(waitpid(client, &status, 0), client);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGUSR2);
  EXPECT_EQ(kill(rank_pid_, 0), 0);
}

TEST_F(ClientTest, RankEnds_ClientDetachedFirst) {
  Start();
  Answer client;
  Attach(&client);
  Terminate(absl::Milliseconds(500));
  EXPECT_EQ(ExpectExited().signal(), SIGTERM);
  EXPECT_EQ(Expect(ArenaEvent::Kind::kDetached).arena, 1u);
}

TEST_F(ClientTest, Cluster_DaemonComesBack_SameMemoryOfferedAgain) {
  spec_.set_embedded(false);
  spec_.mutable_reattach_timeout()->set_seconds(20);
  Start();
  Answer client;
  Attach(&client);
  auto need = NeedSegment(1);
  Ask(&client, &need, sizeof(need));
  const uint64_t second_bytes = As<attach::SegmentGrant>(client.packet).bytes;
  Expect(ArenaEvent::Kind::kOffer);
  daemon_.Kill();
  daemon_.Start();
  EXPECT_EQ(ExpectStarted(), rank_pid_);
  const ArenaEvent first = Expect(ArenaEvent::Kind::kOffer);
  EXPECT_EQ(first.segment, 0u);
  EXPECT_EQ(first.arena, 1u);
  EXPECT_EQ(first.session.substr(0, 9), "session-2");
  const ArenaEvent second = Expect(ArenaEvent::Kind::kOffer);
  EXPECT_EQ(second.segment, 1u);
  EXPECT_EQ(second.bytes, second_bytes);
  EXPECT_EQ(Expect(ArenaEvent::Kind::kAttached).pid, getpid());
}

TEST_F(ClientTest, Cluster_HelloWhileDaemonIsAway_AnsweredWhenItIsBack) {
  spec_.set_embedded(false);
  spec_.mutable_reattach_timeout()->set_seconds(20);
  Start();
  daemon_.Kill();
  std::thread later([this] {
    absl::SleepFor(absl::Milliseconds(300));
    daemon_.Start();
  });
  Answer client;
  EXPECT_EQ(Attach(&client), 1u);
  later.join();
}

TEST_F(ClientTest, Session_AttachesByItself) {
  Start();
  session::SessionOptions options;
  options.worker_socket = spec_.worker_socket();
  options.arena_bytes = 16u << 20;
  auto session = session::Session::Attach(options);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->layout().rank(), 3);
  EXPECT_EQ((*session)->job(), "j-1");
  EXPECT_EQ((*session)->node(), "node-a");
  EXPECT_EQ((*session)->generation(), 7u);
  EXPECT_EQ(CheckSealedMemory((*session)->segment_fd(), (*session)->segment_bytes()), 0);
  EXPECT_GE((*session)->doorbell_fd(), 0);
  const ArenaEvent offer = Expect(ArenaEvent::Kind::kOffer);
  EXPECT_EQ(offer.session.substr(0, 9), "session-2");  // Its own, after the worker's.
  EXPECT_EQ(Expect(ArenaEvent::Kind::kAttached).pid, getpid());

  auto grown = (*session)->Grow(1 << 20);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(CheckSealedMemory(grown->fd.get(), grown->bytes), 0);
  EXPECT_EQ(Expect(ArenaEvent::Kind::kOffer).segment, 1u);

  const auto refusal = As<attach::Refusal>(SayHello().packet);  // The rank is held.
  EXPECT_EQ(refusal.pid, getpid());
  const auto second = session::Session::Attach(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(second.status().message(), absl::StrCat("process ", getpid())))
      << second.status();

  EXPECT_TRUE((*session)->Detach().ok());
  EXPECT_EQ(Expect(ArenaEvent::Kind::kDetached).arena, offer.arena);
  Answer client;
  client = SayHello();  // The worker attaches again for the next client.
  EXPECT_EQ(As<attach::Welcome>(client.packet).header.kind, attach::Kind::kWelcome);
  const ArenaEvent next = Expect(ArenaEvent::Kind::kOffer);
  EXPECT_EQ(next.session.substr(0, 9), "session-3");
  EXPECT_EQ(next.arena, 1u);
}

TEST_F(ClientTest, Session_NoWorker_SaysHowToStart) {
  session::SessionOptions options;
  EXPECT_EQ(session::Session::Attach(options).status().message(),
            "RINGD_SOCKET is not set: start this program with 'ringctl run -- PROGRAM'");
  options.worker_socket = "/no/such/socket";
  EXPECT_EQ(session::Session::Attach(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ringd::worker
