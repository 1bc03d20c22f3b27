// The reductions of one operation on one node: its own inputs, and these with what comes from the
// left.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_NODE_REDUCTION_H_
#define RINGD_DAEMON_COLLECTIVES_RING_NODE_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/reduce/reduce.h"
#include "daemon/collectives/communicator.h"
#include "daemon/collectives/ring/algorithm.h"

namespace ringd::daemon {

// Ranges are bytes of the tensor, whole elements, at most kRingPieceBytes.
//
// Order: the node's inputs by rank, then the neighbour's sum.
//
// Scaling: each input's prescale when the node's inputs are summed, postscale and divisor with the
// last node's sum. Averages of float16, and those that travel as it, also take a power of two from
// the last step to the first, so that sums stay in range; that power changes no bit but those of
// subnormal numbers.
//
// Ownership: the collective and the scratch memory outlive it.
// Thread-bound: the communicator's.
class NodeReduction {
 public:
  NodeReduction(const Collective& collective, RingScratch* scratch);

  // Whether the node's sum is its only input, bit by bit.
  bool IsInput() const { return collective_.ranks.size() == 1 && has_plain_inputs_; }

  // Whether what Add and AddLast add is SumInputs' result, bit by bit, on all nodes. Otherwise the
  // f32 sum of several ranks' 16-bit floats meets the neighbour's before it is rounded.
  static bool AddsWholeSums(const GroupLayout& layout, const Collective& collective);

  // The node's sum, for the right neighbour. `to` may be the first rank's input at `begin`.
  void SumInputs(uint64_t begin, uint32_t bytes, std::byte* to);
  // The left neighbour's sum and this node's inputs. An output may be an input at `begin`, or
  // `partial`.
  void Add(const std::byte* partial, uint64_t begin, uint32_t bytes,
           const std::vector<std::byte*>& outputs);
  // The same for the last node.
  void AddLast(const std::byte* partial, uint64_t begin, uint32_t bytes,
               const std::vector<std::byte*>& outputs);

  // All nodes' sums, as SumInputs gives them: the result. REQUIRES: at most kMaxReduceBuffers.
  void AddSums(const std::vector<const void*>& sums, uint32_t bytes,
               const std::vector<std::byte*>& outputs);
  // The same with a sum that some node's SumInputs has made.
  void AddSum(const std::byte* partial, const std::byte* sum, uint32_t bytes, bool is_last,
              const std::vector<std::byte*>& outputs) {
    Run({sum, partial}, outputs, bytes, is_last ? last_ : Scaling{});
  }

 private:
  void Combine(const std::byte* partial, uint64_t begin, uint32_t bytes,
               const std::vector<std::byte*>& outputs, const Scaling& scaling);
  void Run(const std::vector<const void*>& inputs, const std::vector<std::byte*>& outputs,
           uint32_t bytes, const Scaling& scaling);

  const Collective& collective_;
  RingScratch* const scratch_;
  const size_t element_bytes_;
  Scaling first_;  // Of SumInputs.
  Scaling last_;   // Of AddLast.
  bool has_plain_inputs_ = true;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_NODE_REDUCTION_H_
