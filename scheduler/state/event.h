// What happens to the scheduler: the input of its state machine.
#ifndef RINGD_SCHEDULER_STATE_EVENT_H_
#define RINGD_SCHEDULER_STATE_EVENT_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "proto/cluster.pb.h"

namespace ringd::scheduler {

// When an event happened. wall is for people to read; durations come from steady, a monotonic
// clock.
struct Now {
  absl::Time wall;
  absl::Duration steady;
};

// Names a call that waits for its Reply.
using CallId = uint64_t;
// Names one Join stream; 0: none.
using ConnectionId = uint64_t;

struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string user;
  bool privileged = false;  // May act on everyone's jobs.
};

struct SubmitEvent {
  CallId call = 0;
  Caller caller;
  ringd::cluster::v1::JobSpec spec;
  std::string request_id;
};
struct CancelEvent {
  CallId call = 0;
  Caller caller;
  std::string job;  // Id or name.
  std::string reason;
};
struct SignalEvent {
  CallId call = 0;
  Caller caller;
  std::string job;
  int signal = 0;
};
// A foreground job has somebody who holds it; after HoldLost of the last one its lease runs.
struct HoldEvent {
  CallId call = 0;
  Caller caller;
  std::string job;
};
struct HoldLostEvent {
  std::string job;  // Id.
};

struct NodeJoinedEvent {
  ConnectionId connection = 0;
  ringd::cluster::v1::NodeHello hello;
};
struct NodeReportEvent {  // heartbeat, prepared, rank or cleared.
  ConnectionId connection = 0;
  ringd::cluster::v1::NodeReport report;
};
struct NodeDisconnectedEvent {
  ConnectionId connection = 0;
};

// At least every kTickInterval: all that happens because time has passed happens here.
struct TickEvent {};
inline constexpr absl::Duration kTickInterval = absl::Milliseconds(250);

using Event = std::variant<SubmitEvent, CancelEvent, SignalEvent, HoldEvent, HoldLostEvent,
                           NodeJoinedEvent, NodeReportEvent, NodeDisconnectedEvent, TickEvent>;

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STATE_EVENT_H_
