// Named operations on production engines: one node, and two nodes joined by a ring.
#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/testing/two_nodes_fixture.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;

// Submits an allreduce (sum) of `count` floats of `value`, named.
FakeClient::Ticket Submit(FakeClient* client, const std::string& name, size_t count, float value,
                          arena::Ref* data) {
  *data = client->Put(std::vector<float>(count, value));
  arena::Descriptor descriptor = client->Describe(Operation::kAllreduce, DType::kFloat32,
                                                  Reduction::kSum, count, *data, *data);
  descriptor.signature += count;
  client->SetName(name, &descriptor);
  return client->Submit(descriptor);
}

class NamesTest : public TwoNodesTest {};

// 200 tensors, in another order on each rank, twice: the second step speaks in numbers.
TEST_F(NamesTest, AnyOrder_EachGetsItsOwnSum) {
  ForEachRank([](int rank, FakeClient& client) {
    std::mt19937 random(static_cast<uint32_t>(rank));
    for (int step = 0; step < 2; ++step) {
      std::vector<int> order(200);
      for (int i = 0; i < 200; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::pair<FakeClient::Ticket, arena::Ref>> running(200);
      for (const int i : order) {
        const auto value = static_cast<float>((rank + 1) * (i + 1));
        running[i].first =
            Submit(&client, "layer." + std::to_string(i), 100 + i, value, &running[i].second);
      }
      for (int i = 0; i < 200; ++i) {
        const auto result = client.Wait(running[i].first);
        ASSERT_EQ(result.code, Code::kOk) << result.message;
        ASSERT_EQ(client.Get<float>(running[i].second, 100 + i),
                  std::vector<float>(100 + i, static_cast<float>(6 * (i + 1))));
      }
      EXPECT_EQ(client.header()->negotiation_messages.load(), 400u * (step + 1));
    }
  });
}

TEST_F(NamesTest, BesideTheSequence_NeitherWaitsForTheOther) {
  ForEachRank([](int rank, FakeClient& client) {
    arena::Ref named = 0;
    FakeClient::Ticket ticket;
    if (rank != 1) ticket = Submit(&client, "x", 10, 1.0f, &named);
    ASSERT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
    if (rank == 1) ticket = Submit(&client, "x", 10, 1.0f, &named);
    ASSERT_EQ(client.Wait(ticket).code, Code::kOk);
    EXPECT_EQ(client.Get<float>(named, 10), std::vector<float>(10, 3.0f));
  });
}

TEST_F(NamesTest, MismatchBetweenNodes_NamesBothAndOthersGoOn) {
  ForEachRank([](int rank, FakeClient& client) {
    arena::Ref data = 0;
    const auto bad = Submit(&client, "x", rank == 2 ? 11 : 10, 1.0f, &data);
    const auto result = client.Wait(bad);
    EXPECT_EQ(result.code, Code::kMismatch);
    for (const char* part : {"float32[10]", "float32[11]", "rank 0", "rank 2", "named 'x'"}) {
      EXPECT_NE(result.message.find(part), std::string::npos) << result.message;
    }
    const auto good = Submit(&client, "x", 12, 1.0f, &data);
    ASSERT_EQ(client.Wait(good).code, Code::kOk);
    EXPECT_EQ(client.Get<float>(data, 12), std::vector<float>(12, 3.0f));
  });
}

TEST_F(NamesTest, RankEnds_OthersAreTold) {
  arena::Ref data = 0;
  const auto first = Submit(&clients_[0], "x", 10, 1.0f, &data);
  const auto second = Submit(&clients_[1], "x", 10, 1.0f, &data);
  EngineOf(2)->RankEnded("job", 2, {.code = Code::kPeerFailed, .exit_code = 3});
  for (const auto& [client, ticket] : {std::pair(&clients_[0], first), {&clients_[1], second}}) {
    const auto result = client->Wait(ticket);
    EXPECT_EQ(result.code, Code::kPeerFailed);
    EXPECT_NE(result.message.find("rank 2 (node node-b) exited with code 3"), std::string::npos)
        << result.message;
  }
}

TEST_F(NamesTest, WithoutName_IsCutOff) {
  FakeClient& client = clients_[2];
  arena::Descriptor descriptor =
      client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 0);
  descriptor.flags |= arena::kFlagNamed;
  client.Submit(descriptor);
  EXPECT_EQ(client.Wait(client.Submit(client.Describe(Operation::kBarrier))).code,
            Code::kInvalidArgument);
  EXPECT_TRUE(client.IsPoisoned());
}

}  // namespace
}  // namespace ringd::daemon
