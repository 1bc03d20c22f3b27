// Which way a ring's operations take: measured when the ring has formed, decided by one node.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_TUNER_H_
#define RINGD_DAEMON_COLLECTIVES_RING_TUNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "daemon/collectives/communicator.h"
#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/ring.h"

namespace ringd::daemon {

// Steps after which all nodes know of all others.
int StepsToAll(int node_count, int shortcut_count);

// The costs behind the times of a barrier (`steps` steps) and of an allreduce of `bytes` by the
// ring (2 (node_count - 1) steps of bytes / node_count).
RingCosts FitCosts(int node_count, int steps, double barrier_us, uint64_t bytes,
                   double allreduce_us);

// Sums go whole to all nodes (StepsToAll steps, node_count - 1 tensors) up to the size from which
// the ring's way (2 (node_count - 1) steps of the tensor's node_count-th part) is faster.
// Broadcasts by a tree (StepsToAll steps of the tensor) up to that from which the chain (all of the
// tensor and, of each node on the way, one piece) is.
RingTable ChooseTable(int node_count, int shortcut_count, const RingCosts& costs);

// Runs the same few operations on all nodes, one after another: barriers and allreduces, which the
// first node measures, then a broadcast of its costs.
//
// Life: Begin, once; `done` runs with the costs when the last operation is over, never after a
// failure (the ring is broken then). Thread-bound: the communicator's.
class RingTuner {
 public:
  // As Communicator::Start. Buffers of one rank a node.
  using Start = std::function<void(std::shared_ptr<const Collective>, Communicator::Done)>;
  using NowMicros = std::function<double()>;

  // gather_bytes: RingTuning's.
  RingTuner(int node_count, int shortcut_count, bool is_first_node, int64_t gather_bytes,
            Start start, NowMicros now, std::function<void(const RingCosts&)> done);

  void Begin() { Next(); }

 private:
  void Next();
  void Run(Operation operation, uint64_t bytes, std::byte* memory);
  void Fit();

  const int node_count_;
  const int shortcut_count_;
  const bool is_first_node_;
  const int64_t gather_bytes_;
  const Start start_;
  const NowMicros now_;
  const std::function<void(const RingCosts&)> done_;
  std::vector<std::byte> memory_;
  RingCosts costs_;
  int step_ = 0;
  double started_us_ = 0;
  std::vector<double> barriers_us_;
  std::vector<double> allreduces_us_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_TUNER_H_
