// Collectives of one node, carried out plainly on the engine's thread: the reference for every
// other communicator.
#ifndef RINGD_DAEMON_COLLECTIVES_LOOPBACK_H_
#define RINGD_DAEMON_COLLECTIVES_LOOPBACK_H_

#include <memory>

#include "daemon/collectives/communicator.h"

namespace ringd::daemon {

// Each Progress carries out one operation whole. Not fast: it goes through a copy of every result.
// REQUIRES: layout.node_count() == 1 and at most kMaxReduceBuffers ranks.
std::unique_ptr<Communicator> MakeLoopbackCommunicator(const GroupLayout& layout);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_LOOPBACK_H_
