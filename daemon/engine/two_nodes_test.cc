// Two production engines in one process, joined by a ring over the loopback interface.
#include <future>
#include <string>
#include <vector>

#include "common/reduce/wire_dtype.h"
#include "daemon/engine/testing/plan_record.h"
#include "daemon/engine/testing/two_nodes_fixture.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;

TEST_F(TwoNodesTest, Allreduce_SmallAndLarge_IsRight) {
  ForEachRank([](int rank, FakeClient& client) {
    for (size_t count : {1u, 1000u, 500'000u}) {
      const auto data = client.Put(std::vector<float>(count, static_cast<float>(rank + 1)));
      const auto result = client.Run(client.Describe(Operation::kAllreduce, DType::kFloat32,
                                                     Reduction::kSum, count, data, data));
      ASSERT_EQ(result.code, Code::kOk) << result.message;
      ASSERT_EQ(client.Get<float>(data, count), std::vector<float>(count, 6.0f));
    }
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
}

TEST_F(TwoNodesTest, Allreduce_NarrowBetweenNodes_IsRoundedAlikeOnAllRanks) {
  constexpr size_t kCount = 100'000;
  std::vector<float> results[3];
  ForEachRank([&results](int rank, FakeClient& client) {
    // 1.01 takes more bits than bf16 has: 6.0625 is the nearest to 6.06 there.
    const auto data = client.Put(std::vector<float>(kCount, 1.01f * static_cast<float>(rank + 1)));
    auto descriptor = client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum,
                                      kCount, data, data);
    descriptor.wire = static_cast<uint8_t>(WireDType::kBFloat16);
    const auto result = client.Run(descriptor);
    ASSERT_EQ(result.code, Code::kOk) << result.message;
    results[rank] = client.Get<float>(data, kCount);
  });
  EXPECT_EQ(results[0], std::vector<float>(kCount, 6.0625f));
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST_F(TwoNodesTest, WireThatDiffersOrDoesNotFit_NamesIt) {
  ForEachRank([](int rank, FakeClient& client) {
    const auto data = client.Allocate(64);
    auto descriptor =
        client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 10, data, data);
    descriptor.wire = static_cast<uint8_t>(rank == 2 ? WireDType::kFloat8E4M3 : WireDType::kSame);
    descriptor.signature = descriptor.wire;
    auto result = client.Run(descriptor);
    EXPECT_EQ(result.code, Code::kMismatch);
    EXPECT_NE(result.message.find("called allreduce float32[10] sum wire fp8_e4m3"),
              std::string::npos)
        << result.message;
    descriptor =
        client.Describe(Operation::kAllreduce, DType::kInt32, Reduction::kSum, 10, data, data);
    descriptor.wire = static_cast<uint8_t>(WireDType::kFloat16);
    result = client.Run(descriptor);
    EXPECT_EQ(result.code, Code::kInvalidArgument);
    EXPECT_NE(result.message.find("int32 can't travel as fp16"), std::string::npos)
        << result.message;
  });
}

TEST_F(TwoNodesTest, MismatchBetweenNodes_NamesBothSignatures) {
  ForEachRank([](int rank, FakeClient& client) {
    const uint64_t count = rank == 2 ? 11 : 10;
    const auto data = client.Allocate(64);
    auto descriptor =
        client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, count, data, data);
    descriptor.signature = count;
    const auto result = client.Run(descriptor);
    EXPECT_EQ(result.code, Code::kMismatch);
    EXPECT_NE(result.message.find("rank 0 (node node-a) called allreduce float32[10] sum"),
              std::string::npos)
        << result.message;
    EXPECT_NE(result.message.find("rank 2 (node node-b) called allreduce float32[11] sum"),
              std::string::npos)
        << result.message;
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
}

TEST_F(TwoNodesTest, PlansThatDifferBetweenNodes_NameTheTensor) {
  ForEachRank([](int rank, FakeClient& client) {
    for (const bool is_sound : {false, true}) {
      PlanRecord record;
      record.plan = is_sound ? 2 : 1;
      record.buckets = {MakePlanBucket(12, client.Allocate(64))};
      record.tensors = {{"w", 0, {3, 4}, 0}};
      if (!is_sound && rank == 2) record.tensors[0].shape = {4, 3};
      const std::vector<char> bytes = record.Bytes();
      auto descriptor = client.Describe(Operation::kPlanRegister);
      descriptor.root = static_cast<int32_t>(record.plan);
      descriptor.meta = client.Put(bytes);
      descriptor.meta_bytes = static_cast<uint32_t>(bytes.size());
      const auto result = client.Run(descriptor);
      EXPECT_EQ(result.code, is_sound ? Code::kOk : Code::kMismatch) << result.message;
      if (is_sound) continue;
      EXPECT_NE(result.message.find("tensor w: "), std::string::npos) << result.message;
      EXPECT_NE(result.message.find("float32[3, 4]"), std::string::npos) << result.message;
      EXPECT_NE(result.message.find("float32[4, 3]"), std::string::npos) << result.message;
    }
    for (int step = 0; step < 20; ++step) {
      auto bucket = client.Describe(Operation::kPlanBucket);
      bucket.root = 2;
      EXPECT_EQ(client.Run(bucket).code, Code::kOk);
    }
  });
}

TEST_F(TwoNodesTest, RankEndedOnOneNode_FailsTheOther) {
  ForEachRank([](int, FakeClient& client) {
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
  const auto waiting = clients_[2].Submit(clients_[2].Describe(Operation::kBarrier));
  Outcome outcome;
  outcome.signal = 9;
  outcome.stderr_tail = "last words";
  EngineOf(1)->RankEnded("job", 1, outcome);
  for (const auto& result :
       {clients_[2].Wait(waiting), clients_[0].Run(clients_[0].Describe(Operation::kBarrier))}) {
    EXPECT_EQ(result.code, Code::kPeerFailed);
    EXPECT_EQ(result.message, "rank 1 (node node-a) was killed by SIGKILL");
    EXPECT_EQ(result.rank, 1);
    EXPECT_EQ(result.node, "node-a");
    EXPECT_EQ(result.signal, 9);
    EXPECT_EQ(result.stderr_tail, "last words");
  }
}

TEST_F(TwoNodesTest, Groups_OverNodesAndInsideOne_RunSideBySide) {
  ForEachRank([](int rank, FakeClient& client) {
    const std::vector<std::vector<int64_t>> groups = {{0, 2}, {1, 2}, {0, 1}, {2}};
    for (size_t i = 0; i < groups.size(); ++i) {
      auto descriptor = client.Describe(Operation::kGroupRegister);
      descriptor.root = static_cast<int32_t>(i + 1);
      client.SetCounts(groups[i], &descriptor);
      ASSERT_EQ(client.Run(descriptor).code, Code::kOk);
    }
    for (const size_t count : {1u, 100'000u}) {
      std::vector<std::pair<FakeClient::Ticket, arena::Ref>> running;
      std::vector<float> sums;
      for (size_t k = 0; k < groups.size(); ++k) {
        const size_t i = rank == 1 ? groups.size() - 1 - k : k;  // Rank 1 goes backwards.
        float sum = 0;
        bool is_member = false;
        for (const int64_t member : groups[i]) {
          sum += static_cast<float>(member + 1);
          is_member |= member == rank;
        }
        if (!is_member) continue;
        const auto data = client.Put(std::vector<float>(count, static_cast<float>(rank + 1)));
        auto descriptor = client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum,
                                          count, data, data);
        descriptor.group = static_cast<uint32_t>(i + 1);
        running.emplace_back(client.Submit(descriptor), data);
        sums.push_back(sum);
      }
      for (size_t k = 0; k < running.size(); ++k) {
        const auto result = client.Wait(running[k].first);
        EXPECT_EQ(result.code, Code::kOk) << result.message;
        EXPECT_EQ(client.Get<float>(running[k].second, count), std::vector<float>(count, sums[k]));
      }
    }
    auto giving_up = client.Describe(Operation::kGroupUnregister);
    giving_up.root = 1;
    client.SetCounts({0, 2}, &giving_up);
    EXPECT_EQ(client.Run(giving_up).code, Code::kOk);
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
}

arena::Descriptor Message(FakeClient& client, Operation operation, int32_t peer, uint32_t tag,
                          arena::Ref data, uint64_t count) {
  auto descriptor = client.Describe(operation, DType::kInt32, Reduction::kNone, count, data, data);
  descriptor.root = peer;
  descriptor.tag = tag;
  descriptor.signature = count;
  return descriptor;
}

TEST_F(TwoNodesTest, Messages_OfAllPairsInAnyOrder_Arrive) {
  ForEachRank([](int rank, FakeClient& client) {
    std::vector<FakeClient::Ticket> tickets;
    std::vector<std::pair<arena::Ref, std::vector<int32_t>>> expected;
    for (const uint64_t count : {0u, 1u, 1000u, 100'000u}) {
      for (int i = 1; i < 3; ++i) {
        const int peer = (rank + i) % 3;
        for (const uint32_t tag : {5u, 6u}) {
          const auto value = [&](int from, int to) {
            return std::vector<int32_t>(count, from * 100 + to * 10 + static_cast<int32_t>(tag));
          };
          const auto out = client.Put(value(rank, peer));
          const auto in = client.Allocate(4 * count + 4);
          expected.emplace_back(in, value(peer, rank));
          const auto send = Message(client, Operation::kSend, peer, tag, out, count);
          const auto recv = Message(client, Operation::kRecv, peer, tag, in, count);
          tickets.push_back(client.Submit(rank == 1 ? recv : send));
          tickets.push_back(client.Submit(rank == 1 ? send : recv));
        }
      }
    }
    for (const auto ticket : tickets) {
      const auto result = client.Wait(ticket);
      EXPECT_EQ(result.code, Code::kOk) << result.message;
    }
    for (const auto& [place, value] : expected) {
      EXPECT_EQ(client.Get<int32_t>(place, value.size()), value);
    }
  });
}

TEST_F(TwoNodesTest, MessageOfAnotherShape_IsAMismatchOnBothNodes) {
  ForEachRank([](int rank, FakeClient& client) {
    if (rank == 1) return;
    const auto data = client.Allocate(64);
    const auto operation = rank == 0 ? Operation::kSend : Operation::kRecv;
    const auto result =
        client.Run(Message(client, operation, 2 - rank, 0, data, rank == 0 ? 10 : 11));
    EXPECT_EQ(result.code, Code::kMismatch);
    EXPECT_NE(result.message.find("rank 0 (node node-a) called send int32[10] to rank 2"),
              std::string::npos)
        << result.message;
    EXPECT_NE(result.message.find("rank 2 (node node-b) called recv int32[11] from rank 0"),
              std::string::npos)
        << result.message;
    EXPECT_EQ(client.Run(Message(client, operation, 2 - rank, 0, data, 10)).code, Code::kOk);
  });
}

TEST_F(TwoNodesTest, PeerOnTheOtherNodeEnds_WhatItSentArrivesAndTheRestFails) {
  FakeClient& sender = clients_[1];
  FakeClient& receiver = clients_[2];
  const auto out = sender.Put(std::vector<int32_t>{42});
  const auto sent = sender.Submit(Message(sender, Operation::kSend, 2, 0, out, 1));
  const auto in = receiver.Allocate(64);
  const auto other_tag = receiver.Submit(Message(receiver, Operation::kRecv, 1, 9, in, 1));
  Outcome outcome;
  outcome.exit_code = 3;
  EngineOf(1)->RankEnded("job", 1, outcome);
  EXPECT_EQ(receiver.Run(Message(receiver, Operation::kRecv, 1, 0, in, 1)).code, Code::kOk);
  EXPECT_EQ(receiver.Get<int32_t>(in, 1)[0], 42);
  EXPECT_EQ(sender.Wait(sent).code, Code::kOk);
  for (const auto ticket :
       {other_tag, receiver.Submit(Message(receiver, Operation::kRecv, 1, 0, in, 1)),
        receiver.Submit(Message(receiver, Operation::kSend, 1, 4, in, 1))}) {
    const auto result = receiver.Wait(ticket);
    EXPECT_EQ(result.code, Code::kPeerFailed) << result.message;
    EXPECT_EQ(result.message, "rank 1 (node node-a) exited with code 3");
  }
}

TEST_F(TwoNodesTest, NodeStops_FailsTheOther) {
  const auto waiting = clients_[2].Submit(clients_[2].Describe(Operation::kBarrier));
  engines_[0]->Stop();
  EXPECT_NE(clients_[2].Wait(waiting).code, Code::kOk);
  EXPECT_NE(clients_[2].Run(clients_[2].Describe(Operation::kBarrier)).code, Code::kOk);
}

}  // namespace
}  // namespace ringd::daemon
