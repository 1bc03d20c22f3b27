#include "daemon/engine/names/name_order.h"

#include <algorithm>
#include <utility>

namespace ringd::daemon {
namespace {

// A client has at most arena::kSlotCount under way; nodes are apart by as many.
constexpr size_t kMaxPending = size_t{1} << 20;

}  // namespace

absl::Status NameOrder::Take(const Note& note, std::vector<Note>* orders) {
  if (note.node >= node_count_) return absl::InvalidArgumentError("it spoke for a node that isn't");
  if (has_ended_) return absl::OkStatus();
  if (note.kind == Note::Kind::kEnded) {
    has_ended_ = true;
    queues_.clear();
    orders->push_back({.kind = Note::Kind::kFailRest, .outcome = note.outcome});
    return absl::OkStatus();
  }
  if (joined_[note.node])
    return absl::InvalidArgumentError("it reported for a node that has joined");
  Queue& queue = queues_[note.name];
  auto operation = std::find_if(queue.begin(), queue.end(), [&](const Operation& candidate) {
    return !candidate.reported[note.node];
  });
  if (operation == queue.end()) {
    if (++pending_ > kMaxPending) return absl::InvalidArgumentError("it named too many operations");
    const auto joined = static_cast<int>(std::count(joined_.begin(), joined_.end(), true));
    queue.push_back({joined_, joined, false, note.form});
    operation = queue.end() - 1;
  }
  Report(note, &*operation, orders);
  Shorten(&queue);
  if (queue.empty()) queues_.erase(note.name);
  return absl::OkStatus();
}

void NameOrder::Join(int node, std::vector<Note>* orders) {
  joined_[node] = true;
  for (auto& [name, queue] : queues_) {
    for (Operation& operation : queue) {
      if (operation.reported[node]) continue;
      const auto number = static_cast<uint16_t>(node);
      Report({.kind = Note::Kind::kReady, .node = number, .name = name}, &operation, orders);
    }
    Shorten(&queue);
  }
  absl::erase_if(queues_, [](const auto& named) { return named.second.empty(); });
}

void NameOrder::Withdraw() {
  queues_.clear();
  pending_ = 0;
}

void NameOrder::Shorten(Queue* queue) {
  while (!queue->empty() && queue->front().report_count == node_count_) {
    queue->pop_front();
    --pending_;
  }
}

void NameOrder::Report(const Note& note, Operation* operation, std::vector<Note>* orders) const {
  operation->reported[note.node] = true;
  ++operation->report_count;
  if (operation->is_ordered) return;
  const bool has_failed = note.kind == Note::Kind::kFailed;
  if (!has_failed && operation->report_count < node_count_) return;
  operation->is_ordered = true;
  orders->push_back({.kind = has_failed ? Note::Kind::kFail : Note::Kind::kOrder,
                     .name = note.name,
                     .form = operation->form,
                     .outcome = note.outcome});
}

}  // namespace ringd::daemon
