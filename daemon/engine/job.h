// A generation of a job on this node: its groups, its messages and its clients.
#ifndef RINGD_DAEMON_ENGINE_JOB_H_
#define RINGD_DAEMON_ENGINE_JOB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/arena/client.h"
#include "daemon/engine/deadlock/detector.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/groups/group.h"
#include "daemon/engine/groups/messages.h"
#include "daemon/engine/order/order_book.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {

// Brings submissions to their groups, makes and ends groups.
//
// Life: made with a communicator; Poll until Remove was called and removed() is true; then
// destroyed. Thread-bound: the engine's thread. The events are called on it; they must not destroy
// the job.
class Job {
 public:
  struct Events {
    std::function<void(int rank, std::string reason)> client_failed;
    std::function<void(int rank, int pid)> client_died;
    std::function<void(Stall stall)> stalled;
    // Makes the communicator of a group; `opened` runs now or later, unless the job is gone. nodes:
    // of the layout, by their indices in the job. group: its id, or wire::kMessages.
    std::function<void(uint32_t group, const GroupLayout& layout, std::vector<int> nodes,
                       Messages::Opened opened)>
        open_communicator;
  };

  Job(const JobGeneration& generation, std::unique_ptr<Communicator> communicator, EventLoop* loop,
      uint64_t incarnation, Events events);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return generation_.job; }
  uint64_t generation() const { return generation_.generation; }
  bool has_ring() const { return generation_.layout.node_count() > 1; }

  // As Engine's calls of the same names.
  absl::StatusOr<int> AddClient(int rank, uint64_t arena, ArenaSegment segment);
  absl::Status AddSegment(int rank, uint64_t arena, uint32_t index, ArenaSegment segment);
  absl::Status SetClientProcess(int rank, uint64_t arena, int pid, UniqueFd pidfd);
  void RemoveClient(int rank, uint64_t arena);
  // A duplicate of the shared segment's memfd; -1: this job has none.
  absl::StatusOr<int> ShareSegment() const;
  void RankEnded(int rank, const Outcome& outcome);
  void Fail(const Outcome& outcome);
  // Fails what the communicator has not begun, and everything later.
  void FailPending(const Outcome& outcome);
  // The same in one group: its ring broke.
  void FailGroup(uint32_t group, const Outcome& outcome);
  // Another node wants to send messages to this one, or to get some.
  void OpenMessages(int node) { messages_.Open(node); }

  // Fails everything, poisons the arenas, and refuses what comes later.
  void Remove(const Outcome& outcome);
  // Remove was called and no buffer is in use any more.
  bool removed() const;

  // One round of work, both parts of it. Return whether anything was done.
  bool Poll();
  // Reads what ranks have submitted or published, and starts it; small operations are over then.
  bool Drain();
  // A bounded piece of what has been started: of one group, in turn, and of messages.
  bool Progress();
  // Tells the clients whether to ring the doorbell.
  void SetSleeping(bool sleeping);
  bool HasWork() const;
  // Poisons the clients whose memory was missing (SigbusGuard).
  void CheckMemory();
  // Reports who waits for whom.
  void CheckStalls(int64_t now_us);
  // To be called at regular intervals: fails what waits when no rank of the job can ever go on.
  void CheckDeadlock();

 private:
  struct Rank {
    std::unique_ptr<Client> client;  // Attached, or null.
    bool ended = false;
    std::shared_ptr<const Outcome> cut_off;  // Why it won't submit any more.
  };
  // A group that all ranks have agreed on, until its communicator is there.
  struct Opening {
    std::vector<RequestPtr> requests;
    GroupLayout layout;
  };

  Client* FindClient(int rank, uint64_t arena);
  absl::StatusOr<int> LocalRank(int rank) const;
  bool DrainClient(Client* client);
  absl::Status SubmitOf(Client* client, RequestPtr request);
  void OnClientDied(Client* client);
  void Detach(int local_rank);
  void FailClient(Client* client, const std::string& reason);
  void CutOff(int local_rank, const Outcome& outcome);

  void FreeDetached();

  // Groups (job_groups.cc).
  Group& job_group() const { return *groups_.begin()->second; }
  std::unique_ptr<Group> MakeGroup(uint32_t id, const GroupLayout& layout,
                                   std::unique_ptr<Communicator> communicator,
                                   std::unique_ptr<SharedSegment> segment = nullptr);
  void OnGroups(std::vector<RequestPtr> requests, const Outcome& outcome);
  void RegisterGroup(std::vector<RequestPtr> requests);
  void OnGroupOpened(uint32_t id, absl::StatusOr<std::unique_ptr<Communicator>> communicator);
  void RetireGroup(uint32_t id);
  void FailOpening(const Outcome& outcome);
  // The group's layout; *nodes: indices of its nodes in the job. No node of this one: no member
  // here.
  GroupLayout LayoutOf(const std::vector<uint64_t>& ranks, std::vector<int>* nodes) const;
  Messages::Host MessagesHost();

  // Deadlocks (job_deadlock.cc).
  Snapshot TakeSnapshot() const;
  bool MayBeBlocked() const;
  std::set<ChannelKey> PendingChannels() const;
  std::optional<ChannelState> StateOf(const ChannelKey& channel) const;
  absl::Status OnProbe(const std::string& text);
  void Act(const std::optional<Probe>& probe);
  void Withdraw(const Probe& verdict);
  std::string StallReport(const Group& group, const Group::Stall& stall, int64_t now_us) const;

  const JobGeneration generation_;
  const uint64_t incarnation_;
  EventLoop* const loop_;
  const Events events_;
  std::vector<Rank> ranks_;                            // By local rank.
  std::vector<std::unique_ptr<Client>> detached_;      // With requests unfinished.
  std::map<uint32_t, std::unique_ptr<Group>> groups_;  // With members here; 0 is the whole job.
  std::vector<std::unique_ptr<Group>> retired_;        // Given up, with operations in flight.
  std::map<uint32_t, Opening> opening_;
  uint32_t last_group_ = 0;  // That has done some work.
  Messages messages_;
  DeadlockDetector detector_;
  uint64_t past_activity_ = 0;  // Of clients that are gone.
  std::shared_ptr<const Outcome> failed_;
  bool removing_ = false;
  int64_t next_stall_us_ = 0;     // Age of the oldest operation at the next report.
  int64_t stalled_since_us_ = 0;  // Of the last report; 0: that stall is over.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_JOB_H_
