// Groups and messages of one node.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/engine/testing/engine_fixture.h"
#include "daemon/engine/testing/plan_record.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;
using Result = FakeClient::Result;
using Ticket = FakeClient::Ticket;

Result OfGroups(FakeClient& client, Operation operation, int32_t id,
                const std::vector<int64_t>& ranks) {
  auto descriptor = client.Describe(operation);
  descriptor.root = id;
  client.SetCounts(ranks, &descriptor);
  return client.Run(descriptor);
}

Result Register(FakeClient& client, int32_t id, const std::vector<int64_t>& ranks) {
  return OfGroups(client, Operation::kGroupRegister, id, ranks);
}

Ticket Sum(FakeClient& client, uint32_t group, arena::Ref data, uint64_t count = 1) {
  auto descriptor =
      client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, count, data, data);
  descriptor.group = group;
  return client.Submit(descriptor);
}

Ticket Message(FakeClient& client, Operation operation, int32_t peer, uint32_t tag, arena::Ref data,
               uint64_t count = 1, uint32_t group = 0) {
  auto descriptor = client.Describe(operation, DType::kInt32, Reduction::kNone, count, data, data);
  descriptor.root = peer;
  descriptor.tag = tag;
  descriptor.group = group;
  descriptor.signature = count;
  return client.Submit(descriptor);
}

TEST(GroupsTest, OverlappingGroups_AnyOrder_EachHasItsOwnSequence) {
  TestNode node(4);
  node.ForEachRank([](int rank, FakeClient& client) {
    EXPECT_EQ(Register(client, 1, {0, 1, 2}).code, Code::kOk);
    EXPECT_EQ(Register(client, 2, {1, 2, 3}).code, Code::kOk);
    EXPECT_EQ(Register(client, 3, {3}).code, Code::kOk);
    std::vector<std::pair<uint32_t, float>> sums;  // Group, sum of 1 + rank over its ranks.
    if (rank <= 2) sums.emplace_back(1, 6.0f);
    if (rank >= 1) sums.emplace_back(2, 9.0f);
    if (rank == 3) sums.emplace_back(3, 4.0f);
    sums.emplace_back(0, 10.0f);
    if (rank % 2 == 1) std::swap(sums.front(), sums.back());  // Another order on odd ranks.
    for (int round = 0; round < 20; ++round) {
      std::vector<Ticket> tickets;
      std::vector<arena::Ref> places;
      for (const auto& [group, sum] : sums) {
        places.push_back(client.Put(std::vector<float>{static_cast<float>(rank + 1)}));
        tickets.push_back(Sum(client, group, places.back()));
      }
      for (size_t i = 0; i < sums.size(); ++i) {
        EXPECT_EQ(client.Wait(tickets[i]).code, Code::kOk);
        EXPECT_EQ(client.Get<float>(places[i], 1)[0], sums[i].second);
      }
    }
  });
}

