// What the scheduler's state machine asks its surroundings to do.
#ifndef RINGD_SCHEDULER_STATE_ACTION_H_
#define RINGD_SCHEDULER_STATE_ACTION_H_

#include <string>
#include <variant>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"
#include "scheduler/state/event.h"

namespace ringd::scheduler {

// Rows to write, as the machine has them when they are written. All of a batch's are durable before
// its replies and orders leave.
struct PersistJob {
  std::string job;
  bool with_spec = false;  // It is new: its spec, which never changes, too.
};
struct DeleteJob {
  std::string job;
};
struct PersistNode {
  std::string node;
};

struct Reply {
  CallId call = 0;
  absl::Status status;
  std::string job;  // Id.
};
struct SendOrder {
  ConnectionId connection = 0;
  ringd::cluster::v1::NodeOrder order;
};
// Ends the Join stream after what was sent before.
struct CloseConnection {
  ConnectionId connection = 0;
  absl::Status status;
};
struct JobChanged {  // Tell its watchers.
  std::string job;
};
struct LogLine {
  std::string text;
  bool warning = false;
};

using Action = std::variant<PersistJob, DeleteJob, PersistNode, Reply, SendOrder, CloseConnection,
                            JobChanged, LogLine>;

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STATE_ACTION_H_
