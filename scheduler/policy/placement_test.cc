#include "scheduler/policy/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ringd::scheduler {
namespace {

using testing::HasSubstr;

constexpr uint32_t kUser = 1000;

NodeSlots MakeNode(const std::string& name, int slots, int free) {
  NodeSlots node;
  node.name = name;
  node.data_address = name + ":7472";
  node.slots = slots;
  node.free = free;
  return node;
}

// "a:2 b:1", or the reason.
std::string Placed(const Shape& shape, const ClusterView& cluster, uint32_t uid = kUser) {
  const Placement placement = Place(shape, uid, cluster);
  std::string text;
  for (const Assignment& each : placement.assignments) {
    absl::StrAppend(&text, text.empty() ? "" : " ", cluster.nodes[each.node].name, ":", each.ranks);
  }
  return placement.assignments.empty() ? placement.reason : text;
}

Shape Ranks(int ranks, int nodes = 0, int per_node = 0) {
  Shape shape;
  shape.ranks = ranks;
  shape.nodes = nodes;
  shape.ranks_per_node = per_node;
  return shape;
}

ClusterView Three() { return {{MakeNode("a", 4, 4), MakeNode("b", 4, 4), MakeNode("c", 4, 4)}}; }

TEST(PlacementTest, Place_FitsOneNode_TakesTheFirstWithRoom) {
  EXPECT_EQ(Placed(Ranks(3), Three()), "a:3");
  ClusterView view = Three();
  view.nodes[0].free = 1;
  EXPECT_EQ(Placed(Ranks(3), view), "b:3");
}

TEST(PlacementTest, Place_FitsNoSingleNode_FillsInOrder) {
  EXPECT_EQ(Placed(Ranks(9), Three()), "a:4 b:4 c:1");
}

TEST(PlacementTest, Place_RanksPerNode_TakesThatManyEach) {
  ClusterView view = Three();
  view.nodes[1].free = 1;
  EXPECT_EQ(Placed(Ranks(4, 2, 2), view), "a:2 c:2");
  EXPECT_EQ(Placed(Ranks(6, 0, 2), view), "needs 3 nodes with 2 slots free, cluster has 2");
}

TEST(PlacementTest, Place_NodesAlone_SplitsEvenly) {
  EXPECT_EQ(Placed(Ranks(5, 2), Three()), "a:3 b:2");
  EXPECT_EQ(Placed(Ranks(3, 4), Three()), "needs 4 nodes with 1 slot, cluster has 3");
}

TEST(PlacementTest, Place_NodesAloneOnUnevenNodes_UsesTheRoomThereIs) {
  const ClusterView view{{MakeNode("a", 1, 1), MakeNode("b", 5, 5)}};
  EXPECT_EQ(Placed(Ranks(6, 2), view), "a:1 b:5");
}

TEST(PlacementTest, Place_TooManyForTheCluster_IsNotPossible) {
  const ClusterView view{{MakeNode("a", 2, 2), MakeNode("b", 2, 2)}};
  EXPECT_EQ(Placed(Ranks(5), view), "needs 5 slots, cluster has 4");
  EXPECT_FALSE(Place(Ranks(5), kUser, view).possible);
}

TEST(PlacementTest, Place_BusyCluster_IsPossibleLater) {
  const ClusterView view{{MakeNode("a", 2, 1), MakeNode("b", 2, 0)}};
  EXPECT_EQ(Placed(Ranks(3), view), "needs 3 slots, 1 of 4 are free");
  EXPECT_TRUE(Place(Ranks(3), kUser, view).possible);
}

TEST(PlacementTest, Place_Hosts_KeepsTheirOrderAndCounts) {
  Shape shape = Ranks(4);
  shape.hosts = {{"c", 3}, {"a", -1}};
  EXPECT_EQ(Placed(shape, Three()), "c:3 a:1");
  shape.ranks = 2;
  EXPECT_EQ(Placed(shape, Three()), "c:2");
}

TEST(PlacementTest, Place_NodeIsAway_SaysSo) {
  ClusterView view = Three();
  view.nodes[1].up = false;
  view.nodes[1].note = "away";
  Shape shape = Ranks(2);
  shape.hosts = {{"b", 2}};
  EXPECT_EQ(Placed(shape, view), "node b is away");
  EXPECT_EQ(Placed(Ranks(9), view), "needs 9 slots, cluster has 8");
  EXPECT_EQ(Placed(Ranks(1), ClusterView{}), "needs 1 slot, no node has joined yet");
}

TEST(PlacementTest, Place_PrivateNode_ServesItsOwnUserOnly) {
  ClusterView view{{MakeNode("a", 2, 2)}};
  view.nodes[0].shared = false;
  view.nodes[0].uid = 0;
  EXPECT_EQ(Placed(Ranks(1), view), "needs 1 slot, node a serves uid 0 only");
  EXPECT_EQ(Placed(Ranks(1), view, 0), "a:1");
  view.nodes[0].shared = true;
  EXPECT_THAT(Placed(Ranks(1), view, 0), HasSubstr("shared nodes run no jobs of root"));
}

TEST(PlacementTest, CheckHosts_UnknownNodeOrTooMuch_IsNamed) {
  Shape shape = Ranks(1);
  shape.hosts = {{"z", 1}};
  EXPECT_THAT(std::string(CheckHosts(shape, Three()).message()), HasSubstr("unknown node z"));
  shape.hosts = {{"a", 5}};
  EXPECT_EQ(CheckHosts(shape, Three()).message(),
            "--hosts asks for 5 slots of node a, which has 4");
  shape.hosts = {{"a", 4}, {"b", -1}};
  EXPECT_TRUE(CheckHosts(shape, Three()).ok());
}

TEST(PlacementTest, FormRing_Placement_HasDenseRanksInOrder) {
  const ClusterView view = Three();
  const auto ring = FormRing(Place(Ranks(9), kUser, view), view);
  ASSERT_EQ(ring.size(), 3u);
  EXPECT_EQ(ring[1].name(), "b");
  EXPECT_EQ(ring[1].data_address(), "b:7472");
  EXPECT_EQ(ring[1].first_rank(), 4);
  EXPECT_EQ(ring[1].rank_count(), 4);
  EXPECT_EQ(ring[2].first_rank(), 8);
  EXPECT_EQ(ring[2].rank_count(), 1);
}

}  // namespace
}  // namespace ringd::scheduler
