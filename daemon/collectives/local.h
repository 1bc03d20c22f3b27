// Collectives between the ranks of one node, directly on their buffers.
#ifndef RINGD_DAEMON_COLLECTIVES_LOCAL_H_
#define RINGD_DAEMON_COLLECTIVES_LOCAL_H_

#include <memory>

#include "daemon/collectives/communicator.h"
#include "daemon/collectives/slice_pool.h"

namespace ringd::daemon {

// A communicator for a group on one node. Small operations are over when Start returns; large ones
// are cut into slices for the pool: each thread reads every rank's buffer once and writes the
// result to all of them once, in rank order, so that the bits depend on nothing but the inputs (2 *
// ranks * bytes of memory traffic, the least there is).
//
// REQUIRES: layout.node_count() == 1, layout.size() <= kMaxReduceBuffers; the pool outlives the
// communicator.
std::unique_ptr<Communicator> MakeLocalCommunicator(const GroupLayout& layout, SlicePool* pool);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_LOCAL_H_
