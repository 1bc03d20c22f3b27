// Whether the ranks of a node ask for the same operation, and what to tell them if not.
#ifndef RINGD_DAEMON_ENGINE_ORDER_COMPARE_H_
#define RINGD_DAEMON_ENGINE_ORDER_COMPARE_H_

#include "daemon/collectives/communicator.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// first: of the rank that came first, which may be this one. Ranks in numbers of the job. Ok,
// kInvalidArgument (a rejection of `mine`) or kMismatch.
Outcome Compare(OperationKey key, const Request& first, int first_rank, const Request& mine,
                int rank);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_COMPARE_H_
