// The scheduler itself: who waits, who runs where, who is gone. A pure state machine.
#ifndef RINGD_SCHEDULER_STATE_MACHINE_H_
#define RINGD_SCHEDULER_STATE_MACHINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "scheduler/policy/placement.h"
#include "scheduler/policy/spec.h"
#include "scheduler/state/action.h"
#include "scheduler/state/event.h"
#include "scheduler/state/record.pb.h"

namespace ringd::scheduler {

// Jobs not yet finished; a submission over it is refused.
inline constexpr size_t kMaxActiveJobs = 20000;
// Finished jobs that `list --all` and `describe` still know; the oldest go.
inline constexpr size_t kMaxFinishedJobs = 10000;
// Attempts to form a ring before the job fails.
inline constexpr int kMaxFormAttempts = 5;

// What a new scheduler process takes over from the one before.
struct Snapshot {
  struct StoredJob {
    v1::JobRecord record;
    ringd::cluster::v1::JobSpec spec;
  };
  uint64_t term = 0;         // Of this process.
  uint64_t next_number = 1;  // Of the next job.
  std::vector<StoredJob> jobs;
  std::vector<v1::NodeRecord> nodes;
};

// All state of the scheduler and its rules: (state, event, now) -> actions. No I/O, no clock, no
// threads: the same code runs in the server and in a simulator.
//
// Life: construct, Restore once, then Apply for each event in order, a TickEvent at least every
// kTickInterval. Actions are to be carried out in the order given, writes of a batch of Apply calls
// first.
//
// A job's life: queued -> forming (Prepare on all its nodes) -> running (all prepared: committed,
// Start) -> finishing (Stop on all its nodes; next_state is decided) -> its end, when each of its
// nodes has cleared it or is lost.
//
// Thread-compatible: external synchronisation.
class Machine {
 public:
  struct Options {
    bool embedded = false;  // One private daemon: its end is the end of its jobs; submissions wait
                            // for it to join.
    absl::Duration node_timeout = absl::Seconds(5);  // Silence after which a node is lost.
    absl::Duration reattach_timeout =
        absl::Seconds(60);  // For a daemon whose stream was reset, or after our restart.
    absl::Duration heartbeat_interval = absl::Seconds(1);
    absl::Duration hold_lease = absl::Seconds(10);  // Embedded: none.
    absl::Duration stop_notice =
        absl::Seconds(2);  // For survivors of a failure to end by themselves.
    absl::Duration default_grace = absl::Seconds(30);
    absl::Duration form_timeout = absl::Seconds(30);
    absl::Duration cause_wait =
        absl::Seconds(1);  // For the report of the failure that others have followed.
  };
  using RandomBytes = std::function<std::string(size_t count)>;

  Machine(Options options, RandomBytes random);

  std::vector<Action> Restore(Snapshot snapshot, Now now);
  std::vector<Action> Apply(const Event& event, Now now);

  uint64_t term() const { return term_; }
  uint64_t next_number() const { return next_number_; }

  // Null: no such job.
  const v1::JobRecord* FindRecord(const std::string& id) const;
  const ringd::cluster::v1::JobSpec* FindSpec(const std::string& id) const;
  // Id of the job that `name` (an id, or the name of one job not yet finished) means. NOT_FOUND;
  // INVALID_ARGUMENT: several.
  absl::StatusOr<std::string> Resolve(const std::string& name) const;
  // In order of submission; without their ranks.
  std::vector<ringd::cluster::v1::Job> ListJobs(bool all) const;
  std::vector<ringd::cluster::v1::NodeState> ListNodes() const;
  // NOT_FOUND: no such node.
  absl::StatusOr<v1::NodeRecord> FindNode(const std::string& name) const;
  // 0: not connected. `gone`: it is lost, nobody expects it back.
  ConnectionId NodeConnection(const std::string& name, bool* gone) const;

  // PERMISSION_DENIED: it is another user's.
  static absl::Status CheckOwner(const Caller& caller, const v1::JobRecord& record);

  // INTERNAL: the books disagree. For tests and simulators.
  absl::Status CheckInvariants() const;

 private:
  struct Node {
    enum class State { kUp, kAway, kLost };
    v1::NodeRecord record;
    State state = State::kAway;
    ConnectionId connection = 0;
    absl::Duration heard;     // Up: last report.
    absl::Duration away_end;  // Away: when it counts as lost.
    absl::Duration lost_at;
    std::string reason;
    std::string version;
    int pid = 0;
    std::map<std::string, int> held;  // Job -> slots, from Prepare until it has cleared the job.
    int used = 0;                     // Sum of held.
  };
  struct Stall {
    std::string report;
    bool names_rank = false;
    absl::Duration since;
  };
  struct Job {
    v1::JobRecord record;
    ringd::cluster::v1::JobSpec spec;
    Shape shape;
    std::set<std::string> prepared;  // Nodes of this generation.
    std::set<std::string>
        cleared;      // Nodes that hold nothing of this generation any more, or are lost.
    int started = 0;  // Ranks that have a process, or had one.
    int ended = 0;
    int holders = 0;
    std::map<std::string, Stall> stalls;  // By node; of this generation, while its stream stands.
    absl::Duration form_end = absl::InfiniteDuration();
    absl::Duration run_end = absl::InfiniteDuration();
    absl::Duration hold_end = absl::InfiniteDuration();
    absl::Duration cause_end = absl::InfiniteDuration();
    absl::Duration retry_at = -absl::InfiniteDuration();

