// A group's named operations on this node: ranks may submit them in any order, all nodes start them
// in the same.
#ifndef RINGD_DAEMON_ENGINE_NAMES_NAME_BOOK_H_
#define RINGD_DAEMON_ENGINE_NAMES_NAME_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/names/name_order.h"
#include "daemon/engine/names/name_table.h"
#include "daemon/engine/names/notes.h"
#include "daemon/engine/order/action.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// Pure, as OrderBook: no I/O, no clock, no threads. Each call appends the Actions that follow from
// it, and to `notes` what the right neighbour is to get.
//
// Rules: the k-th request of a rank with a name is that name's operation k. When all local ranks
// have submitted it, the node reports it to the group's first node (NameOrder), whose orders decide
// what runs next, on all nodes alike: operations 1, 2, 3, ... of channel ChannelId(group, kNamed).
// What differs between local ranks fails at the second arrival, on all nodes; what differs between
// nodes is found by the communicator. When a rank has ended, what has not been ordered fails, and
// everything later.
//
// Thread-bound: the engine's thread.
class NameBook {
 public:
  // notes: outlives it.
  NameBook(const GroupLayout& layout, uint32_t group, std::vector<Note>* notes);
  NameBook(const NameBook&) = delete;
  NameBook& operator=(const NameBook&) = delete;

  // local_rank: among the group's ranks on this node, here and below. REQUIRES: request->name is
  // not empty.
  void Submit(int local_rank, RequestPtr request, int64_t now_us, Actions* actions);
  // A note of the left neighbour, IsOfNames. INVALID_ARGUMENT: it broke the protocol.
  absl::Status OnNote(Note note, Actions* actions);

  // The rank takes part in everything, with nothing, until EndJoin; so do those of a node. The
  // second is for the first node.
  void Join(int local_rank, Actions* actions);
  void JoinNode(int node, Actions* actions);
  void EndJoin();

  // As of OrderBook. sequenced: operations that the rank has submitted elsewhere in the group.
  void EndRank(int local_rank, uint64_t sequenced, const Outcome& outcome, Actions* actions);
  void FailAll(const Outcome& outcome, Actions* actions);
  // As of OrderBook.
  void Visit(const RequestVisitor& visit) const;
  void Withdraw(const Outcome& outcome, Actions* actions);
  // The last one that has been ordered.
  uint64_t last_sequence() const { return last_sequence_; }
  // Null: not yet.
  const Outcome* all_failed() const { return all_failed_.get(); }
  // Oldest first, at most one.
  std::optional<Waiting> WaitingSince(int64_t before_us) const;

 private:
  struct Entry {
    std::vector<RequestPtr> requests;  // By local rank.
    int first = -1;                    // Local rank that came first.
    int64_t since_us = 0;
    std::shared_ptr<const Outcome> failure;
  };
  // The operations of a name. Those that a rank has submitted, that have been reported and ordered
  // are the first so many each.
  struct Queue {
    std::deque<Entry> entries;
    std::vector<uint32_t> arrived;  // By local rank.
    uint32_t reported = 0;
    uint32_t ordered = 0;
  };
  using Queues = absl::flat_hash_map<std::string, Queue>;

  Queue& QueueOf(const std::string& name);
  void Report(const std::string& name, Actions* actions);
  void ToFirst(Note note, Actions* actions);
  absl::Status Give(std::vector<Note> orders, Actions* actions);
  absl::Status Obey(Note order, Actions* actions);
  absl::Status StartNext(const Note& order, Queue* queue, Actions* actions);
  bool IsComplete(const Queue& queue, uint32_t index) const;
  bool HasJoined() const;
  void Fail(Entry* entry, std::shared_ptr<const Outcome> outcome, Actions* actions);
  void Shorten(const std::string& name);
  absl::Status ResolveName(Note* note) const;
  Note Shortened(Note note) const;
  int JobRank(int local_rank) const {
    return layout_.JobRank(layout_.first_local_rank() + local_rank);
  }

  const GroupLayout layout_;
  const int local_count_;
  const uint64_t channel_;
  std::optional<NameOrder> order_;  // On the first node.
  NameTable table_;
  Queues queues_;
  uint64_t last_sequence_ = 0;
  std::vector<bool> joined_;         // By local rank.
  std::vector<uint64_t> submitted_;  // By local rank.
  std::shared_ptr<const Outcome> all_failed_;
  std::vector<Note>* const notes_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_NAMES_NAME_BOOK_H_
