// Requests in the place of ranks that have joined: they add nothing, and nobody gets their results.
#ifndef RINGD_DAEMON_ENGINE_ORDER_STAND_IN_H_
#define RINGD_DAEMON_ENGINE_ORDER_STAND_IN_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/order/action.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// Starts the operation, with stand-ins for the local ranks that `requests` lacks (null). form: of
// the operation, FormOf. Their memory is the neutral element of the reduction, and for other
// operations zeros; it is given back when the operation is over, and takes room only where results
// are written. An operation that can't do without a rank (it is the root; a plan or group is
// registered) fails instead, on all nodes.
void StartOrAbort(OperationKey key, absl::string_view form, const GroupLayout& layout,
                  std::vector<RequestPtr> requests, Actions* actions);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_STAND_IN_H_
