#include "daemon/engine/arena/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/arena/sigbus_guard.h"
#include "proto/operations.h"
#include "proto/wire.h"

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
  view_->SetConstants(identity.incarnation, identity.generation, identity.sequence);
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

// Whether it speaks of a plan or a group that only a daemon before this one knew.
bool Client::IsOfFormerDaemon(const arena::Descriptor& descriptor) const {
  if (!view_->was_served()) return false;
  if (descriptor.group != 0 && !groups_.contains(descriptor.group)) return true;
  const bool is_of_plan = descriptor.operation == Operation::kPlanBucket ||
                          descriptor.operation == Operation::kPlanUnregister;
  return is_of_plan && !plans_.contains(wire::ChannelId(descriptor.group,
                                                        static_cast<uint32_t>(descriptor.root)));
}

void Client::JudgeBy(uint32_t group, DescriptorContext* context) const {
  if (group == 0) return;
  const auto found = groups_.find(group);
  context->rank = found == groups_.end() ? -1 : found->second.rank;
  context->size = found == groups_.end() ? 0 : static_cast<int>(found->second.members.size());
  context->members = found == groups_.end() ? nullptr : &found->second.members;
}

void Client::NoteGroup(const Request& request) {
  const auto id = static_cast<uint32_t>(request.root);
  groups_.erase(id);
  if (request.operation != Operation::kGroupRegister || id == 0) return;
  Membership membership{-1, {}};
  for (const uint64_t member : request.counts) {
    const int rank = static_cast<int>(member);
    if (rank == identity_.rank) membership.rank = static_cast<int>(membership.members.size());
    membership.members.push_back(rank);
  }
  if (membership.rank >= 0) groups_[id] = std::move(membership);
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
  DescriptorContext context{view_.get(), identity_.rank, identity_.size, nullptr, serial_, &plans_};
  const bool is_former = IsOfFormerDaemon(descriptor);
  if (!is_former) JudgeBy(descriptor.group, &context);
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
  if (is_former) {
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
  const uint64_t key = wire::ChannelId(request.group, request.plan_id);
  const bool is_new = !plans_.contains(key) && !new_plans_.contains(key);
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
  new_plans_[key] = request.plan;
  return absl::OkStatus();
}

void Client::Finish(const Request& request, const Outcome& outcome) {
  --in_flight_;
  busy_slots_[request.slot] = false;
  const uint64_t key = wire::ChannelId(request.group, request.plan_id);
  if (IsOfGroups(request.operation)) {
    if (outcome.ok()) NoteGroup(request);
  } else if (request.operation == Operation::kPlanRegister) {
    new_plans_.erase(key);
    if (outcome.ok()) {
      plans_[key] = request.plan;
    } else {
      plan_bytes_ -= request.plan->canonical_text().size();
    }
  } else if (request.operation == Operation::kPlanUnregister) {
    const auto plan = plans_.find(key);
    if (plan != plans_.end()) {
      plan_bytes_ -= plan->second->canonical_text().size();
      plans_.erase(plan);
    }
  }
  if (outcome.ok()) view_->CountOperation(ReducedBytes(request));
  view_->Complete(request.slot, request.number, outcome);
}

Outcome WithoutLostMemory(const std::vector<std::unique_ptr<Request>>& requests,
                          const Outcome& outcome) {
  Outcome result = outcome;
  if (SigbusGuard::FaultCount() == 0 || !result.ok()) return result;
  for (const auto& request : requests) {
    if (request->IsStandIn() || !request->client->view().bad()) continue;
    result.code = arena::Code::kPeerFailed;
    result.rank = request->client->rank();
    result.message = absl::StrCat("memory of rank ", result.rank, " was taken away");
  }
  return result;
}

void Client::Poison(const Outcome& outcome) {
  if (poisoned()) return;
  poison_ = outcome;
  view_->Poison(outcome);
}

}  // namespace ringd::daemon
