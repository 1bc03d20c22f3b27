// Join: ranks that have no more data wait for the others, whose operations go on without them.
//
// A node whose ranks have all joined doesn't know what the others start, but the ring needs it:
// they tell it what they have under way and what they start (kStarted), and orders of named
// operations say what they are. The first node knows when all have joined.
#include <cstring>
#include <utility>

#include "daemon/engine/arena/client.h"
#include "daemon/engine/groups/group.h"
#include "daemon/engine/order/form.h"
#include "proto/wire.h"

namespace ringd::daemon {

void Group::Join(int index, RequestPtr request) {
  if (names_.all_failed() != nullptr || joins_.HasRank(index)) {
    Outcome outcome;
    outcome.code = arena::Code::kInvalidArgument;
    outcome.message = "this rank has joined already";
    if (names_.all_failed() != nullptr) outcome = *names_.all_failed();
    return request->client->Finish(*request, outcome);
  }
  if (segment_ != nullptr) {
    TakeDirect();
    book_.Pass(index, segment_->Newest(index));
    segment_->Pause(true);
  }
  joins_.AddRank(index, std::move(request));
  book_.Join(index, &actions_);
  names_.Join(index, &actions_);
  if (!joins_.HasAllRanks()) return;
  const int rank = layout_.JobRank(layout_.first_local_rank() + index);
  if (layout_.node_count() > 1) {
    notes_.push_back({.kind = Note::Kind::kJoined,
                      .node = static_cast<uint16_t>(layout_.node_index),
                      .rank = rank});
  }
  AddJoinedNode(layout_.node_index, rank);
}

void Group::AddJoinedNode(int node, int rank) {
  joins_.AddNode(node);
  if (layout_.node_index != 0) return;
  names_.JoinNode(node, &actions_);
  if (!joins_.HasAllNodes()) return;
  if (layout_.node_count() > 1) notes_.push_back({.kind = Note::Kind::kJoinOver, .rank = rank});
  EndJoin(rank);
}

absl::Status Group::OnJoinNote(Note note) {
  const int size = layout_.node_count();
  const int origin = note.kind == Note::Kind::kJoinOver ? 0 : note.node;
  if (origin >= size || origin == layout_.node_index) {
    return absl::InvalidArgumentError("it sent a note of a node that isn't");
  }
  if ((layout_.node_index + 1) % size != origin) notes_.push_back(note);
  if (note.kind == Note::Kind::kJoined) {
    for (const auto& [key, started] : started_) NoteStarted(key, *started.requests[0]);
    AddJoinedNode(origin, note.rank);
  } else if (note.kind == Note::Kind::kJoinOver) {
    EndJoin(note.rank);
  } else if (joins_.HasAllRanks()) {
    book_.StartJoined(note.key, note.form, &actions_);
  }
  return absl::OkStatus();
}

void Group::NoteStarted(OperationKey key, const Request& request) {
  const bool is_ordered = wire::ChannelPlan(key.channel) == wire::kNamed;
  if (is_ordered || joins_.HasAllRanks() || layout_.node_count() == 1) return;
  notes_.push_back({.kind = Note::Kind::kStarted,
                    .node = static_cast<uint16_t>(layout_.node_index),
                    .form = FormOf(request),
                    .key = key});
}

void Group::EndJoin(int last_rank) {
  Perform();
  book_.EndJoin();
  names_.EndJoin();
  if (segment_ != nullptr) segment_->Pause(false);
  for (const RequestPtr& request : joins_.Take()) {
    const int32_t result = last_rank;
    std::memcpy(request->buffer.output, &result, sizeof(result));
    request->client->view().SetSequence(Position(request->client->local_rank()));
    request->client->Finish(*request, Outcome{});
  }
}

void Group::FailJoin(const Outcome& outcome) {
  if (segment_ != nullptr) segment_->Pause(false);
  for (const RequestPtr& request : joins_.Take()) request->client->Finish(*request, outcome);
}

}  // namespace ringd::daemon