TEST(GroupsTest, DifferentRanks_AreAMismatchThatShowsBoth) {
  TestNode node(2);
  node.ForEachRank([](int rank, FakeClient& client) {
    const auto result = Register(client, 1, {rank});
    EXPECT_EQ(result.code, Code::kMismatch);
    EXPECT_NE(result.message.find("rank 0 called group_register 1 of 1 ranks: 0"),
              std::string::npos)
        << result.message;
    EXPECT_NE(result.message.find("rank 1 called group_register 1 of 1 ranks: 1"),
              std::string::npos)
        << result.message;
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
}

TEST(GroupsTest, RootsAndCounts_AreInNumbersOfTheGroup) {
  TestNode node(3);
  node.ForEachRank([](int rank, FakeClient& client) {
    EXPECT_EQ(Register(client, 1, {0, 2}).code, Code::kOk);
    if (rank == 1) return;
    const auto input = client.Put(std::vector<float>(rank + 1, static_cast<float>(rank)));
    const auto output = client.Allocate(64);
    auto gather = client.Describe(Operation::kGather, DType::kFloat32, Reduction::kNone, rank + 1,
                                  input, output);
    gather.group = 1;
    gather.root = 1;  // Rank 2 of the job.
    client.SetCounts({1, 3}, &gather);
    EXPECT_EQ(client.Run(gather).code, Code::kOk);
    if (rank == 2) {
      EXPECT_EQ(client.Get<float>(output, 4), (std::vector<float>{0, 2, 2, 2}));
    }
    auto reduce = client.Describe(Operation::kReduce, DType::kFloat32, Reduction::kAverage, 1,
                                  input, rank == 0 ? output : arena::kNullRef);
    reduce.group = 1;
    EXPECT_EQ(client.Run(reduce).code, Code::kOk);
    if (rank == 0) {
      EXPECT_EQ(client.Get<float>(output, 1)[0], 1.0f);
    }
  });
}

TEST(GroupsTest, GivenUp_ItsIdServesOthers) {
  TestNode node(3);
  node.ForEachRank([](int rank, FakeClient& client) {
    for (int round = 0; round < 30; ++round) {
      const std::vector<int64_t> ranks =
          round % 2 == 0 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{1, 2};
      EXPECT_EQ(Register(client, 1, ranks).code, Code::kOk);
      if (rank == ranks[0] || rank == ranks[1]) {
        const auto data = client.Put(std::vector<float>{1});
        EXPECT_EQ(client.Wait(Sum(client, 1, data)).code, Code::kOk);
        EXPECT_EQ(client.Get<float>(data, 1)[0], 2.0f);
      }
      EXPECT_EQ(OfGroups(client, Operation::kGroupUnregister, 1, ranks).code, Code::kOk);
    }
  });
}

TEST(GroupsTest, GivenUpWithAnOperationPending_FailsIt) {
  TestNode node(3);
  node.ForEachRank([](int rank, FakeClient& client) {
    EXPECT_EQ(Register(client, 1, {0, 1}).code, Code::kOk);
    const auto data = client.Put(std::vector<float>{1});
    Ticket pending;
    if (rank == 0) pending = Sum(client, 1, data);
    EXPECT_EQ(OfGroups(client, Operation::kGroupUnregister, 1, {0, 1}).code, Code::kOk);
    if (rank != 0) return;
    const auto result = client.Wait(pending);
    EXPECT_EQ(result.code, Code::kUnavailable);
    EXPECT_EQ(result.message, "group 1 was removed before the operation had ended");
  });
}

TEST(GroupsTest, RankEnds_FailsItsGroupsAlone) {
  TestNode node(4);
  node.ForEachRank([](int, FakeClient& client) {
    EXPECT_EQ(Register(client, 1, {0, 1}).code, Code::kOk);
    EXPECT_EQ(Register(client, 2, {2, 3}).code, Code::kOk);
  });
  const auto waiting = Sum(node.client(0), 1, node.client(0).Allocate(64));
  Outcome outcome;
  outcome.signal = 9;
  node.engine().RankEnded("job", 1, outcome);
  const auto result = node.client(0).Wait(waiting);
  EXPECT_EQ(result.code, Code::kPeerFailed);
  EXPECT_EQ(result.message, "rank 1 (node node-a) was killed by SIGKILL");
  const auto left = Sum(node.client(2), 2, node.client(2).Allocate(64));
  const auto right = Sum(node.client(3), 2, node.client(3).Allocate(64));
  EXPECT_EQ(node.client(2).Wait(left).code, Code::kOk);
  EXPECT_EQ(node.client(3).Wait(right).code, Code::kOk);
}

TEST(GroupsTest, Plans_OfAGroup) {
  TestNode node(3);
  node.ForEachRank([](int rank, FakeClient& client) {
    EXPECT_EQ(Register(client, 1, {1, 2}).code, Code::kOk);
    if (rank == 0) return;
    PlanRecord record;
    record.plan = 1;
    const auto data = client.Put(std::vector<float>(12, static_cast<float>(rank)));
    record.buckets = {MakePlanBucket(12, data)};
    record.tensors = {{"w", 0, {3, 4}, 0}};
    const std::vector<char> bytes = record.Bytes();
    auto descriptor = client.Describe(Operation::kPlanRegister);
    descriptor.group = 1;
    descriptor.root = 1;
    descriptor.meta = client.Put(bytes);
    descriptor.meta_bytes = static_cast<uint32_t>(bytes.size());
    EXPECT_EQ(client.Run(descriptor).code, Code::kOk);
    auto bucket = client.Describe(Operation::kPlanBucket);
    bucket.group = 1;
    bucket.root = 1;
    EXPECT_EQ(client.Run(bucket).code, Code::kOk);
    EXPECT_EQ(client.Get<float>(data, 12), std::vector<float>(12, 3.0f));
  });
}

TEST(MessagesTest, AllPairsAndTags_AnyOrder_Arrive) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 5;
  TestNode node(kRanks);
  node.ForEachRank([](int rank, FakeClient& client) {
    std::vector<Ticket> tickets;
    struct Expected {
      arena::Ref place;
      std::vector<int32_t> value;
    };
    std::vector<Expected> expected;
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 1; i < kRanks; ++i) {
        // Even ranks receive first, odd ones send first; tags in opposite order.
        const int peer = (rank + i) % kRanks;
        for (uint32_t tag : {0u, 7u, ~0u}) {
          const auto value = [&](int from, int to) {
            return std::vector<int32_t>(100 * (round + 1), from * 1000 + to * 100 + round * 10 +
                                                               static_cast<int32_t>(tag % 10));
          };
          const auto out = client.Put(value(rank, peer));
          const auto in = client.Allocate(4 * 100 * (round + 1));
          const uint64_t count = 100 * (round + 1);
          if (rank % 2 == 1) {
            tickets.push_back(Message(client, Operation::kSend, peer, tag, out, count));
          }
          tickets.push_back(Message(client, Operation::kRecv, peer, tag, in, count));
          if (rank % 2 == 0) {
            tickets.push_back(Message(client, Operation::kSend, peer, tag, out, count));
          }
          expected.push_back({in, value(peer, rank)});
        }
      }
    }
    for (const Ticket ticket : tickets) EXPECT_EQ(client.Wait(ticket).code, Code::kOk);
    for (const auto& [place, value] : expected) {
      EXPECT_EQ(client.Get<int32_t>(place, value.size()), value);
    }
  });
}

