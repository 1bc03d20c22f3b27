// What an operation is, without the memory of a rank: enough to take part in it.
#ifndef RINGD_DAEMON_ENGINE_ORDER_FORM_H_
#define RINGD_DAEMON_ENGINE_ORDER_FORM_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// Equal on all ranks that call the same operation. Empty: too long to be sent (an alltoall of many
// hundreds of ranks).
std::string FormOf(const Request& request);

// A request without client, memory, name and site. INVALID_ARGUMENT: no form of an operation that
// can be carried out by a group of `size` ranks.
absl::StatusOr<RequestPtr> RequestFrom(absl::string_view form, int size);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_FORM_H_
