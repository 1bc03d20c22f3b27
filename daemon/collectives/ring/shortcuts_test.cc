// Operations over the links to nodes 2, 4, ... places away, on rings of real sockets.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "daemon/collectives/ring/ring_cluster.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kTreeBytes = 300'000;  // Below that of ChooseTable on any of the rings here.

class ShortcutsTest : public testing::TestWithParam<int> {
 protected:
  ShortcutsTest() {
    const auto costs = std::make_shared<RingCosts>(RingCosts{.step_us = 50, .bytes_per_us = 100});
    cluster_ = std::make_unique<RingCluster>(MakeLayouts(std::vector<int>(GetParam(), 1)),
                                             RingTuning{.costs = costs});
  }

  int node_count() const { return GetParam(); }
  uint64_t steps() const {
    uint64_t steps = 0;
    while ((1 << steps) < node_count()) ++steps;
    return steps;
  }

  void Start(int node, Collective collective) {
    const auto shared = std::make_shared<Collective>(std::move(collective));
    cluster_->communicator(node)->Start({0, sequence_}, shared,
                                        [this, node](const Outcome& outcome) {
                                          outcomes_.push_back(outcome);
                                          finished_.push_back(node);
                                        });
  }

  bool DriveUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done() && std::chrono::steady_clock::now() < end) cluster_->Drive();
    return done();
  }
  bool Finish() {
    const bool all = DriveUntil([this] { return finished_.size() == size_t(node_count()); });
    for (const Outcome& outcome : outcomes_) EXPECT_TRUE(outcome.ok()) << outcome.message;
    return all;
  }
  void Clear() {
    outcomes_.clear();
    finished_.clear();
    ++sequence_;
  }

  uint64_t Sent(int node) { return cluster_->communicator(node)->counters().bytes_sent; }
  std::vector<uint64_t> Sent() {
    std::vector<uint64_t> bytes;
    for (int node = 0; node < node_count(); ++node) bytes.push_back(Sent(node));
    return bytes;
  }

  std::unique_ptr<RingCluster> cluster_;
  uint64_t sequence_ = 1;
  std::vector<Outcome> outcomes_;
  std::vector<int> finished_;
};

TEST_P(ShortcutsTest, Broadcast_AnyRootAndSize_ReachesAll) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{1000}, uint64_t{256} << 10,
                               (uint64_t{256} << 10) + 1, kTreeBytes, uint64_t{3} << 20}) {
    for (int root = 0; root < node_count(); ++root) {
      SCOPED_TRACE(testing::Message() << count << " bytes from " << root);
      std::vector<std::vector<std::byte>> tensors(node_count(), std::vector<std::byte>(count));
      std::vector<std::byte>& source = tensors[root];
      for (uint64_t i = 0; i < count; ++i) source[i] = static_cast<std::byte>(i * 7 + root);
      const std::vector<std::byte> expected = source;
      const std::vector<uint64_t> before = Sent();
      for (int node = 0; node < node_count(); ++node) {
        Collective collective;
        collective.operation = Operation::kBroadcast;
        collective.dtype = DType::kUInt8;
        collective.count = count;
        collective.root = root;
        collective.ranks = {{tensors[node].data(), tensors[node].data()}};
        Start(node, collective);
      }
      ASSERT_TRUE(Finish());
      uint64_t total = 0;
      for (int node = 0; node < node_count(); ++node) {
        EXPECT_TRUE(tensors[node] == expected) << "node " << node;
        total += Sent(node) - before[node];
      }
      EXPECT_EQ(total, count * (node_count() - 1));
      EXPECT_EQ(Sent(root) - before[root], count <= kTreeBytes ? count * steps() : count);
      Clear();
    }
  }
}

TEST_P(ShortcutsTest, Barrier_OneNodeIsMissing_HoldsAllOthers) {
  Collective barrier;
  barrier.operation = Operation::kBarrier;
  for (int late = 0; late < node_count(); ++late) {
    for (int node = 0; node < node_count(); ++node) {
      if (node != late) Start(node, barrier);
    }
    for (int round = 0; round < 200; ++round) cluster_->Drive();
    EXPECT_TRUE(finished_.empty());
    Start(late, barrier);
    ASSERT_TRUE(Finish());
    Clear();
  }
}

