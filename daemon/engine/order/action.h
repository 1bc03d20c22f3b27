// What the books of a group say that is to be done.
#ifndef RINGD_DAEMON_ENGINE_ORDER_ACTION_H_
#define RINGD_DAEMON_ENGINE_ORDER_ACTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/collectives/communicator.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// What the book's owner has to do next.
struct Action {
  enum class Kind {
    kStart,      // All local ranks have submitted `key`: start it. requests: by local rank.
    kTell,       // `requests` (one or more) are over with `outcome`.
    kAbort,      // Tell the peers that `key` fails with `outcome`: Communicator::Abort.
    kAbortFrom,  // ... and all later ones of its channel.
  };
  Kind kind = Kind::kTell;
  OperationKey key;
  std::vector<RequestPtr> requests;
  std::shared_ptr<const Outcome> outcome;
};
using Actions = std::vector<Action>;

inline Action Tell(RequestPtr request, std::shared_ptr<const Outcome> outcome) {
  Action action;
  action.kind = Action::Kind::kTell;
  action.requests.push_back(std::move(request));
  action.outcome = std::move(outcome);
  return action;
}

// Someone has called, somebody else has not.
struct Waiting {
  OperationKey key;
  int64_t since_us = 0;      // First submission.
  std::string description;   // Of that one.
  std::vector<int> present;  // Local ranks.
  std::vector<int> missing;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_ACTION_H_
