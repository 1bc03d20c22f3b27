// All decisions of a node's daemon about its jobs and ranks, as one state machine.
#ifndef RINGD_DAEMON_MEMBERSHIP_NODE_MACHINE_H_
#define RINGD_DAEMON_MEMBERSHIP_NODE_MACHINE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/membership/node_events.h"
#include "proto/cluster.pb.h"

namespace ringd::daemon {

// A training process that its worker doesn't report within this has not begun: spawn, user switch
// and attach together take milliseconds; a node that starts hundreds of ranks at once, seconds.
inline constexpr absl::Duration kAttachTimeout = absl::Seconds(30);
// Beyond a rank's grace: the worker sends TERM and KILL itself, the daemon only stands behind it.
inline constexpr absl::Duration kKillMargin = absl::Seconds(5);
// Between a rank's last word being acknowledged and its worker's end.
inline constexpr absl::Duration kWorkerExitTimeout = absl::Seconds(10);
// Job records of ended jobs that wait for the scheduler's Forget; the oldest goes first.
inline constexpr size_t kMaxEndedJobs = 1000;
// What one node takes at once. Far above what the cores of a node serve.
inline constexpr int kMaxRanksOfNode = 4096;
inline constexpr absl::Duration kDefaultNotice = absl::Seconds(2);
inline constexpr absl::Duration kDefaultGrace = absl::Seconds(30);
inline constexpr absl::Duration kDefaultHeartbeat = absl::Seconds(1);

struct NodeMachineOptions {
  cluster::v1::NodeHello hello;  // Without term and jobs.
  uint64_t term = 0;             // The highest followed so far.
  bool embedded = false;         // Lives and dies with its scheduler.
  uint32_t min_uid = 1000;       // Of a shared daemon.
  absl::Duration reattach_timeout = absl::Seconds(60);
};

// Takes events (orders of the scheduler, reports of workers, answers of the engine, the passing of
// time) and answers each with actions, to be carried out in their order. No I/O, no clock, no
// threads: the same calls give the same actions.
//
// Life of a job here: Prepare -> CheckCommand -> PrepareRing -> prepared -> Start -> SpawnWorker
// for each rank -> running -> all ranks ended and swept -> RemoveJob -> cleared, kept as a record
// until Forget. A failure before Start goes straight to RemoveJob.
//
// Thread-bound: the membership thread.
// Failure: in the reports it sends; Handle itself never fails. An event about a job or rank that
// isn't here is ignored.
class NodeMachine {
 public:
  explicit NodeMachine(NodeMachineOptions options);

  Actions Handle(const Event& event, Moment now);

  // When Handle(Tick) is due at the latest.
  absl::Time NextDeadline() const;

  // Whether a scheduler has welcomed us and its stream stands.
  bool connected() const { return connected_; }
  // Jobs with something left of them on this node.
  std::vector<std::string> Jobs() const;

 private:
  struct Rank {
    enum class State { kPending, kSpawned, kRunning, kEnded };
    State state = State::kPending;
    cluster::v1::RankUpdate last;
    uint64_t worker_start_time = 0;
    uint64_t line = 0;  // Of the Supervise stream; 0: none stands.
    bool worker_ended = false;
    bool sweeping = false;
    bool gone = false;                             // No process is left, or none was ever started.
    std::string blame;                             // Why the engine dropped its client.
    absl::Time deadline = absl::InfiniteFuture();  // Of attaching, or of the worker's end.
  };
  enum class Phase { kChecking, kConnecting, kPrepared, kRunning, kRemoving, kCleared };
  struct Stall {
    std::string report;  // Empty: there is none.
    bool names_rank = false;
    absl::Time since;
  };
  struct Job {
    PrepareOrder order;
    Phase phase = Phase::kChecking;
    bool ring_asked = false;  // The engine knows the job.
    bool failed = false;      // A rank failed here or Stop came: who fails now has followed.
    std::string trouble;      // Why the job can't go on, where a node, not a rank, is the reason.
    bool stopping = false;
    bool terminated = false;
    bool killed = false;
    cluster::v1::Stop stop;
    absl::Time terminate_at = absl::InfiniteFuture();
    absl::Time kill_at = absl::InfiniteFuture();
    Stall stall;
    uint64_t cleared_count = 0;  // Order in which jobs were cleared.
    std::map<int, Rank> ranks;

