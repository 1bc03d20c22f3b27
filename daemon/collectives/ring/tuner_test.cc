// The choice between ways, by hand; the measurement on rings of real sockets.
#include "daemon/collectives/ring/tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/collectives/ring/ring_cluster.h"

namespace ringd::daemon {
namespace {

TEST(RingTunerTest, FitCosts_TimesOfAKnownRing_GivesItsCosts) {
  // 50 us a step and 100 bytes a us, 4 nodes: 3 steps; 6 steps and 6/4 of 200,000 bytes.
  const RingCosts costs = FitCosts(4, 3, 150, 200'000, 300 + 3000);
  EXPECT_DOUBLE_EQ(costs.step_us, 50);
  EXPECT_DOUBLE_EQ(costs.bytes_per_us, 100);
}

TEST(RingTunerTest, FitCosts_AllreduceWithinTheSteps_StaysFinite) {
  const RingCosts costs = FitCosts(2, 1, 1000, 1000, 1500);
  EXPECT_GT(costs.bytes_per_us, 0);
  EXPECT_LE(costs.bytes_per_us, 1000);
}

TEST(RingTunerTest, ChooseTable_IsWhereBothWaysCostTheSame) {
  // 4 nodes: 3 (50 + S / 100) = 6 (50 + S / 400) where S = 10,000.
  EXPECT_EQ(ChooseTable(4, 0, {50, 100}).gather_bytes, 10'000u);
  // Two nodes send the same bytes by both: as far as the work in memory allows.
  EXPECT_EQ(ChooseTable(2, 0, {50, 100}).gather_bytes, 48u << 10);
  EXPECT_EQ(ChooseTable(3, 0, {500, 1000}).gather_bytes, 24u << 10);
}

TEST(RingTunerTest, ChooseTable_Shortcuts_CostFewerSteps) {
  // 4 nodes: 2 * 50 + 3 S / 100 = 6 * 50 + 6/4 S / 100 where S = 13,333; and of a broadcast
  // 2 (50 + S / 100) = 3 * 50 + (S + 2 * 262,144) / 100 where S = 529,288.
  RingTable table = ChooseTable(4, 1, {50, 100});
  EXPECT_EQ(table.gather_bytes, 13'333u);
  EXPECT_EQ(table.tree_bytes, 529'288u);
  // 8 nodes: 3 * 50 + 7 S / 100 = 14 * 50 + 14/8 S / 100 where S = 10,476: more than the limit;
  // 3 (50 + S / 100) = 7 * 50 + (S + 6 * 262,144) / 100 where S = 796,432.
  table = ChooseTable(8, 2, {50, 100});
  EXPECT_EQ(table.gather_bytes, 7'021u);  // 48 KB from seven others.
  EXPECT_EQ(table.tree_bytes, 796'432u);
  EXPECT_EQ(ChooseTable(8, 0, {50, 100}).tree_bytes, 0u);
}

TEST(RingTunerTest, StepsToAll_IsTheLogarithmWithShortcuts) {
  for (const auto& [nodes, steps] : {std::pair{2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}}) {
    EXPECT_EQ(StepsToAll(nodes, ShortcutCount(nodes)), steps) << nodes;
  }
}

TEST(RingTunerTest, ChooseTable_NothingKnown_GathersNothing) {
  EXPECT_EQ(ChooseTable(2, 0, {}).gather_bytes, 0u);
}

TEST(RingTunerTest, ChooseTable_SetByConfiguration_IsThat) {
  EXPECT_EQ(ChooseTable(4, 0, {.step_us = 50, .bytes_per_us = 100, .gather_bytes = 0}).gather_bytes,
            0u);
  EXPECT_EQ(ChooseTable(4, 0, {.gather_bytes = 3000}).gather_bytes, 3000u);
}

TEST(RingTunerTest, ChooseTable_NonsenseFromThePeer_StaysInRange) {
  EXPECT_EQ(ChooseTable(4, 0, {std::nan(""), 100}).gather_bytes, 0u);
  EXPECT_EQ(ChooseTable(4, 0, {-50, 100}).gather_bytes, 0u);
  EXPECT_EQ(ChooseTable(4, 0, {HUGE_VAL, HUGE_VAL}).gather_bytes, 16u << 10);
  EXPECT_EQ(ChooseTable(4, 0, {50, std::nan("")}).gather_bytes, 0u);
}

class RingTuningTest : public testing::Test {
 protected:
  // Bytes that the node has sent for an allreduce of `count` floats, of which each rank gives ones.
  uint64_t Allreduce(RingCluster* cluster, uint64_t count) {
    std::vector<std::vector<float>> tensors(cluster->layout(0).size(),
                                            std::vector<float>(count, 1.0f));
    std::vector<std::byte*> data;
    for (auto& tensor : tensors) data.push_back(reinterpret_cast<std::byte*>(tensor.data()));
    Collective allreduce;
    allreduce.operation = Operation::kAllreduce;
    allreduce.dtype = DType::kFloat32;
    allreduce.reduction = Reduction::kSum;
    allreduce.count = count;
    const uint64_t sent = cluster->RunInPlace({0, ++sequence_}, allreduce, data);
    for (const auto& tensor : tensors) {
      EXPECT_EQ(tensor, std::vector<float>(count, static_cast<float>(tensors.size())));
    }
    return sent;
  }

  uint64_t sequence_ = 0;
};

TEST_F(RingTuningTest, FirstNodesTable_DecidesOnAllNodes) {
  for (const std::vector<int>& ranks : {std::vector<int>{1, 1}, {2, 1}, {1, 2, 1}, {1, 1, 1, 1}}) {
    const auto n = static_cast<uint64_t>(ranks.size());
    for (const int64_t gather_bytes : {0, 4000}) {
      sequence_ = 0;
      const auto costs = std::make_shared<RingCosts>();
      RingCluster cluster(MakeLayouts(ranks),
                          {.measures = true, .costs = costs, .gather_bytes = gather_bytes});
      Allreduce(&cluster, 12);  // The measurement is over.
      EXPECT_EQ(costs->gather_bytes, gather_bytes);
      const uint64_t small = gather_bytes == 0 ? 2 * (n - 1) * 4000 / n : (n - 1) * 4000;
      EXPECT_NEAR(static_cast<double>(Allreduce(&cluster, 1000)), static_cast<double>(small), 8);
      EXPECT_EQ(Allreduce(&cluster, 1200), 2 * (n - 1) * 4800 / n);
    }
  }
}

TEST_F(RingTuningTest, OthersConfiguration_DoesNotCount) {
  RingCluster cluster(MakeLayouts({1, 1, 1}), [](int node) {
    return RingTuning{.measures = true, .gather_bytes = node == 0 ? 0 : 4000};
  });
  Allreduce(&cluster, 12);
  EXPECT_EQ(Allreduce(&cluster, 900), 2 * 2 * 3600u / 3);
}

TEST_F(RingTuningTest, RingOfAGroup_TakesTheCostsOfTheJobs) {
  const auto costs = std::make_shared<RingCosts>();
  costs->step_us = 50;
  costs->bytes_per_us = 100;  // 4 nodes: up to 13,333 bytes.
  RingCluster cluster(MakeLayouts({1, 1, 1, 1}), {.costs = costs});
  EXPECT_EQ(Allreduce(&cluster, 3333), 3 * 13'332u);
  EXPECT_EQ(Allreduce(&cluster, 3336), 2 * 3 * 13'344u / 4);
}

TEST_F(RingTuningTest, MeasuredTable_WorksForEverySize) {
  for (const std::vector<int>& ranks : {std::vector<int>{1, 1}, {2, 1, 1}}) {
    sequence_ = 0;
    RingCluster cluster(MakeLayouts(ranks), {.measures = true});
    for (const uint64_t count : {1u, 1000u, 16'384u, 16'385u, 100'000u, 0u}) {
      Allreduce(&cluster, count);
    }
  }
}

}  // namespace
}  // namespace ringd::daemon
