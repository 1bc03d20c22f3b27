// What happens to a node (events) and what it then does (actions): the two ends of NodeMachine.
#ifndef RINGD_DAEMON_MEMBERSHIP_NODE_EVENTS_H_
#define RINGD_DAEMON_MEMBERSHIP_NODE_EVENTS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/membership/job_record.pb.h"
#include "proto/cluster.pb.h"
#include "proto/node.pb.h"

namespace ringd::daemon {

// The two clocks, read together.
struct Moment {
  absl::Time monotonic = absl::InfinitePast();  // Durations come from this one.
  int64_t wall_us = 0;                          // For reports.
};

namespace event {

struct SchedulerUp {};    // The stream is open: the hello is due.
struct SchedulerDown {};  // The stream broke.
struct SchedulerOrder {   // All but ReadLog.
  cluster::v1::NodeOrder order;
};

// Answers to actions.
struct CommandChecked {
  std::string job;
  uint64_t generation = 0;
  absl::Status status;  // INVALID_ARGUMENT: the user's mistake. The message is a sentence without
                        // the node's name.
};
struct RingPrepared {
  std::string job;
  uint64_t generation = 0;
  absl::Status status;
};
struct WorkerSpawned {
  std::string job;
  int rank = 0;
  pid_t pid = 0;
  uint64_t start_time = 0;
  std::string log_path;
};
struct SpawnFailed {
  std::string job;
  int rank = 0;
  std::string reason;
};
struct RankSwept {  // No process of the rank is left.
  std::string job;
  int rank = 0;
};
struct JobRemoved {  // The engine has nothing of it left.
  std::string job;
};

// From workers. `line` counts the Supervise streams of this daemon: what an older one says no
// longer counts.
struct WorkerAttached {
  std::string job;
  int rank = 0;
  uint64_t line = 0;
  pid_t pid = 0;
  uint64_t start_time = 0;
};
struct WorkerDetached {
  std::string job;
  int rank = 0;
  uint64_t line = 0;
};
struct WorkerReported {
  std::string job;
  int rank = 0;
  node::v1::WorkerReport report;
};
struct WorkerEnded {  // Its process is gone.
  std::string job;
  int rank = 0;
  pid_t pid = 0;
  std::string how;  // "was killed by SIGKILL"; empty: not known.
};

// From the engine.
struct ClientFailed {
  std::string job;
  int rank = 0;
  std::string reason;
};
struct Stalled {  // As the engine's Stall.
  std::string job;
  std::string report;
  int64_t age_us = 0;
  bool names_rank = false;
};
struct RingFailed {
  std::string job;
  absl::Status status;
};

// From the daemon itself.
struct Restored {  // Before anything else: a job that the daemon before us has left.
  v1::JobRecord record;
};
struct ShuttingDown {    // Ends all ranks; the machine says Finished when none is left.
  absl::Duration grace;  // Between TERM and KILL; zero: KILL at once.
  std::string reason;
};
struct Tick {};  // NextDeadline() has come.

}  // namespace event

using Event = std::variant<event::SchedulerUp, event::SchedulerDown, event::SchedulerOrder,
                           event::CommandChecked, event::RingPrepared, event::WorkerSpawned,
                           event::SpawnFailed, event::RankSwept, event::JobRemoved,
                           event::WorkerAttached, event::WorkerDetached, event::WorkerReported,
                           event::WorkerEnded, event::ClientFailed, event::Stalled,
                           event::RingFailed, event::Restored, event::ShuttingDown, event::Tick>;

using PrepareOrder = std::shared_ptr<const cluster::v1::Prepare>;

// Why pending operations fail.
struct Cause {
  enum class Kind { kPeerFailed, kInterrupted, kUnavailable };
  Kind kind = Kind::kInterrupted;
  std::string message;
  cluster::v1::FirstFailure failure;  // For kPeerFailed.
};

namespace action {

struct SendReport {  // To the scheduler.
  cluster::v1::NodeReport report;
};
struct Disconnect {  // Drop the scheduler's stream and try again later.
  std::string reason;
};
struct PersistTerm {  // Durable before the actions that follow.
  uint64_t term = 0;
};
struct CheckCommand {
  PrepareOrder order;
};
struct PrepareRing {
  PrepareOrder order;
};
struct OpenJob {  // Workers of the job may attach from now on.
  PrepareOrder order;
};
struct CloseJob {
  std::string job;
};
struct SpawnWorker {
  PrepareOrder order;
  int rank = 0;
};
struct OrderWorker {
  std::string job;
  int rank = 0;
  node::v1::WorkerOrder order;
};
struct WatchWorker {  // Tell WorkerEnded when this process ends (or already has).
  std::string job;
  int rank = 0;
  pid_t pid = 0;
  uint64_t start_time = 0;
};
struct SweepRank {  // Kill all processes of the rank, its worker included, and remove what they
                    // leave behind.
  PrepareOrder order;
  int rank = 0;
  pid_t pid = 0;         // The rank's process: leads its session. 0: not known.
  pid_t worker_pid = 0;  // 0: already gone.
};
struct EndRank {  // Its process has ended: engine and log reader are told.
  std::string job;
  int rank = 0;
  Cause cause;
};
struct FailJob {
  std::string job;
  Cause cause;
};
struct RemoveJob {
  std::string job;
  Cause cause;
};
struct WriteRecord {
  v1::JobRecord record;
};
struct RemoveRecord {
  std::string job;
};
struct Log {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string text;
};
struct Exit {  // The daemon has to go: refused by its scheduler.
  std::string reason;
};
struct Finished {};  // After ShuttingDown: nothing is left here.

}  // namespace action

using Action =
    std::variant<action::SendReport, action::Disconnect, action::PersistTerm, action::CheckCommand,
                 action::PrepareRing, action::OpenJob, action::CloseJob, action::SpawnWorker,
                 action::OrderWorker, action::WatchWorker, action::SweepRank, action::EndRank,
                 action::FailJob, action::RemoveJob, action::WriteRecord, action::RemoveRecord,
                 action::Log, action::Exit, action::Finished>;
using Actions = std::vector<Action>;

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MEMBERSHIP_NODE_EVENTS_H_
