#include "daemon/engine/names/name_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/macros.h"
#include "daemon/engine/order/compare.h"
#include "daemon/engine/order/end_outcome.h"
#include "daemon/engine/order/form.h"
#include "daemon/engine/order/stand_in.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

absl::Status Unreported() {
  return absl::InvalidArgumentError("it ordered what this node has not reported");
}

}  // namespace

NameBook::NameBook(const GroupLayout& layout, uint32_t group, std::vector<Note>* notes)
    : layout_(layout),
      local_count_(layout.local_count()),
      channel_(wire::ChannelId(group, wire::kNamed)),
      joined_(local_count_),
      submitted_(local_count_),
      notes_(notes) {
  if (layout.node_index == 0) order_.emplace(layout.node_count());
}

NameBook::Queue& NameBook::QueueOf(const std::string& name) {
  Queue& queue = queues_[name];
  queue.arrived.resize(local_count_);
  return queue;
}

void NameBook::Submit(int local_rank, RequestPtr request, int64_t now_us, Actions* actions) {
  if (all_failed_ != nullptr) {
    actions->push_back(Tell(std::move(request), all_failed_));
    return;
  }
  ++submitted_[local_rank];
  const std::string name = request->name;
  Queue& queue = QueueOf(name);
  const uint32_t index = queue.arrived[local_rank]++;
  if (index == queue.entries.size()) queue.entries.emplace_back();
  Entry& entry = queue.entries[index];
  if (entry.failure != nullptr) {
    actions->push_back(Tell(std::move(request), entry.failure));
  } else {
    if (entry.first < 0) {
      entry.requests.resize(local_count_);
      entry.first = local_rank;
      entry.since_us = now_us;
    }
    entry.requests[local_rank] = std::move(request);
    Outcome outcome = Compare({channel_, 0}, *entry.requests[entry.first], JobRank(entry.first),
                              *entry.requests[local_rank], JobRank(local_rank));
    if (!outcome.ok()) Fail(&entry, std::make_shared<Outcome>(std::move(outcome)), actions);
  }
  Report(name, actions);
}

// What this node has to say of the name, in the order of its operations.
void NameBook::Report(const std::string& name, Actions* actions) {
  for (auto found = queues_.find(name); found != queues_.end(); found = queues_.find(name)) {
    Queue& queue = found->second;
    const uint32_t index = queue.reported;
    if (index >= queue.entries.size()) break;
    const Entry& entry = queue.entries[index];
    Note note{.kind = Note::Kind::kReady,
              .node = static_cast<uint16_t>(layout_.node_index),
              .name = name};
    if (entry.failure != nullptr) {
      note.kind = Note::Kind::kFailed;
      note.outcome = *entry.failure;
    } else if (IsComplete(queue, index)) {
      note.form = FormOf(*entry.requests[entry.first]);
    } else {
      break;
    }
    ++queue.reported;
    ToFirst(std::move(note), actions);
  }
  Shorten(name);
}

bool NameBook::IsComplete(const Queue& queue, uint32_t index) const {
  for (int rank = 0; rank < local_count_; ++rank) {
    if (queue.arrived[rank] <= index && !joined_[rank]) return false;
  }
  return queue.entries[index].first >= 0;
}

bool NameBook::HasJoined() const {
  return std::all_of(joined_.begin(), joined_.end(), [](bool joined) { return joined; });
}

void NameBook::ToFirst(Note note, Actions* actions) {
  if (!order_.has_value()) return notes_->push_back(Shortened(std::move(note)));
  std::vector<Note> orders;
  order_->Take(note, &orders).IgnoreError();  // What this node says is sound.
  Give(std::move(orders), actions).IgnoreError();
}

absl::Status NameBook::Give(std::vector<Note> orders, Actions* actions) {
  for (Note& order : orders) {
    if (layout_.node_count() > 1) notes_->push_back(Shortened(order));
    RINGD_RETURN_IF_ERROR(Obey(std::move(order), actions));
  }
  return absl::OkStatus();
}

void NameBook::Join(int local_rank, Actions* actions) {
  joined_[local_rank] = true;
  std::vector<std::string> names;
  for (const auto& [name, queue] : queues_) names.push_back(name);
  for (const std::string& name : names) Report(name, actions);
}

void NameBook::JoinNode(int node, Actions* actions) {
  std::vector<Note> orders;
  order_->Join(node, &orders);
  Give(std::move(orders), actions).IgnoreError();
}

void NameBook::EndJoin() {
  joined_.assign(local_count_, false);
  if (order_.has_value()) order_->EndJoin();
}

absl::Status NameBook::OnNote(Note note, Actions* actions) {
  if (note.IsForFirst() && !order_.has_value()) {
    notes_->push_back(std::move(note));
    return absl::OkStatus();
  }
  if (note.IsForFirst()) {
    RINGD_RETURN_IF_ERROR(ResolveName(&note));
    std::vector<Note> orders;
    RINGD_RETURN_IF_ERROR(order_->Take(note, &orders));
    return Give(std::move(orders), actions);
  }
  if (order_.has_value()) return absl::InvalidArgumentError("it gave orders to the first node");
  if (layout_.node_index + 1 < layout_.node_count()) notes_->push_back(note);
  RINGD_RETURN_IF_ERROR(ResolveName(&note));
  return Obey(std::move(note), actions);
}

