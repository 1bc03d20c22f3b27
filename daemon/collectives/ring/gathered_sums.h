// All nodes' sums of a small allreduce on one node, and their addition.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_GATHERED_SUMS_H_
#define RINGD_DAEMON_COLLECTIVES_RING_GATHERED_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "daemon/collectives/communicator.h"
#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/node_reduction.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {

// Ownership: layout, collective and scratch memory outlive it. Thread-bound: the communicator's.
class GatheredSums {
 public:
  GatheredSums(const GroupLayout& layout, const Collective& collective, RingScratch* scratch);

  uint32_t sum_bytes() const { return sum_bytes_; }
  // Where the sum of the node `distance` places to the left belongs; 0: this node's own. One beside
  // the other.
  std::byte* At(int distance) const { return sums_.get() + size_t{sum_bytes_} * distance; }

  // Makes this node's own.
  void SumInputs() { reduction_.SumInputs(0, sum_bytes_, At(0)); }
  // Adds all of them as they would have been added on the ring's way, segment by segment, and
  // stores the result.
  void AddAll();

 private:
  void AddSegment(int segment);

  const GroupLayout& layout_;
  const Collective& collective_;
  NodeReduction reduction_;
  const uint32_t sum_bytes_;
  const AlignedBuffer sums_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_GATHERED_SUMS_H_