TEST_P(ShortcutsTest, OneNodeCallsAnother_AllAreTold) {
  for (int node = 0; node < node_count(); ++node) {
    Collective collective;
    collective.operation = Operation::kBarrier;
    collective.signature = node == 2 ? 5 : 4;
    collective.description = node == 2 ? "rank 2: barrier b" : "a barrier";
    Start(node, collective);
  }
  ASSERT_TRUE(DriveUntil([this] { return finished_.size() == size_t(node_count()); }));
  for (const Outcome& outcome : outcomes_) {
    EXPECT_EQ(outcome.code, arena::Code::kMismatch);
    EXPECT_NE(outcome.message.find("rank 2"), std::string::npos) << outcome.message;
  }
  Clear();
  for (int node = 0; node < node_count(); ++node) {
    Collective barrier;
    barrier.operation = Operation::kBarrier;
    Start(node, barrier);
  }
  EXPECT_TRUE(Finish());
}

TEST_P(ShortcutsTest, NodeGoes_AllOthersNameIt) {
  cluster_->Remove(1);
  ASSERT_TRUE(DriveUntil([this] {
    for (int node = 0; node < node_count(); ++node) {
      if (node != 1 && cluster_->ring_failures(node).empty()) return false;
    }
    return true;
  }));
  for (int node = 0; node < node_count(); ++node) {
    if (node == 1) continue;
    ASSERT_EQ(cluster_->ring_failures(node).size(), 1u);
    EXPECT_EQ(cluster_->ring_failures(node)[0].node, "b") << "node " << node;
  }
}

TEST_P(ShortcutsTest, ManyInFlight_Interleave) {
  constexpr int kOperations = 200;
  std::vector<std::vector<std::vector<float>>> tensors(
      kOperations, std::vector<std::vector<float>>(node_count(), std::vector<float>(700)));
  for (int i = 0; i < kOperations; ++i) {
    for (int node = 0; node < node_count(); ++node) {
      tensors[i][node].assign(700, static_cast<float>(i * (node + 1)));
    }
  }
  for (int i = 0; i < kOperations; ++i) {
    for (int node = 0; node < node_count(); ++node) {
      Collective collective;
      const int kind = i % 3;
      collective.operation = kind == 0   ? Operation::kAllreduce
                             : kind == 1 ? Operation::kBroadcast
                                         : Operation::kBarrier;
      collective.dtype = DType::kFloat32;
      if (kind == 0) collective.reduction = Reduction::kSum;
      collective.count = kind == 2 ? 0 : 700;
      collective.root = kind == 1 ? i % node_count() : 0;
      auto* const data = reinterpret_cast<std::byte*>(tensors[i][node].data());
      if (kind != 2) collective.ranks = {{data, data}};
      Start(node, collective);
    }
    ++sequence_;
    if (i % 7 == 0) cluster_->DriveNode(i % node_count());
  }
  ASSERT_TRUE(DriveUntil(
      [this] { return finished_.size() == size_t(kOperations) * size_t(node_count()); }));
  const int n = node_count();
  for (int i = 0; i < kOperations; ++i) {
    for (int node = 0; node < n; ++node) {
      const int factor = i % 3 == 0 ? n * (n + 1) / 2 : i % 3 == 1 ? i % n + 1 : node + 1;
      EXPECT_EQ(tensors[i][node], std::vector<float>(700, static_cast<float>(i * factor)))
          << i << " node " << node;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, ShortcutsTest, testing::Values(4, 5, 7, 8, 9));

// Node c takes a broadcast for a chain, the root a tree's: what came early by the shortcut is the
// root's fault, not that of c's left neighbour.
TEST(ShortcutsBlameTest, EarlyPayloadByAWrongWay_NamesWhoHasSentIt) {
  const auto tree = std::make_shared<RingCosts>(RingCosts{.step_us = 50, .bytes_per_us = 100});
  const auto chain = std::make_shared<RingCosts>();
  RingCluster cluster(MakeLayouts({1, 1, 1, 1}),
                      [&](int node) { return RingTuning{.costs = node == 2 ? chain : tree}; });
  std::vector<std::vector<std::byte>> tensors(4, std::vector<std::byte>(1000));
  for (const int node : {0, 2}) {
    auto broadcast = std::make_shared<Collective>();
    broadcast->operation = Operation::kBroadcast;
    broadcast->dtype = DType::kUInt8;
    broadcast->count = 1000;
    broadcast->ranks = {{tensors[node].data(), tensors[node].data()}};
    cluster.communicator(node)->Start({0, 1}, broadcast, [](const Outcome&) {});
    for (int round = 0; round < 200; ++round) cluster.Drive();
  }
  ASSERT_EQ(cluster.ring_failures(2).size(), 1u);
  EXPECT_EQ(cluster.ring_failures(2)[0].node, "a");
  EXPECT_NE(cluster.ring_failures(2)[0].message.find("by a way that it can't take"),
            std::string::npos)
      << cluster.ring_failures(2)[0].message;
}

}  // namespace
}  // namespace ringd::daemon