    const std::string& name() const { return order->job(); }
  };

  void On(const event::SchedulerUp&);
  void On(const event::SchedulerDown&);
  void On(const event::SchedulerOrder&);
  void On(const event::CommandChecked&);
  void On(const event::RingPrepared&);
  void On(const event::WorkerSpawned&);
  void On(const event::SpawnFailed&);
  void On(const event::RankSwept&);
  void On(const event::JobRemoved&);
  void On(const event::WorkerAttached&);
  void On(const event::WorkerDetached&);
  void On(const event::WorkerReported&);
  void On(const event::WorkerEnded&);
  void On(const event::ClientFailed&);
  void On(const event::Stalled&);
  void On(const event::RingFailed&);
  void On(const event::Restored&);
  void On(const event::ShuttingDown&);
  void On(const event::Tick&);

  void OnWelcome(const cluster::v1::NodeWelcome& welcome);
  void OnPrepare(const cluster::v1::Prepare& order);
  void OnStart(const cluster::v1::Start& order);
  void OnStop(const cluster::v1::Stop& order);
  void OnSignal(const cluster::v1::SignalRanks& order);
  void OnForget(const std::string& job);

  absl::Status CheckPrepare(const cluster::v1::Prepare& order) const;
  void ReportPrepared(const std::string& job, uint64_t generation, const absl::Status& status);
  void RefuseJob(Job& job, const absl::Status& status);
  void BeginStop(Job& job);
  void TerminateRanks(Job& job);
  // Removes the job when none of its processes is left. A ring of several nodes stands until Stop:
  // a neighbour may still be receiving what ours have finished.
  void RemoveIfOver(Job& job);
  void BeginRemove(Job& job);
  void Clear(Job& job);
  void DropOldRecords();

  void StartRank(Job& job, Rank& rank);
  void EndRank(Job& job, Rank& rank);
  void Sweep(Job& job, Rank& rank);
  void MarkGone(Job& job, Rank& rank);
  void LoseRank(Job& job, Rank& rank, const std::string& reason);
  void TickJob(Job& job);
  void TickRank(Job& job, Rank& rank);

  void Say(cluster::v1::NodeReport report);
  void SendHello();
  void SendRank(const Rank& rank);
  void SendStall(const Job& job);
  void SendCleared(const std::string& job);
  void OrderRank(const Job& job, const Rank& rank, node::v1::WorkerOrder order);
  void Write(const Job& job);
  void LogText(action::Log::Level level, std::string text);
  void FinishShutdown();

  Job* Find(const std::string& job);
  Rank* Find(const std::string& job, int rank, Job** owner);
  v1::JobRecord Record(const Job& job) const;
  std::string ExitSentence(const cluster::v1::RankUpdate& update) const;
  Cause EndCause(const cluster::v1::RankUpdate& update) const;
  Cause StopCause(const Job& job) const;

  const NodeMachineOptions options_;
  uint64_t term_;
  bool connected_ = false;
  bool shutting_down_ = false;
  bool finished_ = false;
  absl::Duration heartbeat_interval_ = kDefaultHeartbeat;
  absl::Time next_heartbeat_ = absl::InfiniteFuture();
  uint64_t heartbeat_count_ = 0;
  uint64_t cleared_count_ = 0;
  std::map<std::string, Job> jobs_;

  // Of the event being handled.
  Moment now_;
  Actions actions_;
};

// Whether a name is safe as a file name and in a message: letters, digits, '.', '_', '-', not
// beginning with '.'.
bool IsSafeName(absl::string_view name);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MEMBERSHIP_NODE_MACHINE_H_
