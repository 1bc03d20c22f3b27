#include "daemon/engine/groups/group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/futex.h"
#include "common/status/macros.h"
#include "daemon/engine/arena/client.h"
#include "proto/operations.h"
#include "proto/wire.h"

namespace ringd::daemon {

Group::Group(uint32_t id, const GroupLayout& layout, std::vector<int> local_ranks,
             std::unique_ptr<Communicator> communicator, OnGroups on_groups,
             std::unique_ptr<SharedSegment> segment)
    : id_(id),
      layout_(layout),
      local_ranks_(std::move(local_ranks)),
      on_groups_(std::move(on_groups)),
      segment_(std::move(segment)),
      book_(layout_, segment_ != nullptr, id),
      names_(layout_, id, &notes_),
      joins_(layout_.local_count(), layout_.node_count()),
      communicator_(std::move(communicator)) {
  communicator_->set_peer_failure_handler(
      [this](OperationKey key, bool from, const Outcome& outcome) {
        // A named operation that is not started here yet fails when it is.
        ++activity_;
        if (wire::ChannelPlan(key.channel) == wire::kNamed) return;
        book_.FailByPeer(key, from, outcome, &actions_);
        Perform();
      });
  communicator_->set_note_handler([this](const std::string& text) {
    absl::Status status = OnNotes(text);
    Perform();
    return status;
  });
}

Group::~Group() { communicator_.reset(); }

int Group::IndexOf(int local_rank) const {
  const auto found = std::lower_bound(local_ranks_.begin(), local_ranks_.end(), local_rank);
  const bool is_member = found != local_ranks_.end() && *found == local_rank;
  return is_member ? static_cast<int>(found - local_ranks_.begin()) : -1;
}

absl::Status Group::Submit(int local_rank, RequestPtr request) {
  const int index = IndexOf(local_rank);
  if (index < 0) return absl::FailedPreconditionError(absl::StrCat("group ", id_, ": no member"));
  if (request->operation == Operation::kJoin) {
    Join(index, std::move(request));
    return absl::OkStatus();
  }
  const int64_t now_us = MonotonicMicros();
  if (!request->is_named) return book_.Submit(index, std::move(request), now_us, &actions_);
  names_.Submit(index, std::move(request), now_us, &actions_);
  return absl::OkStatus();
}

bool Group::Progress() {
  const std::vector<Note> notes = std::exchange(notes_, {});
  for (const Note& note : notes) notes_underway_ += note.kind == Note::Kind::kProbe ? 0 : 1;
  for (std::string& text : EncodeNotes(notes, wire::kMaxTextBytes)) {
    communicator_->SendNote(std::move(text));
  }
  return communicator_->Progress() || !notes.empty();
}

absl::Status Group::OnNotes(const std::string& text) {
  RINGD_ASSIGN_OR_RETURN(std::vector<Note> notes, DecodeNotes(text));
  for (Note& note : notes) RINGD_RETURN_IF_ERROR(OnNote(std::move(note)));
  return absl::OkStatus();
}

absl::Status Group::OnNote(Note note) {
  if (note.kind == Note::Kind::kProbe) {
    return on_probe_ ? on_probe_(note.form) : absl::InvalidArgumentError("it sent a probe");
  }
  ++activity_;
  --notes_underway_;
  if (!note.IsOfNames()) return OnJoinNote(std::move(note));
  RINGD_RETURN_IF_ERROR(names_.OnNote(std::move(note), &actions_));
  if (names_.all_failed() != nullptr) FailJoin(*names_.all_failed());
  return absl::OkStatus();
}

void Group::EndRank(int local_rank, const Outcome& outcome) {
  const int index = IndexOf(local_rank);
  if (index < 0) return;
  if (segment_ != nullptr) {
    TakeDirect();
    book_.Pass(index, segment_->Newest(index));
    segment_->Close();
  }
  book_.EndRank(index, outcome, &actions_);
  names_.EndRank(index, book_.Position(index), outcome, &actions_);
  if (names_.all_failed() != nullptr) FailJoin(*names_.all_failed());
  Perform();
}

void Group::FailPending(const Outcome& outcome) {
  book_.FailAll(outcome, &actions_);
  names_.FailAll(outcome, &actions_);
  FailJoin(outcome);
  Perform();
}

void Group::FailAll(const Outcome& outcome) {
  if (segment_ != nullptr) segment_->Close();
  FailPending(outcome);
  std::vector<OperationKey> firsts;
  for (const auto& [key, started] : started_) {
    if (firsts.empty() || firsts.back().channel != key.channel) firsts.push_back(key);
  }
  for (const OperationKey& key : firsts) communicator_->AbortFrom(key, outcome);
}

void Group::Perform() {
  if (performing_) return;
  performing_ = true;
  while (!actions_.empty()) {
    Actions batch;
    batch.swap(actions_);
    for (Action& action : batch) PerformOne(&action);
  }
  performing_ = false;
}

void Group::PerformOne(Action* action) {
  switch (action->kind) {
    case Action::Kind::kStart:
      return StartOperation(action);
    case Action::Kind::kTell:
      for (const RequestPtr& request : action->requests)
        request->client->Finish(*request, *action->outcome);
      return;
    case Action::Kind::kAbort:
      return communicator_->Abort(action->key, *action->outcome);
    case Action::Kind::kAbortFrom:
      return communicator_->AbortFrom(action->key, *action->outcome);
  }
}

void Group::StartOperation(Action* action) {
  const OperationKey key = action->key;
  const bool has_direct = std::any_of(action->requests.begin(), action->requests.end(),
                                      [](const RequestPtr& request) { return request->direct; });
  for (int rank = 0; has_direct && rank < segment_->rank_count(); ++rank) {
    segment_->Publish(rank, *action->requests[rank]);
  }
  if (joins_.HasNode()) NoteStarted(key, *action->requests[0]);
  CountNegotiation(*action);
  auto collective = MakeCollective(action->requests, layout_, layout_.node_count() > 1);
  started_[key] = Started{std::move(action->requests), MonotonicMicros()};
  communicator_->Start(key, std::move(collective),
                       [this, key](const Outcome& outcome) { OnDone(key, outcome); });
}

// A named operation has cost each node a report and an order.
void Group::CountNegotiation(const Action& action) const {
  if (wire::ChannelPlan(action.key.channel) != wire::kNamed || layout_.node_count() == 1) return;
  for (const RequestPtr& request : action.requests) {
    if (!request->IsStandIn()) request->client->view().CountNegotiation(2);
  }
}

void Group::OnDone(OperationKey key, const Outcome& outcome) {
  auto node = started_.extract(key);
  if (node.empty()) return;
  std::vector<RequestPtr>& requests = node.mapped().requests;
  const Outcome result = WithoutLostMemory(requests, outcome);
  if (IsOfGroups(requests[0]->operation)) {
    on_groups_(std::move(requests), result);
  } else {
    AgreeOnPlan(*requests[0], result);
    for (const RequestPtr& request : requests) {
      if (!request->IsStandIn()) request->client->Finish(*request, result);
    }
  }
  Perform();
}

uint64_t Group::Position(int local_rank) const {
  const uint64_t submitted = book_.Position(local_rank);
  return segment_ == nullptr ? submitted : std::max(submitted, segment_->Newest(local_rank));
}

bool Group::TakeDirect() {
  if (segment_ == nullptr) return false;
  segment_->SetWaiting(book_.IsWaiting());
  if (!segment_->waiting()) return false;
  bool taken = false;
  for (int rank = 0; rank < segment_->rank_count(); ++rank) {
    for (const uint64_t sequence : segment_->Published(rank)) {
      if (!book_.Lacks(rank, sequence)) continue;
      RequestPtr request = segment_->Take(rank, sequence);
      if (request == nullptr) continue;
      taken = true;
      book_.Submit(rank, std::move(request), MonotonicMicros(), &actions_).IgnoreError();
    }
  }
  Perform();
  return taken;
}

bool Group::LacksDirect() const {
  if (segment_ == nullptr || !segment_->waiting()) return false;
  for (int rank = 0; rank < segment_->rank_count(); ++rank) {
    for (const uint64_t sequence : segment_->Published(rank)) {
      if (book_.Lacks(rank, sequence) && segment_->Take(rank, sequence) != nullptr) return true;
    }
  }
  return false;
}

void Group::AgreeOnPlan(const Request& request, const Outcome& outcome) {
  if (!outcome.ok()) return;
  if (request.operation == Operation::kPlanRegister) {
    const auto bucket_count = static_cast<uint32_t>(request.plan->buckets().size());
    book_.OpenPlan(request.group, request.plan_id, bucket_count, &actions_);
  } else if (request.operation == Operation::kPlanUnregister) {
    book_.ClosePlan(request.group, request.plan_id, &actions_);
  }
}

std::optional<Group::Stall> Group::FindStall(int64_t before_us) const {
  std::optional<Stall> oldest;
  if (auto waiting = book_.WaitingSince(before_us, 1); !waiting.empty()) {
    oldest = Stall{std::move(waiting[0]), false};
  }
  if (auto waiting = names_.WaitingSince(before_us); waiting.has_value()) {
    const bool is_older = !oldest.has_value() || waiting->since_us < oldest->waiting.since_us;
    if (is_older) oldest = Stall{*std::move(waiting), false};
  }
  for (const auto& [key, started] : started_) {
    const bool is_older = !oldest.has_value() || started.since_us < oldest->waiting.since_us;
    if (started.since_us > before_us || !is_older) continue;
    oldest = Stall{{key, started.since_us, DescribeRequest(*started.requests[0]), {}, {}}, true};
  }
  return oldest;
}

}  // namespace ringd::daemon
