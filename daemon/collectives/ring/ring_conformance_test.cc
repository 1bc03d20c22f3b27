// The communicators' conformance suite over rings of several shapes.
#include <memory>
#include <vector>

#include "daemon/collectives/conformance.h"
#include "daemon/collectives/ring/ring_cluster.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

std::unique_ptr<Cluster> MakeRing(const std::vector<GroupLayout>& layouts) {
  return std::make_unique<RingCluster>(layouts);
}

// By trees up to 0.5 MB.
std::unique_ptr<Cluster> MakeGathering(const std::vector<GroupLayout>& layouts) {
  const auto costs = std::make_shared<RingCosts>(
      RingCosts{.step_us = 50, .bytes_per_us = 100, .gather_bytes = 65536});
  return std::make_unique<RingCluster>(layouts, RingTuning{.costs = costs});
}

INSTANTIATE_TEST_SUITE_P(
    Ring, CommunicatorConformanceTest,
    testing::Values(Shape{"2 nodes of 1 rank", {1, 1}, MakeRing},
                    Shape{"2 nodes of 2 ranks", {2, 2}, MakeRing},
                    Shape{"3 nodes of 1 rank", {1, 1, 1}, MakeRing},
                    Shape{"4 nodes, uneven", {1, 2, 3, 1}, MakeRing},
                    Shape{"2 nodes, small ones gathered", {1, 1}, MakeGathering},
                    Shape{"2 nodes of 2 ranks, small ones gathered", {2, 2}, MakeGathering},
                    Shape{"3 nodes, small ones gathered", {1, 2, 1}, MakeGathering},
                    Shape{"4 nodes, small ones by shortcuts", {1, 1, 1, 1}, MakeGathering},
                    Shape{"5 nodes, small ones by shortcuts", {2, 1, 1, 3, 1}, MakeGathering}));

}  // namespace
}  // namespace ringd::daemon
