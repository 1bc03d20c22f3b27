// The ring over the network: collectives between the nodes of a generation, on TCP connections to
// the neighbours and, for small ones, to a few nodes further.
//
// Bytes on the wire, a node: allreduce 2(n-1)/n * S whatever the number of local ranks, small ones
// (n-1) * S; reducescatter and allgather (n-1)/n * S of the whole; broadcast S. Only the first rank
// of a node sends and receives: the node's inputs are reduced on the way out, the results are
// copied to the others.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_RING_H_
#define RINGD_DAEMON_COLLECTIVES_RING_RING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/collectives/communicator.h"
#include "daemon/transport/data_port.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {

// Runs once, inside Progress, when the ring is broken here or somewhere else in it: outcome.node is
// the node that was lost, as far as this node can tell. All operations, in flight and later, fail
// with the same outcome. A neighbour that destroys its communicator first (its job is over) looks
// the same: the owner knows whether that was due.
using RingFailure = std::function<void(const Outcome&)>;

// What is known of the links between a job's nodes, the same on all of them. A step from node to
// node takes step_us + bytes / bytes_per_us.
struct RingCosts {
  double step_us = 0;
  double bytes_per_us = 0;    // 0: nothing is known.
  int64_t gather_bytes = -1;  // >= 0: RingTable::gather_bytes, whatever the costs.
};

// How operations find their way.
struct RingTuning {
  std::string job;        // For the log.
  bool measures = false;  // All nodes alike: before its first operation the ring writes `costs`.
  std::shared_ptr<RingCosts> costs;  // Null: nothing is known.
  int64_t gather_bytes = -1;  // Where it measures: the first node's are written to RingCosts.
};

// Takes over the sockets (DataPort::OpenRing). Completion order: an operation completes on a node
// only after both neighbours have started it with the same signature.
//
// Bits: equal on all ranks, and from run to run for an equal layout. Order of summation of an
// element: the sums of the nodes (their ranks in rank order), in ring order from the owner of its
// segment on; whichever way it takes.
// 16-bit floats: f32 on the node, rounded once a hop; averages of float16 are scaled by a power of
// two before the sum, so that it can't overflow, and divided at the end.
//
// Collective::wire: one more rounding of the sum a hop, and one of the result, to that type.
//
// Arguments that can't be carried out (average of bool, a reduction without kernels, in-place
// alltoall over 64 MB) fail with kInvalidArgument on all nodes.
//
// REQUIRES: 2 or more nodes with 1 or more ranks each; `done` and the handlers don't destroy the
// communicator.
std::unique_ptr<Communicator> MakeRingCommunicator(GroupLayout layout, uint64_t generation,
                                                   RingSockets sockets, EventLoop* loop,
                                                   RingFailure ring_failure = nullptr,
                                                   const RingTuning& tuning = {});

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_RING_H_
