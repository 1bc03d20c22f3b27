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

INSTANTIATE_TEST_SUITE_P(Ring, CommunicatorConformanceTest,
                         testing::Values(Shape{"2 nodes of 1 rank", {1, 1}, MakeRing},
                                         Shape{"2 nodes of 2 ranks", {2, 2}, MakeRing},
                                         Shape{"3 nodes of 1 rank", {1, 1, 1}, MakeRing},
                                         Shape{"4 nodes, uneven", {1, 2, 3, 1}, MakeRing}));

}  // namespace
}  // namespace ringd::daemon
