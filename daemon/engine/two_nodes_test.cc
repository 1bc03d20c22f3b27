// Two production engines in one process, joined by a ring over the loopback interface.
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/fake_client.h"
#include "daemon/engine/testing/plan_record.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;

// Job "job": node-a has the ranks 0 and 1, node-b rank 2.
class TwoNodesTest : public testing::Test {
 protected:
  void SetUp() override {
    JobGeneration generation;
    generation.job = "job";
    generation.generation = 1;
    generation.layout.nodes = {{"node-a", 0, 2}, {"node-b", 2, 1}};
    generation.key = std::string(32, 'k');
    for (auto& engine : engines_) {
      EngineOptions options;
      options.data_address = "127.0.0.1:0";
      options.reduce_threads = 2;
      auto created = Engine::Create(options);
      ASSERT_TRUE(created.ok()) << created.status();
      engine = *std::move(created);
      generation.data_addresses.push_back(engine->data_address());
    }
    std::promise<absl::Status> prepared[2];
    for (int node = 0; node < 2; ++node) {
      generation.layout.node_index = node;
      engines_[node]->PrepareJob(generation, [&prepared, node](absl::Status status) {
        prepared[node].set_value(std::move(status));
      });
    }
    for (auto& promise : prepared) {
      const absl::Status status = promise.get_future().get();
      ASSERT_TRUE(status.ok()) << status;
    }
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(clients_[rank].Attach(EngineOf(rank), "job", rank).ok());
    }
  }

  Engine* EngineOf(int rank) { return engines_[rank / 2].get(); }
  void ForEachRank(const std::function<void(int rank, FakeClient& client)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] { body(rank, clients_[rank]); });
    for (std::thread& thread : threads) thread.join();
  }

  FakeClient clients_[3];
  std::unique_ptr<Engine> engines_[2];
};

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

TEST_F(TwoNodesTest, NodeStops_FailsTheOther) {
  const auto waiting = clients_[2].Submit(clients_[2].Describe(Operation::kBarrier));
  engines_[0]->Stop();
  EXPECT_NE(clients_[2].Wait(waiting).code, Code::kOk);
  EXPECT_NE(clients_[2].Run(clients_[2].Describe(Operation::kBarrier)).code, Code::kOk);
}

}  // namespace
}  // namespace ringd::daemon
