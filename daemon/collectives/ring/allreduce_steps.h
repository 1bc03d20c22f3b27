// The way of an allreduce around the ring: n segments, one begun by each node.
//
// Reduce-scatter in n-1 steps: node i sends the sum of its inputs of segment i, then adds its
// inputs to segments i-1, i-2, ... and passes them on; the last it receives, i+1, is complete.
// Allgather in n-1 steps: it sends segment i+1, then passes on i, i-1, ... What is sent in step t >
// 0 is what came in step t-1.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_ALLREDUCE_STEPS_H_
#define RINGD_DAEMON_COLLECTIVES_RING_ALLREDUCE_STEPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/types.h"
#include "common/reduce/wire_dtype.h"
#include "daemon/collectives/communicator.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {

// One node's steps. Bytes are the tensor's. A value.
class AllreduceSteps {
 public:
  AllreduceSteps(const GroupLayout& layout, const Collective& collective)
      : element_bytes_(DTypeBytes(collective.dtype)),
        count_(collective.count),
        is_narrow_(collective.wire != WireDType::kSame),
        node_count_(layout.node_count()),
        node_(layout.node_index) {}

  uint64_t step_count() const { return 2 * static_cast<uint64_t>(node_count_ - 1); }
  Block Sent(uint64_t step) const { return BlockOf(step, node_); }
  Block Received(uint64_t step) const { return BlockOf(step, Wrap(node_ - 1, node_count_)); }
  uint64_t own_bytes() const { return Sent(0).bytes; }

  // Of received blocks: a sum under way, the sum of all but this node's, or a finished one.
  bool IsPartial(const Block& block) const { return block.step < node_count_ - 2; }
  bool IsLastPartial(const Block& block) const { return block.step == node_count_ - 2; }
  bool IsWhole(const Block& block) const { return block.step >= node_count_ - 1; }
  // Goes no further.
  bool EndsHere(const Block& block) const { return block.step == 2 * node_count_ - 3; }

 private:
  // What that node sends.
  Block BlockOf(uint64_t step, int node) const {
    const int number = static_cast<int>(step);
    const int gather_step = number - (node_count_ - 1);
    const int segment = Wrap(gather_step < 0 ? node - number : node + 1 - gather_step, node_count_);
    const uint64_t begin = SegmentOf(segment);
    const uint64_t end = SegmentOf(segment + 1);
    Block block;
    block.step = number;
    block.begin = begin * element_bytes_;
    block.bytes = (end - begin) * element_bytes_;
    return block;
  }

  // Element where it begins. Narrow ones are whole blocks, so that blocks begin at multiples of
  // their length in the tensor, too: whoever lays tensors out may keep to that.
  uint64_t SegmentOf(int index) const {
    if (!is_narrow_) return SegmentBegin(count_, element_bytes_, node_count_, index);
    const uint64_t blocks = (count_ + kWireBlock - 1) / kWireBlock;
    const auto segments = static_cast<uint64_t>(node_count_);
    const auto position = static_cast<uint64_t>(index);
    const uint64_t block = position * (blocks / segments) + std::min(position, blocks % segments);
    return std::min(count_, block * kWireBlock);
  }

  size_t element_bytes_;
  uint64_t count_;
  bool is_narrow_;
  int node_count_;
  int node_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_ALLREDUCE_STEPS_H_
