#include "daemon/engine/groups/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/futex.h"
#include "daemon/engine/arena/client.h"

namespace ringd::daemon {

Group::Group(uint32_t id, const GroupLayout& layout, std::vector<int> local_ranks,
             std::unique_ptr<Communicator> communicator, OnGroups on_groups)
    : id_(id),
      layout_(layout),
      local_ranks_(std::move(local_ranks)),
      on_groups_(std::move(on_groups)),
      book_(layout_, false, id),
      communicator_(std::move(communicator)) {
  communicator_->set_peer_failure_handler(
      [this](OperationKey key, bool from, const Outcome& outcome) {
        book_.FailByPeer(key, from, outcome, &actions_);
        Perform();
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
  return book_.Submit(index, std::move(request), MonotonicMicros(), &actions_);
}

void Group::EndRank(int local_rank, const Outcome& outcome) {
  const int index = IndexOf(local_rank);
  if (index < 0) return;
  book_.EndRank(index, outcome, &actions_);
  Perform();
}

void Group::FailPending(const Outcome& outcome) {
  book_.FailAll(outcome, &actions_);
  Perform();
}

void Group::FailAll(const Outcome& outcome) {
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
  auto collective = MakeCollective(action->requests, layout_, layout_.node_count() > 1);
  started_[key] = Started{std::move(action->requests), MonotonicMicros()};
  communicator_->Start(key, std::move(collective),
                       [this, key](const Outcome& outcome) { OnDone(key, outcome); });
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
    for (const RequestPtr& request : requests) request->client->Finish(*request, result);
  }
  Perform();
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
  for (const auto& [key, started] : started_) {
    const bool is_older = !oldest.has_value() || started.since_us < oldest->waiting.since_us;
    if (started.since_us > before_us || !is_older) continue;
    oldest = Stall{{key, started.since_us, DescribeRequest(*started.requests[0]), {}, {}}, true};
  }
  return oldest;
}

}  // namespace ringd::daemon
