// Deadlocks on production engines: one node, and two nodes joined by a ring.
#include <chrono>
#include <string>
#include <vector>

#include "daemon/engine/testing/engine_fixture.h"
#include "daemon/engine/testing/plan_record.h"
#include "daemon/engine/testing/two_nodes_fixture.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;
using Result = FakeClient::Result;
using Ticket = FakeClient::Ticket;
using Clock = std::chrono::steady_clock;

Ticket Named(FakeClient& client, const std::string& name) {
  const arena::Ref data = client.Put(std::vector<float>(10, 1.0f));
  auto descriptor =
      client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 10, data, data);
  client.SetName(name, &descriptor);
  return client.Submit(descriptor);
}

Ticket Barrier(FakeClient& client, uint32_t group = 0) {
  auto descriptor = client.Describe(Operation::kBarrier);
  descriptor.group = group;
  return client.Submit(descriptor);
}

Ticket Message(FakeClient& client, Operation operation, int32_t peer) {
  const arena::Ref data = client.Put(std::vector<int32_t>(10, 7));
  auto descriptor = client.Describe(operation, DType::kInt32, Reduction::kNone, 10, data, data);
  descriptor.root = peer;
  descriptor.signature = 10;
  return client.Submit(descriptor);
}

void MakeGroup(FakeClient& client, int32_t id, const std::vector<int64_t>& ranks) {
  auto descriptor = client.Describe(Operation::kGroupRegister);
  descriptor.root = id;
  client.SetCounts(ranks, &descriptor);
  ASSERT_EQ(client.Run(descriptor).code, Code::kOk);
}

void ExpectDeadlock(const Result& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.code, Code::kMismatch);
  EXPECT_EQ(result.message.find("deadlock: "), 0u) << result.message;
  for (const std::string& part : parts) {
    EXPECT_NE(result.message.find(part), std::string::npos) << part << " in " << result.message;
  }
}

void ExpectDone(FakeClient& client, Ticket ticket) {
  const Result result = client.Wait(ticket);
  EXPECT_EQ(result.code, Code::kOk) << result.message;
  EXPECT_FALSE(result.timed_out);
}

void ExpectUsable(FakeClient& client, uint32_t group = 0) {
  ExpectDone(client, Barrier(client, group));
}

TEST(DeadlockTest, Names_BothAreTold_TheSameNamesWorkAfterwards) {
  TestNode node(2);
  node.ForEachRank([](int rank, FakeClient& client) {
    const auto start = Clock::now();
    const Result result = client.Block(Named(client, rank == 0 ? "a" : "b"));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
    ExpectDeadlock(result, {"rank 0 waits in", "named 'a'", "rank 1 waits in", "named 'b'"});
    ExpectDone(client, Named(client, "b"));
    ExpectDone(client, Named(client, "a"));
    ExpectUsable(client);
  });
}

TEST(DeadlockTest, GroupAgainstAll_SequencesMeetAgain) {
  TestNode node(3);
  node.ForEachRank([](int rank, FakeClient& client) {
    MakeGroup(client, 1, {0, 1});
    for (int round = 0; round < 2; ++round) {
      // Rank 0 has four operations under way that nobody shares.
      for (int i = 0; i < 3 && rank == 0; ++i) Barrier(client);
      const Result result = client.Block(Barrier(client, rank == 1 ? 1 : 0));
      ExpectDeadlock(result, {"rank 0 waits in operation s.", "rank 2 waits in operation s.",
                              "rank 1 waits in operation s.", " of group 1 (barrier)"});
      ExpectUsable(client);
      if (rank < 2) ExpectUsable(client, 1);
    }
  });
}

TEST(DeadlockTest, BothReceive_MessagesWorkAfterwards) {
  TestNode node(2);
  node.ForEachRank([](int rank, FakeClient& client) {
    const Result result = client.Block(Message(client, Operation::kRecv, 1 - rank));
    ExpectDeadlock(result, {"recv int32[10] from rank 1", "recv int32[10] from rank 0"});
    const auto operation = rank == 0 ? Operation::kSend : Operation::kRecv;
    ExpectDone(client, Message(client, operation, 1 - rank));
  });
}

void MakePlan(FakeClient& client) {
  PlanRecord record;
  for (int i = 0; i < 2; ++i) {
    const arena::Ref data = client.Put(std::vector<float>(4, 1.0f));
    record.buckets.push_back(MakePlanBucket(4, data));
    record.tensors.push_back({"t" + std::to_string(i), static_cast<uint32_t>(i), {4}, 0});
  }
  const std::vector<char> bytes = record.Bytes();
  auto descriptor = client.Describe(Operation::kPlanRegister);
  descriptor.root = 1;
  descriptor.meta = client.Put(bytes);
  descriptor.meta_bytes = static_cast<uint32_t>(bytes.size());
  ASSERT_EQ(client.Run(descriptor).code, Code::kOk);
}

