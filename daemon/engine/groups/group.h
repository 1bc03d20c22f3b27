// A group of a job's ranks on this node: the order of its collectives, by number or by name, and
// the communicator that carries them out.
#ifndef RINGD_DAEMON_ENGINE_GROUPS_GROUP_H_
#define RINGD_DAEMON_ENGINE_GROUPS_GROUP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/deadlock/detector.h"
#include "daemon/engine/groups/joins.h"
#include "daemon/engine/names/name_book.h"
#include "daemon/engine/names/notes.h"
#include "daemon/engine/order/action.h"
#include "daemon/engine/order/order_book.h"
#include "daemon/engine/segment/shared_segment.h"

namespace ringd::daemon {

// Group 0 is the whole job; the others are made in its sequence (kGroupRegister).
//
// Life: made with a communicator; Poll; destroyed when nothing is in flight any more. Ownership:
// clients outlive their requests. Thread-bound: the engine's thread.
// Failure: of operations: their clients are told. Of the whole: FailAll.
class Group {
 public:
  // Gets the requests of a kGroupRegister or kGroupUnregister that is over; their clients have not
  // been told. Must not destroy this group.
  using OnGroups = std::function<void(std::vector<RequestPtr> requests, const Outcome& outcome)>;
  // Gets the probes of the left neighbour. INVALID_ARGUMENT: nonsense.
  using OnProbe = std::function<absl::Status(const std::string& probe)>;

  // An operation that waits, and whether for ranks of this node.
  struct Stall {
    Waiting waiting;
    bool is_started = false;
  };

  // layout: in numbers of the group. local_ranks: of the job, of the group's ranks on this node.
  // on_groups, segment, set_probe_handler: group 0 only. segment null: the job has none.
  Group(uint32_t id, const GroupLayout& layout, std::vector<int> local_ranks,
        std::unique_ptr<Communicator> communicator, OnGroups on_groups,
        std::unique_ptr<SharedSegment> segment);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void set_probe_handler(OnProbe on_probe) { on_probe_ = std::move(on_probe); }

  uint32_t id() const { return id_; }
  const GroupLayout& layout() const { return layout_; }
  const std::vector<int>& local_ranks() const { return local_ranks_; }
  bool idle() const { return started_.empty(); }

  // local_rank: of the job, here and below; a member. As OrderBook's or NameBook's; carried out by
  // Perform.
  absl::Status Submit(int local_rank, RequestPtr request);
  // The rank won't submit any more. Nothing happens for one that is no member.
  void EndRank(int local_rank, const Outcome& outcome);
  // Fails what the communicator has not begun, and everything later.
  void FailPending(const Outcome& outcome);
  // And what it has begun.
  void FailAll(const Outcome& outcome);
  // Carries out what the order book has said.
  void Perform();
  // The communicator's turn. Returns whether anything was done.
  bool Progress();

  const SharedSegment* segment() const { return segment_.get(); }
  // What the rank has come to in the group's own sequence, here and in the segment.
  uint64_t Position(int local_rank) const;
  // Takes what ranks have published in the shared segment and the order book waits for. Returns
  // whether there was something.
  bool TakeDirect();
  bool LacksDirect() const;

  // For the detection of deadlocks: group_deadlock.cc. Channels are those of this group.
  void SendProbe(std::string probe);
  // Requests that are not over.
  void Visit(const RequestVisitor& visit) const;
  ChannelState StateOf(uint64_t channel) const;
  // Notes and failures that peers have sent; notes, but for probes, sent minus received.
  uint64_t activity() const { return activity_; }
  int64_t notes_underway() const;
  // What waits in the channel fails, and its operations up to `newest` are over; carried out by
  // CompleteWithdrawal.
  void Withdraw(uint64_t channel, uint64_t newest, const Outcome& outcome);
  // Tells the ranks, and aborts what this node has started.
  void CompleteWithdrawal(const Outcome& outcome);

  // The oldest operation that has waited since before `before_us`.
  std::optional<Stall> FindStall(int64_t before_us) const;

 private:
  struct Started {
    std::vector<RequestPtr> requests;
    int64_t since_us = 0;
  };
  struct KeyLess {
    bool operator()(OperationKey a, OperationKey b) const {
      return a.channel != b.channel ? a.channel < b.channel : a.sequence < b.sequence;
    }
  };

  int IndexOf(int local_rank) const;
  void PerformOne(Action* action);
  void StartOperation(Action* action);
  void CountNegotiation(const Action& action) const;
  void OnDone(OperationKey key, const Outcome& outcome);
  void AgreeOnPlan(const Request& request, const Outcome& outcome);
  absl::Status OnNotes(const std::string& text);
  absl::Status OnNote(Note note);

  // Join: group_join.cc.
  void Join(int index, RequestPtr request);
  absl::Status OnJoinNote(Note note);
  void AddJoinedNode(int node, int rank);
  void EndJoin(int last_rank);
  void FailJoin(const Outcome& outcome);
  // For nodes that have joined.
  void NoteStarted(OperationKey key, const Request& request);

  const uint32_t id_;
  const GroupLayout layout_;
  const std::vector<int> local_ranks_;
  const OnGroups on_groups_;
  std::unique_ptr<SharedSegment> segment_;
  OrderBook book_;
  std::vector<Note> notes_;  // For the right neighbour.
  OnProbe on_probe_;
  uint64_t activity_ = 0;
  int64_t notes_underway_ = 0;
  std::vector<uint64_t> withdrawn_;  // Channels.
  NameBook names_;
  Joins joins_;
  std::map<OperationKey, Started, KeyLess> started_;
  Actions actions_;  // To be carried out by Perform.
  bool performing_ = false;
  std::unique_ptr<Communicator> communicator_;  // Its callbacks use all of the above.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_GROUPS_GROUP_H_
