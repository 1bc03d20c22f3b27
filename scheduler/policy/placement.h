// Gang placement and ring formation: pure functions from a snapshot of the cluster to a plan and a
// sentence.
#ifndef RINGD_SCHEDULER_POLICY_PLACEMENT_H_
#define RINGD_SCHEDULER_POLICY_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"
#include "scheduler/policy/spec.h"

namespace ringd::scheduler {

// One node as placement sees it.
struct NodeSlots {
  std::string name;
  std::string data_address;
  int slots = 0;
  int free = 0;        // 0 <= free <= slots.
  bool up = true;      // Others take no ranks.
  bool shared = true;  // Serves every user but root; a node that isn't serves `uid` alone.
  uint32_t uid = 0;
  std::string note;  // Why it isn't up: "lost", "away".

  bool Serves(uint32_t user) const { return up && (shared ? user != 0 : user == uid); }
};

// All nodes, in the order in which they are filled.
struct ClusterView {
  std::vector<NodeSlots> nodes;
};

struct Assignment {
  size_t node = 0;  // Index in ClusterView::nodes.
  int ranks = 0;
};

struct Placement {
  std::vector<Assignment> assignments;  // In ring order; empty: not now.
  bool possible = false;                // It fits, or would if every node that is up were idle.
  std::string
      reason;  // Why not now ("needs 5 slots, cluster has 4"), or where: "2 nodes: a:2 b:1".
};

// Refuses hosts that no node answers to and counts over what the node has. INVALID_ARGUMENT names
// the node.
absl::Status CheckHosts(const Shape& shape, const ClusterView& cluster);

// All or nothing. Without --nodes, --ranks-per-node and --hosts: the first node with room for all
// ranks, else nodes are filled in order. --nodes K alone: evenly over the first K nodes with room,
// else over the K with most room.
Placement Place(const Shape& shape, uint32_t uid, const ClusterView& cluster);

// The generation's nodes in ring order with their dense ranks. Placement order is ring order: every
// link is crossed once in each direction.
std::vector<ringd::cluster::v1::GenerationNode> FormRing(const Placement& placement,
                                                         const ClusterView& cluster);

// Takes the slots of a placement.
void TakeSlots(const Placement& placement, ClusterView* cluster);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_POLICY_PLACEMENT_H_