Ticket Bucket(FakeClient& client, uint32_t index) {
  auto descriptor = client.Describe(Operation::kPlanBucket);
  descriptor.root = 1;
  descriptor.bucket = index;
  return client.Submit(descriptor);
}

// Rank 1 is in the midst of the step that rank 0 waits for, or has not begun it.
TEST(DeadlockTest, PlanAgainstBarrier_StepsMeetAgain) {
  TestNode node(2);
  node.ForEachRank([](int rank, FakeClient& client) {
    MakePlan(client);
    for (const bool has_begun : {true, false}) {
      if (rank == 0 || has_begun) Bucket(client, 0);
      const Result result = client.Block(rank == 0 ? Bucket(client, 1) : Barrier(client));
      ExpectDeadlock(result, {"rank 0 waits in operation s.", " of plan 1 (plan_bucket 1 of plan 1",
                              "rank 1 waits in operation s."});
      if (rank == 1 && has_begun) ExpectDeadlock(client.Wait(Bucket(client, 1)), {});
      ExpectUsable(client);
      for (const Ticket ticket : {Bucket(client, 1), Bucket(client, 0)}) ExpectDone(client, ticket);
    }
  });
}

TEST(DeadlockTest, AThreadThatRuns_OnlyWaits) {
  TestNode node(2);
  node.ForEachRank([](int rank, FakeClient& client) {
    const Ticket ticket = Named(client, rank == 0 ? "a" : "b");
    if (rank == 0) {
      EXPECT_TRUE(client.Block(ticket, 1'500'000).timed_out);
      return;
    }
    client.header()->threads.store(2);
    EXPECT_TRUE(client.Wait(ticket, 1'500'000).timed_out);
  });
}

TEST(DeadlockTest, ARankThatHasNotCalled_IsWaitedFor) {
  TestNode node(2);
  const Ticket ticket = Barrier(node.client(0));
  EXPECT_TRUE(node.client(0).Block(ticket, 1'500'000).timed_out);
  Barrier(node.client(1));
  EXPECT_EQ(node.client(0).Block(ticket).code, Code::kOk);
}

class TwoNodesDeadlockTest : public TwoNodesTest {};

TEST_F(TwoNodesDeadlockTest, Names) {
  ForEachRank([](int rank, FakeClient& client) {
    ASSERT_EQ(client.Wait(Named(client, "a")).code, Code::kOk);
    const Result result = client.Block(Named(client, rank == 2 ? "b" : "a"));
    ExpectDeadlock(result, {"ranks 0, 1 wait in", "named 'a'", "rank 2 waits in", "named 'b'"});
    ExpectDone(client, Named(client, "a"));
    ExpectDone(client, Named(client, "b"));
    ExpectUsable(client);
  });
}

// Node a has started the barrier, node b has not.
TEST_F(TwoNodesDeadlockTest, StartedOnOneNode_SequencesMeetAgain) {
  ForEachRank([](int rank, FakeClient& client) {
    MakeGroup(client, 1, {0, 2});
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 2 && rank < 2; ++i) Barrier(client);
      const auto start = Clock::now();
      const Result result = client.Block(Barrier(client, rank == 2 ? 1 : 0));
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
      ExpectDeadlock(result, {"ranks 0, 1 wait in operation s.", "rank 2 waits in operation s.",
                              " of group 1 (barrier)"});
      ExpectUsable(client);
      if (rank != 1) ExpectUsable(client, 1);
    }
  });
}

TEST_F(TwoNodesDeadlockTest, ReceiversAndABarrier) {
  ForEachRank([](int rank, FakeClient& client) {
    for (int round = 0; round < 2; ++round) {
      const Ticket ticket =
          rank == 1 ? Barrier(client) : Message(client, Operation::kRecv, 2 - rank);
      ExpectDeadlock(client.Block(ticket), {"rank 0 waits in message", "from rank 2",
                                            "rank 1 waits in operation s.", "from rank 0"});
      ExpectUsable(client);
      if (rank == 1) continue;
      const auto operation = (rank == 0) == (round == 0) ? Operation::kSend : Operation::kRecv;
      ExpectDone(client, Message(client, operation, 2 - rank));
    }
  });
}

TEST_F(TwoNodesDeadlockTest, ARankThatHasNotCalled_IsWaitedFor) {
  ForEachRank([](int rank, FakeClient& client) {
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_EQ(client.Block(Barrier(client)).code, Code::kOk);
  });
}

}  // namespace
}  // namespace ringd::daemon
