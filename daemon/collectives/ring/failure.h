// Failures on the wire: the payload of floods.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_FAILURE_H_
#define RINGD_DAEMON_COLLECTIVES_RING_FAILURE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/collectives/communicator.h"

namespace ringd::daemon {

struct RingFailureText {
  Outcome outcome;
  // Of the sender's operation; not empty: the sender has found that a neighbour's operation
  // differs.
  std::string description;
};

// At most wire::kMaxTextBytes; texts that are too long are cut.
std::string EncodeFailure(const RingFailureText& failure);
// INVALID_ARGUMENT: lengths don't add up or the code is none.
absl::StatusOr<RingFailureText> DecodeFailure(const std::byte* data, size_t bytes);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_FAILURE_H_
