// What an operation's ranks are told when one of them won't submit it any more.
#ifndef RINGD_DAEMON_ENGINE_ORDER_END_OUTCOME_H_
#define RINGD_DAEMON_ENGINE_ORDER_END_OUTCOME_H_

#include <string>

#include "daemon/collectives/communicator.h"

namespace ringd::daemon {

// outcome: of the rank's end; gets rank and node where it has none, and without a message one: how
// the process ended, or `finished` where it did so with exit code 0.
Outcome EndOutcome(const Outcome& outcome, int rank, const std::string& node,
                   const std::string& finished);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_END_OUTCOME_H_
