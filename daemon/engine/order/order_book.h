// Brings the submissions of a node's ranks in order and says what is to be done: the engine's state
// machine.
#ifndef RINGD_DAEMON_ENGINE_ORDER_ORDER_BOOK_H_
#define RINGD_DAEMON_ENGINE_ORDER_ORDER_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/order/action.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// One group of one generation on this node. Pure: no I/O, no clock, no threads. Each call appends
// the Actions that follow from it; the owner carries them out in order, after the call.
//
// Rules: the k-th request of a rank in a channel is operation k, unless it brings a number of its
// own (Request::sequence). An operation starts when all local
// ranks have submitted it and all earlier ones of its channel have started or failed. The second
// and later requests are compared with the first; a difference fails the operation, everywhere, and
// later arrivals get that outcome at once. Later operations go on. A rank that leaves fails every
// operation that it has not submitted. Plan channels: a rank submits each bucket once a step, in
// any order; operations run in plan order.
//
// may_skip: a rank's numbers in group 0's own sequence may leave out those that the ranks carry out
// among themselves. A request taken from there (Request::direct) stands for its rank until the rank
// hands in its own; it is never told.
//
// Thread-bound: the engine's thread.
class OrderBook {
 public:
  explicit OrderBook(const GroupLayout& layout, bool may_skip = false, uint32_t group = 0);
  OrderBook(const OrderBook&) = delete;
  OrderBook& operator=(const OrderBook&) = delete;
  ~OrderBook();

  // local_rank: among the group's ranks on this node, here and below.
  // Its next operation in the group's own sequence, or the bucket of a plan (kPlanBucket).
  // FAILED_PRECONDITION: no such plan is open, no such bucket, the bucket was submitted twice in
  // one step, or the request's number was due before or leaves others out; nothing was taken, and
  // the client has broken its protocol.
  absl::Status Submit(int local_rank, RequestPtr request, int64_t now_us, Actions* actions);

  // Whether group 0's own sequence waits for somebody.
  bool IsWaiting() const;
  // Whether others have submitted operation `sequence` of it, and local_rank has not.
  bool Lacks(int local_rank, uint64_t sequence) const;
  // local_rank's operations of it up to `sequence` are not missing: it has carried them out, or
  // submitted them.
  void Pass(int local_rank, uint64_t sequence);
  // What it has come to there.
  uint64_t Position(int local_rank) const;

  // The rank takes part in everything from its next operation on, with nothing, until EndJoin: the
  // others' operations start without it.
  void Join(int local_rank, Actions* actions);
  // All local ranks have joined, and another node has started the operation: so does this one.
  // form: FormOf.
  void StartJoined(OperationKey key, absl::string_view form, Actions* actions);
  // All ranks have joined, and go on from the same place.
  void EndJoin() { joined_.assign(local_count_, false); }

  // All ranks have agreed on the plan: its channel begins. Once more for the same id (a later
  // client's plan): the buckets start anew and what was left over of the former steps fails.
  void OpenPlan(uint32_t group, uint32_t plan, uint32_t bucket_count, Actions* actions);
  void ClosePlan(uint32_t group, uint32_t plan, Actions* actions);
  bool IsPlanOpen(uint32_t group, uint32_t plan) const;

  // The rank won't submit any more. outcome without a message gets one: "rank 1 has finished after
  // 9 operations, s.10 is pending" (exit code 0), "rank 1 (node b) exited with code 3" or "... was
  // killed by signal 9".
  void EndRank(int local_rank, const Outcome& outcome, Actions* actions);
  // The peers say so: fails here without telling them again.
  void FailByPeer(OperationKey key, bool from, const Outcome& outcome, Actions* actions);
  // Everything pending and everything later. The first outcome stays.
  void FailAll(const Outcome& outcome, Actions* actions);

  // Requests that wait for others.
  void Visit(const RequestVisitor& visit) const;
  // How far an open channel has come; null: there is no such one.
  struct Reach {
    uint64_t next = 1;    // The first operation that has not started.
    uint64_t newest = 0;  // The last one of which a rank has submitted something.
  };
  std::optional<Reach> ReachOf(uint64_t channel) const;
  // What waits in the channel fails, on all nodes alike, and its operations up to `newest` are over
  // for all ranks: they go on from the same place. REQUIRES: nothing of it runs.
  void Withdraw(uint64_t channel, uint64_t newest, const Outcome& outcome, Actions* actions);

  // What has waited since before `before_us`, oldest first in each channel, at most `limit`.
  std::vector<Waiting> WaitingSince(int64_t before_us, size_t limit) const;
  // Requests held.
  size_t pending() const { return pending_; }

 private:
  struct Entry;
  struct Channel;

  Channel& OpenChannel(uint64_t channel);
  absl::Status NextSequence(Channel* channel, int local_rank, const Request& request,
                            uint64_t* sequence);
  const Channel& OwnChannel() const;
  absl::Status Replace(Entry* entry, int local_rank, RequestPtr request);
  absl::Status Arrive(Channel* channel, uint64_t sequence, int local_rank, RequestPtr request,
                      int64_t now_us, Actions* actions);
  void CompareArrival(OperationKey key, Entry* entry, int local_rank, Actions* actions);
  void FailEntry(Entry* entry, std::shared_ptr<const Outcome> outcome, Actions* actions);
  void FailFrom(Channel* channel, uint64_t first, std::shared_ptr<const Outcome> outcome,
                Actions* actions);
  void StartReady(Channel* channel, Actions* actions);
  bool IsComplete(const Channel& channel, uint64_t sequence, const Entry& entry) const;
  // Ranks that have joined have come to this operation, too.
  void CountJoined(Channel* channel, uint64_t sequence, Entry* entry) const;
  void Answer(RequestPtr request, std::shared_ptr<const Outcome> outcome, Actions* actions);

  int JobRank(int local_rank) const {
    return layout_.JobRank(layout_.first_local_rank() + local_rank);
  }

  const GroupLayout layout_;
  const int local_count_;
  const bool may_skip_;
  const uint64_t own_channel_;
  std::map<uint64_t, std::unique_ptr<Channel>> channels_;  // By ChannelId.
  std::vector<std::shared_ptr<const Outcome>> ended_;      // By local rank; null: still here.
  std::vector<bool> joined_;                               // By local rank.
  std::shared_ptr<const Outcome> all_failed_;
  size_t pending_ = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_ORDER_BOOK_H_