    bool Stopping() const {
      return record.next_state() != ringd::cluster::v1::JOB_STATE_UNSPECIFIED;
    }
    ringd::cluster::v1::JobState State() const { return record.job().state(); }
  };

  // machine.cc
  void On(const SubmitEvent& event);
  void On(const CancelEvent& event);
  void On(const SignalEvent& event);
  void On(const HoldEvent& event);
  void On(const HoldLostEvent& event);
  void On(const NodeJoinedEvent& event);
  void On(const NodeReportEvent& event);
  void On(const NodeDisconnectedEvent& event);
  void On(const TickEvent& event);
  void Answer(CallId call, absl::Status status, const std::string& job = "");
  void Log(std::string text, bool warning = false);
  void Persist(const Job& job, bool with_spec = false);
  void Changed(const Job& job);
  void Order(const Node& node, ringd::cluster::v1::NodeOrder order);
  Job* Find(const std::string& id);
  Job* FindFor(const Caller& caller, const std::string& name, CallId call);  // Null: answered.
  void TickNodes();
  void TickJob(Job* job);

  // queue.cc
  absl::Status CheckSubmission(const SubmitEvent& event, ringd::cluster::v1::JobSpec* spec,
                               Shape* shape) const;
  Job* AddJob(const SubmitEvent& event, ringd::cluster::v1::JobSpec spec, Shape shape);
  ClusterView View() const;
  void Schedule();
  void StartForming(Job* job, const Placement& placement, const ClusterView& view);
  void SendPrepare(const Job& job, int node_index);
  void Commit(Job* job);
  void FormAgain(Job* job, const std::string& why);
  void TrimFinished();

  // job.cc
  void OnPrepared(Node* node, const ringd::cluster::v1::Prepared& report);
  void OnRank(Node* node, const ringd::cluster::v1::RankUpdate& update);
  void OnRankEnd(Job* job, ringd::cluster::v1::Rank* rank, const Node& node,
                 const ringd::cluster::v1::RankUpdate& update);
  void OnFailure(Job* job, ringd::cluster::v1::Rank* rank, const Node& node,
                 const ringd::cluster::v1::RankUpdate& update);
  void SetFirstFailure(Job* job, const ringd::cluster::v1::RankUpdate& update,
                       const std::string& node, bool provisional);
  void OnStalled(Node* node, const ringd::cluster::v1::Stalled& report);
  static const Stall* ShownStall(const Job& job);  // Null: there is none.
  bool HasStalledForTooLong(const Job& job) const;
  void OnCleared(Node* node, const ringd::cluster::v1::JobCleared& report);
  void FailForNode(Job* job, const Node& node, const std::string& why);
  void BeginStop(Job* job, ringd::cluster::v1::JobState next, int exit_code,
                 const std::string& reason);
  void SendStop(const Job& job, const Node& node);
  void Cleared(Job* job, Node* node);
  void MaybeFinish(Job* job);
  void Finish(Job* job);
  void BackToQueue(Job* job);
  void RefreshReason(Job* job);
  bool IsPlacedOn(const Job& job, const std::string& node) const;
  // The job is not over, and the node has a part of its generation that it has not cleared.
  bool IsPartOf(const Job* job, const std::string& node) const;
  bool AllEndedOn(const Job& job, const std::string& node) const;

  // node.cc
  absl::Status CheckHello(const ringd::cluster::v1::NodeHello& hello) const;
  bool RefuseDouble(const NodeJoinedEvent& event, const Node& node);
  void TakeUp(Node* node, const NodeJoinedEvent& event);
  void SyncJobs(Node* node, const ringd::cluster::v1::NodeHello& hello);
  void SyncHeldJob(Node* node, Job* job, const ringd::cluster::v1::RunningJob& running);
  void JobMissing(Node* node, const std::string& id);
  void NodeAway(Node* node);
  void NodeLost(Node* node, const std::string& why);
  void Hold(Node* node, const std::string& job, int slots);
  void Release(Node* node, const std::string& job);
  Node* FindByConnection(ConnectionId connection);

  const Options options_;
  const RandomBytes random_;
  uint64_t term_ = 0;
  uint64_t next_number_ = 1;
  bool joined_once_ = false;  // A node has joined this process.

  std::map<std::string, Node> nodes_;
  std::map<ConnectionId, std::string> connections_;
  std::map<uint64_t, Job> jobs_;              // By number.
  std::set<uint64_t> active_;                 // Not finished.
  std::set<uint64_t> queue_;                  // Queued.
  std::map<std::string, uint64_t> requests_;  // "uid:request id".
  size_t finished_count_ = 0;

  // Of the Apply call in progress.
  Now now_;
  std::vector<Action> actions_;
  bool schedule_ = false;
  absl::Duration last_apply_ = absl::InfiniteDuration();
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STATE_MACHINE_H_
