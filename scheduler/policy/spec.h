// What a submitted job asks for, checked and brought into one form.
#ifndef RINGD_SCHEDULER_POLICY_SPEC_H_
#define RINGD_SCHEDULER_POLICY_SPEC_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"

namespace ringd::scheduler {

// Bounds of one job. Ranks: what a ring of one job is planned for, 16 times the largest of our
// simulations' 1,024 ranks, times four. Bytes: a spec with its environment fits twice into a gRPC
// message of 4 MB.
inline constexpr int kMaxRanks = 65536;
inline constexpr int kMaxSlotsPerNode = 65536;
inline constexpr size_t kMaxSpecBytes = 1536 * 1024;
inline constexpr size_t kMaxNameBytes = 128;

// The shape of a job: how many ranks, over which nodes.
struct Shape {
  struct Host {
    std::string node;
    int slots = 0;  // At most; < 0: all that the node has.
  };
  int ranks = 1;
  int nodes = 0;           // Exactly; 0: any number.
  int ranks_per_node = 0;  // Exactly; 0: as it comes.
  std::vector<Host>
      hosts;  // Only these, filled in this order; empty: all nodes. None with 0 slots.
};

// Checks everything in a spec that needs no knowledge of the cluster, and fills defaults in: name
// (the command's base name). INVALID_ARGUMENT: the message names the option, its value and what
// would be right.
absl::Status CheckSpec(ringd::cluster::v1::JobSpec* spec);

// The shape a spec asks for. ranks = 0: nodes x ranks_per_node (1 where only nodes is given),
// else 1. INVALID_ARGUMENT: counts that contradict each other, a doubled or empty node, a negative
// count.
absl::StatusOr<Shape> ResolveShape(const ringd::cluster::v1::JobSpec& spec);

// "1 rank", "2 ranks".
std::string Counted(int count, const std::string& noun);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_POLICY_SPEC_H_
