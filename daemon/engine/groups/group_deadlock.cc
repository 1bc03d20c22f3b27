// What the detection of deadlocks asks of a group, and what it does to it.
#include <algorithm>
#include <utility>

#include "daemon/engine/groups/group.h"
#include "proto/wire.h"

namespace ringd::daemon {

void Group::SendProbe(std::string probe) {
  notes_.push_back({.kind = Note::Kind::kProbe, .form = std::move(probe)});
}

void Group::Visit(const RequestVisitor& visit) const {
  book_.Visit(visit);
  names_.Visit(visit);
  joins_.VisitRequests([&](const Request& request) {
    visit({wire::ChannelId(id_, 0), 0}, request);
  });
  for (const auto& [key, started] : started_) {
    for (const RequestPtr& request : started.requests) visit(key, *request);
  }
}

ChannelState Group::StateOf(uint64_t channel) const {
  ChannelState state;
  if (wire::ChannelPlan(channel) == wire::kNamed) {
    state.next = names_.last_sequence() + 1;
    state.newest = names_.last_sequence();
  } else if (const auto reach = book_.ReachOf(channel); reach.has_value()) {
    state.next = reach->next;
    state.newest = reach->newest;
  }
  const auto first = started_.lower_bound({channel, 0});
  if (first != started_.end() && first->first.channel == channel) {
    state.unfinished = first->first.sequence;
  }
  return state;
}

int64_t Group::notes_underway() const {
  return notes_underway_ + std::count_if(notes_.begin(), notes_.end(), [](const Note& note) {
           return note.kind != Note::Kind::kProbe;
         });
}

void Group::Withdraw(uint64_t channel, uint64_t newest, const Outcome& outcome) {
  withdrawn_.push_back(channel);
  if (wire::ChannelPlan(channel) == wire::kNamed) {
    names_.Withdraw(outcome, &actions_);
  } else {
    book_.Withdraw(channel, newest, outcome, &actions_);
  }
}

void Group::CompleteWithdrawal(const Outcome& outcome) {
  std::vector<OperationKey> keys;
  for (const uint64_t channel : std::exchange(withdrawn_, {})) {
    for (auto i = started_.lower_bound({channel, 0}); i != started_.end(); ++i) {
      if (i->first.channel != channel) break;
      keys.push_back(i->first);
    }
  }
  FailJoin(outcome);
  book_.EndJoin();
  names_.EndJoin();
  Perform();
  for (const OperationKey& key : keys) communicator_->Abort(key, outcome);
}

}  // namespace ringd::daemon
