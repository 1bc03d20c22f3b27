// Decides in which order a group's named operations run.
#ifndef RINGD_DAEMON_ENGINE_NAMES_NAME_ORDER_H_
#define RINGD_DAEMON_ENGINE_NAMES_NAME_ORDER_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "daemon/engine/names/notes.h"

namespace ringd::daemon {

// On the group's first node. Pure: gets what the nodes say (itself included), says what they are to
// do. A node says kReady or kFailed once for each operation; the k-th of a name means the k-th
// operation of that name. An operation is ordered when all nodes are ready, in the order in which
// that comes about, and fails as soon as one says that it has.
//
// Thread-bound: the engine's thread.
class NameOrder {
 public:
  explicit NameOrder(int node_count) : node_count_(node_count), joined_(node_count) {}

  // note: for the first node; with name and form. Appends to *orders. INVALID_ARGUMENT: a node that
  // isn't there, more operations than a job can have under way.
  absl::Status Take(const Note& note, std::vector<Note>* orders);
  // The node is ready for everything from now on and says nothing, until EndJoin.
  void Join(int node, std::vector<Note>* orders);
  // Forgets what has been reported and not ordered.
  void Withdraw();
  void EndJoin() { joined_.assign(joined_.size(), false); }

 private:
  struct Operation {
    std::vector<bool> reported;  // By node.
    int report_count = 0;
    bool is_ordered = false;
    std::string form;  // Of the first report.
  };
  using Queue = std::deque<Operation>;  // Those of one name.

  void Report(const Note& note, Operation* operation, std::vector<Note>* orders) const;
  void Shorten(Queue* queue);

  const int node_count_;
  std::vector<bool> joined_;  // By node.
  absl::flat_hash_map<std::string, Queue> queues_;
  size_t pending_ = 0;
  bool has_ended_ = false;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_NAMES_NAME_ORDER_H_