absl::Status NameBook::Obey(Note order, Actions* actions) {
  if (all_failed_ != nullptr) return absl::OkStatus();
  if (order.kind == Note::Kind::kFailRest) {
    FailAll(order.outcome, actions);
    return absl::OkStatus();
  }
  const bool is_start = order.kind == Note::Kind::kOrder;
  if (is_start && table_.Find(order.name, order.form) == 0) table_.Add(order.name, order.form);
  Queue& queue = QueueOf(order.name);
  if (is_start) {
    RINGD_RETURN_IF_ERROR(StartNext(order, &queue, actions));
  } else if (queue.ordered < queue.entries.size() || !HasJoined()) {
    const uint32_t index = queue.ordered++;
    if (index == queue.entries.size()) queue.entries.emplace_back();
    Fail(&queue.entries[index], std::make_shared<Outcome>(std::move(order.outcome)), actions);
  }
  Report(order.name, actions);
  return absl::OkStatus();
}

absl::Status NameBook::StartNext(const Note& order, Queue* queue, Actions* actions) {
  const OperationKey key{channel_, ++last_sequence_};
  std::vector<RequestPtr> requests(local_count_);
  if (queue->ordered < queue->entries.size()) {
    Entry& entry = queue->entries[queue->ordered];
    if (queue->ordered >= queue->reported || entry.failure != nullptr) return Unreported();
    requests = std::exchange(entry.requests, {});
    ++queue->ordered;
  } else if (!HasJoined()) {
    return Unreported();
  }
  StartOrAbort(key, order.form, layout_, std::move(requests), actions);
  return absl::OkStatus();
}

void NameBook::Fail(Entry* entry, std::shared_ptr<const Outcome> outcome, Actions* actions) {
  if (entry->failure != nullptr) return;
  entry->failure = outcome;
  for (RequestPtr& request : std::exchange(entry->requests, {})) {
    if (request != nullptr) actions->push_back(Tell(std::move(request), outcome));
  }
}

// Forgets the name's first operations where nobody will speak of them any more.
void NameBook::Shorten(const std::string& name) {
  const auto found = queues_.find(name);
  if (found == queues_.end()) return;
  Queue& queue = found->second;
  uint32_t over = std::min(queue.reported, queue.ordered);
  for (int rank = 0; rank < local_count_; ++rank) {
    if (!joined_[rank]) over = std::min(over, queue.arrived[rank]);
  }
  queue.entries.erase(queue.entries.begin(), queue.entries.begin() + over);
  queue.reported -= over;
  queue.ordered -= over;
  for (uint32_t& arrived : queue.arrived) arrived -= std::min(arrived, over);
  if (queue.entries.empty()) queues_.erase(found);
}

absl::Status NameBook::ResolveName(Note* note) const {
  if (!note->HasName() || note->id == 0) return absl::OkStatus();
  const NameTable::Operation* const operation = table_.Lookup(note->id);
  if (operation == nullptr) return absl::InvalidArgumentError("it spoke of an unknown operation");
  note->name = operation->name;
  note->form = operation->form;
  return absl::OkStatus();
}

Note NameBook::Shortened(Note note) const {
  if (!note.HasName() || note.HasOutcome()) return note;
  note.id = table_.Find(note.name, note.form);
  return note;
}

void NameBook::EndRank(int local_rank, uint64_t sequenced, const Outcome& outcome,
                       Actions* actions) {
  Note note{.kind = Note::Kind::kEnded, .node = static_cast<uint16_t>(layout_.node_index)};
  const int rank = JobRank(local_rank);
  const uint64_t count = submitted_[local_rank] + sequenced;
  note.outcome = EndOutcome(outcome, rank, layout_.nodes[layout_.node_index].name,
                            absl::StrCat("rank ", rank, " has finished after ", count,
                                         " operations, s.", count + 1, " is pending"));
  ToFirst(std::move(note), actions);
}

void NameBook::FailAll(const Outcome& outcome, Actions* actions) {
  if (all_failed_ != nullptr) return;
  all_failed_ = std::make_shared<Outcome>(outcome);
  for (auto& [name, queue] : queues_) {
    for (Entry& entry : queue.entries) Fail(&entry, all_failed_, actions);
  }
  queues_.clear();
}

void NameBook::Visit(const RequestVisitor& visit) const {
  for (const auto& [name, queue] : queues_) {
    for (const Entry& entry : queue.entries) {
      for (const RequestPtr& request : entry.requests) {
        if (request != nullptr) visit({channel_, 0}, *request);
      }
    }
  }
}

void NameBook::Withdraw(const Outcome& outcome, Actions* actions) {
  const auto shared = std::make_shared<Outcome>(outcome);
  for (auto& [name, queue] : queues_) {
    for (Entry& entry : queue.entries) Fail(&entry, shared, actions);
  }
  queues_.clear();
  if (order_.has_value()) order_->Withdraw();
}

std::optional<Waiting> NameBook::WaitingSince(int64_t before_us) const {
  const Queue* oldest = nullptr;
  const Entry* entry = nullptr;
  size_t index = 0;
  for (const auto& [name, queue] : queues_) {
    for (size_t i = queue.ordered; i < queue.entries.size(); ++i) {
      const Entry& candidate = queue.entries[i];
      if (candidate.requests.empty() || candidate.since_us > before_us) continue;
      if (entry != nullptr && entry->since_us <= candidate.since_us) continue;
      oldest = &queue;
      entry = &candidate;
      index = i;
    }
  }
  if (entry == nullptr) return std::nullopt;
  Waiting waiting{
      {channel_, 0}, entry->since_us, DescribeRequest(*entry->requests[entry->first]), {}, {}};
  for (int rank = 0; rank < local_count_; ++rank) {
    (oldest->arrived[rank] > index ? waiting.present : waiting.missing).push_back(rank);
  }
  return waiting;
}

}  // namespace ringd::daemon