TEST(MessagesTest, OtherShape_IsAMismatchOnBothEnds_AndTheNextArrives) {
  TestNode node(2);
  node.ForEachRank([](int rank, FakeClient& client) {
    const Operation operation = rank == 0 ? Operation::kSend : Operation::kRecv;
    const auto data = client.Put(std::vector<int32_t>(10, rank));
    const auto result =
        client.Wait(Message(client, operation, 1 - rank, 3, data, rank == 0 ? 10 : 9));
    EXPECT_EQ(result.code, Code::kMismatch);
    EXPECT_EQ(result.message,
              "message with tag 3 is not the same on all ranks: rank 0 called send int32[10] to "
              "rank 1 tag 3, rank 1 called recv int32[9] from rank 0 tag 3");
    EXPECT_EQ(client.Wait(Message(client, operation, 1 - rank, 3, data, 10)).code, Code::kOk);
    EXPECT_EQ(client.Get<int32_t>(data, 10), std::vector<int32_t>(10, 0));
  });
}

TEST(MessagesTest, PeerIsNobody_FailsHere) {
  TestNode node(2);
  FakeClient& client = node.client(0);
  const auto data = client.Allocate(64);
  for (const int32_t peer : {0, 2, -1}) {
    const auto result = client.Wait(Message(client, Operation::kSend, peer, 0, data));
    EXPECT_EQ(result.code, Code::kInvalidArgument) << result.message;
  }
  EXPECT_FALSE(client.IsPoisoned());
}

TEST(MessagesTest, PeerEnds_WhatItSentArrivesAndTheRestFails) {
  TestNode node(2);
  FakeClient& sender = node.client(1);
  FakeClient& receiver = node.client(0);
  const auto sent = Message(sender, Operation::kSend, 0, 0, sender.Put(std::vector<int32_t>{42}));
  const auto in = receiver.Allocate(64);
  const auto pending = Message(receiver, Operation::kRecv, 1, 9, in);
  Outcome outcome;
  outcome.exit_code = 3;
  node.engine().RankEnded("job", 1, outcome);
  EXPECT_EQ(receiver.Wait(Message(receiver, Operation::kRecv, 1, 0, in)).code, Code::kOk);
  EXPECT_EQ(receiver.Get<int32_t>(in, 1)[0], 42);
  EXPECT_EQ(sender.Wait(sent).code, Code::kOk);
  for (const auto ticket : {pending, Message(receiver, Operation::kRecv, 1, 0, in),
                            Message(receiver, Operation::kSend, 1, 0, in)}) {
    const auto result = receiver.Wait(ticket);
    EXPECT_EQ(result.code, Code::kPeerFailed);
    EXPECT_EQ(result.message, "rank 1 (node node-a) exited with code 3");
    EXPECT_EQ(result.rank, 1);
  }
}

TEST(MessagesTest, JobFails_FailsThem) {
  TestNode node(2);
  const auto waiting = Message(node.client(0), Operation::kRecv, 1, 0, node.client(0).Allocate(64));
  Outcome outcome;
  outcome.code = Code::kGenerationChanged;
  node.engine().FailJob("job", outcome);
  EXPECT_EQ(node.client(0).Wait(waiting).code, Code::kGenerationChanged);
}

}  // namespace
}  // namespace ringd::daemon
