#include "daemon/engine/arena/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/arena/descriptor.h"

namespace ringd::daemon {
namespace {

// Canonical texts of one client's plans: 100,000 tensors with long names, a few times.
constexpr uint64_t kMaxPlanBytes = 256u << 20;

Outcome FormerDaemon() {
  Outcome outcome;
  outcome.code = arena::Code::kUnavailable;
  outcome.message =
      "the daemon was restarted; start the job again, or wait for its next generation";
  return outcome;
}

}  // namespace

Client::Client(const ClientIdentity& identity, std::unique_ptr<ArenaView> view, UniqueFd doorbell)
    : identity_(identity),
      view_(std::move(view)),
      doorbell_(std::move(doorbell)),
      busy_slots_(arena::kSlotCount) {
  if (view_->was_served()) Inherit();
  view_->SetConstants(identity.incarnation, identity.generation);
  view_->set_sleeping(false);
}

void Client::Inherit() {
  tail_ = view_->tail();
  serial_ = tail_ + 1;
  poison_ = FormerDaemon();
  const uint64_t first = tail_ - std::min<uint64_t>(tail_, arena::kSlotCount);
  for (uint64_t i = first; i < tail_; ++i) {
    const arena::Descriptor descriptor = view_->ReadDescriptor(i);
    if (descriptor.slot >= arena::kSlotCount) continue;
    if (view_->SlotWord(descriptor.slot) + 1 != descriptor.number) continue;
    view_->Complete(descriptor.slot, descriptor.number, FormerDaemon());
  }
}

bool Client::IsOfFormerPlan(const arena::Descriptor& descriptor) const {
  const bool is_of_plan = descriptor.operation == Operation::kPlanBucket ||
                          descriptor.operation == Operation::kPlanUnregister;
  return view_->was_served() && is_of_plan &&
         !plans_.contains(static_cast<uint32_t>(descriptor.root));
}

void Client::SetProcess(int pid, UniqueFd pidfd) {
  pid_ = pid;
  pidfd_ = std::move(pidfd);
}

absl::Status Client::Drain(size_t budget, const Sink& sink, size_t* read) {
  *read = 0;
  const uint64_t head = view_->head();
  if (head - tail_ > arena::kSlotCount) {
    tail_ = head;
    return absl::InvalidArgumentError("the head of the submission queue is out of range");
  }
  absl::Status status;
  while (tail_ != head && *read < budget && status.ok()) {
    const arena::Descriptor descriptor = view_->ReadDescriptor(tail_);
    ++tail_;
    ++*read;
    if (poisoned()) {
      Refuse(descriptor);
    } else {
      status = Take(descriptor, sink);
    }
  }
  if (*read > 0) view_->set_tail(tail_);
  return status;
}

absl::Status Client::Take(const arena::Descriptor& descriptor, const Sink& sink) {
  const DescriptorContext context{view_.get(), identity_.rank, identity_.size, serial_, &plans_};
  absl::Status status = CheckDescriptor(descriptor, context);
  if (!status.ok()) return status;
  if (busy_slots_[descriptor.slot])
    return absl::InvalidArgumentError("bad descriptor: its slot is in use");
  ++serial_;
  if (descriptor.operation == Operation::kNoop) {
    view_->Complete(descriptor.slot, descriptor.number, Outcome{});
    view_->CountOperation(0);
    return absl::OkStatus();
  }
  if (descriptor.generation != static_cast<uint32_t>(identity_.generation)) {
    Outcome outcome;
    outcome.code = arena::Code::kGenerationChanged;
    outcome.message = absl::StrCat("the job is in generation ", identity_.generation);
    view_->Complete(descriptor.slot, descriptor.number, outcome);
    return absl::OkStatus();
  }
  if (IsOfFormerPlan(descriptor)) {
    view_->Complete(descriptor.slot, descriptor.number, FormerDaemon());
    return absl::OkStatus();
  }
  auto request = MakeRequest(descriptor, context);
  if (!request.ok()) return request.status();
  (*request)->client = this;
  if (descriptor.operation == Operation::kPlanRegister) {
    if (status = KeepPlan(**request); !status.ok()) return status;
  }
  busy_slots_[descriptor.slot] = true;
  ++in_flight_;
  status = sink(*std::move(request));
  if (!status.ok()) {
    busy_slots_[descriptor.slot] = false;
    --in_flight_;
  }
  return status;
}

// A descriptor of a poisoned arena: its waiter may not have seen the poison before it slept.
void Client::Refuse(const arena::Descriptor& descriptor) {
  if (descriptor.slot >= arena::kSlotCount) return;
  view_->Complete(descriptor.slot, descriptor.number, poison_);
}

absl::Status Client::KeepPlan(const Request& request) {
  const uint64_t bytes = request.plan->canonical_text().size();
  const bool is_new = !plans_.contains(request.plan_id) && !new_plans_.contains(request.plan_id);
  if (!is_new) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan ", request.plan_id, " is registered already"));
  }
  if (plans_.size() + new_plans_.size() >= arena::kMaxPlansPerClient ||
      plan_bytes_ + bytes > kMaxPlanBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a client has at most ",
                                                   arena::kMaxPlansPerClient, " plans of together ",
                                                   kMaxPlanBytes, " bytes"));
  }
  plan_bytes_ += bytes;
  new_plans_[request.plan_id] = request.plan;
  return absl::OkStatus();
}

void Client::Finish(const Request& request, const Outcome& outcome) {
  --in_flight_;
  busy_slots_[request.slot] = false;
  if (request.operation == Operation::kPlanRegister) {
    new_plans_.erase(request.plan_id);
    if (outcome.ok()) {
      plans_[request.plan_id] = request.plan;
    } else {
      plan_bytes_ -= request.plan->canonical_text().size();
    }
  } else if (request.operation == Operation::kPlanUnregister) {
    const auto plan = plans_.find(request.plan_id);
    if (plan != plans_.end()) {
      plan_bytes_ -= plan->second->canonical_text().size();
      plans_.erase(plan);
    }
  }
  if (outcome.ok()) view_->CountOperation(ReducedBytes(request));
  view_->Complete(request.slot, request.number, outcome);
}

void Client::Poison(const Outcome& outcome) {
  if (poisoned()) return;
  poison_ = outcome;
  view_->Poison(outcome);
}

}  // namespace ringd::daemon
