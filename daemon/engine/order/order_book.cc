#include "daemon/engine/order/order_book.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/collectives/mismatch.h"
#include "daemon/engine/order/compare.h"
#include "daemon/engine/order/end_outcome.h"
#include "daemon/engine/order/form.h"
#include "daemon/engine/order/stand_in.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kNever = ~uint64_t{0};

// Operations of a channel between the slowest and the fastest local rank. A client has at most
// kSlotCount in flight; only failed operations let a rank run further ahead, and none should fail
// that many.
constexpr size_t kMaxEntries = 2 * arena::kSlotCount;

// A plan that is registered again counts on from the next multiple: old and new operations never
// share a number.
constexpr uint64_t kEditionStride = uint64_t{1} << 40;

}  // namespace

struct OrderBook::Entry {
  std::vector<RequestPtr> requests;  // By local rank; empty until the first arrival.
  int arrived = 0;
  int first = 0;  // Local rank that came first.
  int64_t since_us = 0;
  bool started = false;
  std::shared_ptr<const Outcome> failure;
};

struct OrderBook::Channel {
  uint64_t id = 0;
  uint64_t base = 1;                  // What comes before is over.
  uint64_t cursor = 1;                // Entries before it have started or failed.
  std::map<uint64_t, Entry> entries;  // By sequence.
  uint64_t failed_from = kNever;
  std::shared_ptr<const Outcome> failure;
  uint64_t withdrawn_to = 0;  // What comes later of those has this outcome.
  std::shared_ptr<const Outcome> withdrawal;

  // Position of each rank. Own sequence: operations submitted.
  std::vector<uint64_t> submitted;
  // Plans: steps completed, and the buckets of the present one.
  bool is_plan = false;
  bool open = true;
  uint64_t edition_base = 0;  // Sequence before the edition's first.
  uint32_t bucket_count = 0;
  struct Step {
    uint64_t step = 0;
    uint32_t count = 0;
    std::vector<bool> done;
  };
  std::vector<Step> steps;

  bool HasSubmitted(int local_rank, uint64_t sequence) const {
    if (!is_plan) return sequence <= submitted[local_rank];
    if (sequence <= edition_base) return true;
    const Step& step = steps[local_rank];
    const uint64_t index = sequence - edition_base - 1;
    const uint64_t at = index / bucket_count;
    return at < step.step || (at == step.step && step.done[index % bucket_count]);
  }
  // REQUIRES: not HasSubmitted.
  void Submitted(int local_rank, uint64_t sequence) {
    if (!is_plan) {
      submitted[local_rank] = sequence;
      return;
    }
    Step& step = steps[local_rank];
    step.done[(sequence - edition_base - 1) % bucket_count] = true;
    if (++step.count < bucket_count) return;
    step.done.assign(bucket_count, false);
    step.count = 0;
    ++step.step;
  }

  // First sequence that the rank has not submitted.
  uint64_t FirstMissing(int local_rank) const {
    if (!is_plan) return submitted[local_rank] + 1;
    const Step& step = steps[local_rank];
    const auto gap = std::find(step.done.begin(), step.done.end(), false) - step.done.begin();
    return edition_base + step.step * bucket_count + static_cast<uint64_t>(gap) + 1;
  }
  // Last sequence of what the rank has begun: of the step, for a plan.
  uint64_t Begun(int local_rank) const {
    if (!is_plan) return submitted[local_rank];
    const Step& step = steps[local_rank];
    return edition_base + (step.step + (step.count > 0 ? 1 : 0)) * bucket_count;
  }
  // The rank goes on after `newest`; what it has begun of a step it ends.
  void SkipTo(int local_rank, uint64_t newest) {
    if (!is_plan) {
      submitted[local_rank] = std::max(submitted[local_rank], newest);
    } else if (steps[local_rank].count == 0 && newest > edition_base) {
      uint64_t& step = steps[local_rank].step;
      step = std::max(step, (newest - edition_base) / bucket_count);
    }
  }
};

OrderBook::OrderBook(const GroupLayout& layout, bool may_skip, uint32_t group)
    : layout_(layout),
      local_count_(layout.local_count()),
      may_skip_(may_skip),
      own_channel_(wire::ChannelId(group, 0)),
      ended_(local_count_),
      joined_(local_count_) {
  OpenChannel(own_channel_);
}

OrderBook::~OrderBook() = default;

OrderBook::Channel& OrderBook::OpenChannel(uint64_t channel) {
  auto& place = channels_[channel];
  if (place == nullptr) {
    place = std::make_unique<Channel>();
    place->id = channel;
    place->submitted.resize(local_count_);
    place->steps.resize(local_count_);
  }
  return *place;
}

void OrderBook::OpenPlan(uint32_t group, uint32_t plan, uint32_t bucket_count, Actions* actions) {
  Channel& channel = OpenChannel(wire::ChannelId(group, plan));
  if (channel.is_plan) {
    ClosePlan(group, plan, actions);
    channel.edition_base += kEditionStride;
    channel.base = channel.edition_base + 1;
    channel.cursor = channel.base;
    if (channel.failed_from <= channel.edition_base) {
      channel.failed_from = kNever;
      channel.failure = nullptr;
    }
  }
  channel.is_plan = true;
  channel.open = true;
  channel.bucket_count = bucket_count;
  for (auto& step : channel.steps) {
    step = {};
    step.done.resize(bucket_count);
  }
  if (all_failed_ != nullptr) FailFrom(&channel, channel.base, all_failed_, actions);
  for (int rank = 0; rank < local_count_; ++rank) {
    if (ended_[rank] != nullptr) EndRank(rank, *ended_[rank], actions);
  }
}

void OrderBook::ClosePlan(uint32_t group, uint32_t plan, Actions* actions) {
  const auto found = channels_.find(wire::ChannelId(group, plan));
  if (found == channels_.end() || !found->second->open || !found->second->is_plan) return;
  Channel& channel = *found->second;
  const auto outcome = std::make_shared<Outcome>();
  outcome->code = arena::Code::kMismatch;
  outcome->message = absl::StrCat("plan ", plan,
                                  " was unregistered or registered again before all ranks had "
                                  "submitted this bucket; wait for the step on every rank first");
  FailFrom(&channel, channel.base, outcome, actions);
  channel.entries.clear();
  channel.cursor = channel.base;
  channel.open = false;
}

bool OrderBook::IsPlanOpen(uint32_t group, uint32_t plan) const {
  const auto found = channels_.find(wire::ChannelId(group, plan));
  return found != channels_.end() && found->second->is_plan && found->second->open;
}

absl::Status OrderBook::NextSequence(Channel* channel, int local_rank, const Request& request,
                                     uint64_t* sequence) {
  if (request.operation != Operation::kPlanBucket) {
    uint64_t& submitted = channel->submitted[local_rank];
    const uint64_t due = submitted + 1;
    *sequence = request.sequence == 0 ? due : request.sequence;
    if (request.direct || *sequence <= channel->withdrawn_to) return absl::OkStatus();
    if (*sequence < due || (*sequence > due && !may_skip_)) {
      return absl::FailedPreconditionError(
          absl::StrCat("operation s.", *sequence, " where s.", due, " was due"));
    }
    submitted = *sequence;
    return absl::OkStatus();
  }
  const Channel::Step& step = channel->steps[local_rank];
  if (request.bucket >= channel->bucket_count) {
    return absl::FailedPreconditionError(absl::StrCat("bucket ", request.bucket, " of plan ",
                                                      request.plan_id, ": the plan has ",
                                                      channel->bucket_count));
  }
  if (step.done[request.bucket]) {
    return absl::FailedPreconditionError(absl::StrCat(
        "bucket ", request.bucket, " of plan ", request.plan_id, " submitted twice in one step"));
  }
  *sequence = channel->edition_base + step.step * channel->bucket_count + request.bucket + 1;
  channel->Submitted(local_rank, *sequence);
  return absl::OkStatus();
}

absl::Status OrderBook::Submit(int local_rank, RequestPtr request, int64_t now_us,
                               Actions* actions) {
  const bool is_bucket = request->operation == Operation::kPlanBucket;
  const auto found =
      channels_.find(wire::ChannelId(request->group, is_bucket ? request->plan_id : 0));
  if (found == channels_.end() || !found->second->open) {
    return absl::FailedPreconditionError(absl::StrCat("plan ", request->plan_id, " of group ",
                                                      request->group, " is not registered"));
  }
  Channel& channel = *found->second;
  uint64_t sequence = 0;
  absl::Status status = NextSequence(&channel, local_rank, *request, &sequence);
  if (!status.ok()) return status;
  return Arrive(&channel, sequence, local_rank, std::move(request), now_us, actions);
}

const OrderBook::Channel& OrderBook::OwnChannel() const { return *channels_.at(own_channel_); }

bool OrderBook::IsWaiting() const {
  const Channel& channel = OwnChannel();
  return channel.entries.lower_bound(channel.cursor) != channel.entries.end();
}

bool OrderBook::Lacks(int local_rank, uint64_t sequence) const {
  const Channel& channel = OwnChannel();
  const auto found = channel.entries.find(sequence);
  if (found == channel.entries.end() || found->second.requests.empty()) return false;
  return found->second.requests[local_rank] == nullptr;
}

void OrderBook::Pass(int local_rank, uint64_t sequence) {
  uint64_t& submitted = OpenChannel(own_channel_).submitted[local_rank];
  submitted = std::max(submitted, sequence);
}

uint64_t OrderBook::Position(int local_rank) const { return OwnChannel().submitted[local_rank]; }

absl::Status OrderBook::Arrive(Channel* channel, uint64_t sequence, int local_rank,
                               RequestPtr request, int64_t now_us, Actions* actions) {
  std::map<uint64_t, Entry>& entries = channel->entries;
  const bool is_new = !entries.contains(sequence);
  if (is_new && sequence < channel->failed_from && entries.size() >= kMaxEntries) {
    const auto outcome = std::make_shared<Outcome>();
    outcome->code = arena::Code::kResourceExhausted;
    outcome->message = absl::StrCat("the ranks of a node are ", kMaxEntries, " operations apart");
    actions->push_back({Action::Kind::kAbortFrom, {channel->id, sequence}, {}, outcome});
    FailFrom(channel, sequence, outcome, actions);
  }
  if (!is_new && !entries[sequence].requests.empty() &&
      entries[sequence].requests[local_rank] != nullptr) {
    return Replace(&entries[sequence], local_rank, std::move(request));
  }
  ++pending_;
  if (sequence >= channel->failed_from || sequence <= channel->withdrawn_to) {
    const bool is_withdrawn = sequence <= channel->withdrawn_to;
    Answer(std::move(request), is_withdrawn ? channel->withdrawal : channel->failure, actions);
    return absl::OkStatus();
  }
  Entry& entry = entries[sequence];
  if (is_new) channel->cursor = std::min(channel->cursor, sequence);
  ++entry.arrived;
  if (entry.failure != nullptr) {
    Answer(std::move(request), entry.failure, actions);
    StartReady(channel, actions);
    return absl::OkStatus();
  }
  if (entry.requests.empty()) {
    entry.requests.resize(local_count_);
    entry.first = local_rank;
    entry.since_us = now_us;
  }
  entry.requests[local_rank] = std::move(request);
  CompareArrival({channel->id, sequence}, &entry, local_rank, actions);
  StartReady(channel, actions);
  return absl::OkStatus();
}

absl::Status OrderBook::Replace(Entry* entry, int local_rank, RequestPtr request) {
  RequestPtr& place = entry->requests[local_rank];
  if (!place->direct || request->direct || !SameOperation(*place, *request)) {
    return absl::FailedPreconditionError(
        "an operation differs from what the rank has put into the ranks' shared segment");
  }
  place = std::move(request);
  return absl::OkStatus();
}

void OrderBook::CompareArrival(OperationKey key, Entry* entry, int local_rank, Actions* actions) {
  Outcome difference = Compare(key, *entry->requests[entry->first], JobRank(entry->first),
                               *entry->requests[local_rank], JobRank(local_rank));
  if (difference.ok()) return;
  const auto outcome = std::make_shared<Outcome>(std::move(difference));
  actions->push_back({Action::Kind::kAbort, key, {}, outcome});
  FailEntry(entry, outcome, actions);
}

void OrderBook::FailEntry(Entry* entry, std::shared_ptr<const Outcome> outcome, Actions* actions) {
  if (entry->started || entry->failure != nullptr) return;
  entry->failure = outcome;
  for (RequestPtr& request : entry->requests) {
    if (request == nullptr) continue;
    if (request->direct) --entry->arrived;  // Its rank comes for the outcome.
    Answer(std::move(request), outcome, actions);
  }
  entry->requests.clear();
}

void OrderBook::FailFrom(Channel* channel, uint64_t first, std::shared_ptr<const Outcome> outcome,
                         Actions* actions) {
  if (first >= channel->failed_from) return;
  channel->failed_from = first;
  channel->failure = outcome;
  std::map<uint64_t, Entry>& entries = channel->entries;
  for (auto i = entries.lower_bound(first); i != entries.end(); ++i) {
    FailEntry(&i->second, outcome, actions);
  }
  entries.erase(entries.lower_bound(std::max(first, channel->cursor)), entries.end());
}

void OrderBook::StartReady(Channel* channel, Actions* actions) {
  std::map<uint64_t, Entry>& entries = channel->entries;
  const bool may_skip = may_skip_ && !channel->is_plan;
  for (auto i = entries.lower_bound(channel->cursor); i != entries.end(); ++i) {
    Entry& entry = i->second;
    if (i->first != channel->cursor && !may_skip) break;
    if (entry.failure == nullptr && !entry.started) {
      if (!IsComplete(*channel, i->first, entry)) break;
      entry.started = true;
      pending_ -= static_cast<size_t>(entry.arrived);
      const std::string form =
          entry.arrived < local_count_ ? FormOf(*entry.requests[entry.first]) : std::string();
      StartOrAbort({channel->id, i->first}, form, layout_, std::move(entry.requests), actions);
      entry.requests.clear();
    }
    CountJoined(channel, i->first, &entry);
    channel->cursor = i->first + 1;
  }
  while (!entries.empty() && entries.begin()->first < channel->cursor &&
         entries.begin()->second.arrived == local_count_) {
    channel->base = entries.begin()->first + 1;
    entries.erase(entries.begin());
  }
}

bool OrderBook::IsComplete(const Channel& channel, uint64_t sequence, const Entry& entry) const {
  if (entry.arrived == local_count_) return true;
  for (int rank = 0; rank < local_count_; ++rank) {
    const bool is_there = !entry.requests.empty() && entry.requests[rank] != nullptr;
    if (!is_there && (!joined_[rank] || channel.HasSubmitted(rank, sequence))) return false;
  }
  return entry.arrived > 0;
}

void OrderBook::CountJoined(Channel* channel, uint64_t sequence, Entry* entry) const {
  for (int rank = 0; rank < local_count_; ++rank) {
    if (!joined_[rank] || channel->HasSubmitted(rank, sequence)) continue;
    channel->Submitted(rank, sequence);
    ++entry->arrived;
  }
}

void OrderBook::Join(int local_rank, Actions* actions) {
  joined_[local_rank] = true;
  for (auto& [id, channel] : channels_) {
    if (channel->open) StartReady(channel.get(), actions);
  }
}

void OrderBook::StartJoined(OperationKey key, absl::string_view form, Actions* actions) {
  const auto found = channels_.find(key.channel);
  if (found == channels_.end() || !found->second->open) return;
  Channel& channel = *found->second;
  if (key.sequence < channel.cursor || key.sequence >= channel.failed_from) return;
  if (key.sequence - channel.cursor > kMaxEntries) return;
  // What lies between has failed elsewhere.
  for (uint64_t sequence = channel.cursor; sequence <= key.sequence; ++sequence) {
    Entry ignored;
    CountJoined(&channel, sequence, &ignored);
  }
  channel.entries.erase(channel.entries.begin(), channel.entries.upper_bound(key.sequence));
  channel.base = channel.cursor = key.sequence + 1;
  StartOrAbort(key, form, layout_, std::vector<RequestPtr>(local_count_), actions);
}

void OrderBook::Answer(RequestPtr request, std::shared_ptr<const Outcome> outcome,
                       Actions* actions) {
  --pending_;
  if (!request->IsStandIn()) actions->push_back(Tell(std::move(request), std::move(outcome)));
}

void OrderBook::EndRank(int local_rank, const Outcome& outcome, Actions* actions) {
  if (ended_[local_rank] == nullptr) ended_[local_rank] = std::make_shared<Outcome>(outcome);
  for (auto& [id, channel] : channels_) {
    if (!channel->open) continue;
    const uint64_t first = channel->FirstMissing(local_rank);
    if (first >= channel->failed_from) continue;
    const int rank = JobRank(local_rank);
    const uint64_t next = first - channel->edition_base;
    const auto full = std::make_shared<Outcome>(
        EndOutcome(outcome, rank, layout_.nodes[layout_.node_index].name,
                   absl::StrCat("rank ", rank, " has finished after ", next - 1, " operations, s.",
                                next, ChannelText(id), " is pending")));
    actions->push_back({Action::Kind::kAbortFrom, {id, first}, {}, full});
    FailFrom(channel.get(), first, full, actions);
  }
}

void OrderBook::FailByPeer(OperationKey key, bool from, const Outcome& outcome, Actions* actions) {
  // A peer may speak of a plan whose registration is not over here: it is kept for then.
  const bool is_known = channels_.contains(key.channel);
  if (!is_known && !from) return;
  Channel& channel = OpenChannel(key.channel);
  if (!is_known) channel.open = false;
  const auto shared = std::make_shared<Outcome>(outcome);
  if (key.sequence <= channel.edition_base) return;
  if (from) return FailFrom(&channel, key.sequence, shared, actions);
  if (key.sequence < channel.base || key.sequence >= channel.failed_from) return;
  if (key.sequence <= channel.withdrawn_to) return;
  if (key.sequence - channel.base >= kMaxEntries) return;
  FailEntry(&channel.entries[key.sequence], shared, actions);
  StartReady(&channel, actions);
}

void OrderBook::FailAll(const Outcome& outcome, Actions* actions) {
  if (all_failed_ != nullptr) return;
  all_failed_ = std::make_shared<Outcome>(outcome);
  for (auto& [id, channel] : channels_) FailFrom(channel.get(), 1, all_failed_, actions);
}

void OrderBook::Visit(const RequestVisitor& visit) const {
  for (const auto& [id, channel] : channels_) {
    for (const auto& [sequence, entry] : channel->entries) {
      for (const RequestPtr& request : entry.requests) {
        if (request != nullptr) visit({id, sequence}, *request);
      }
    }
  }
}

std::optional<OrderBook::Reach> OrderBook::ReachOf(uint64_t id) const {
  const auto found = channels_.find(id);
  if (found == channels_.end() || !found->second->open) return std::nullopt;
  const Channel& channel = *found->second;
  Reach reach{channel.cursor, 0};
  for (int rank = 0; rank < local_count_; ++rank) {
    reach.newest = std::max(reach.newest, channel.Begun(rank));
  }
  return reach;
}

void OrderBook::Withdraw(uint64_t id, uint64_t newest, const Outcome& outcome, Actions* actions) {
  const auto found = channels_.find(id);
  if (found == channels_.end() || !found->second->open) return;
  Channel& channel = *found->second;
  const auto shared = std::make_shared<Outcome>(outcome);
  for (auto& [sequence, entry] : channel.entries) FailEntry(&entry, shared, actions);
  channel.entries.clear();
  channel.withdrawn_to = newest;
  channel.withdrawal = shared;
  channel.base = channel.cursor = newest + 1;
  for (int rank = 0; rank < local_count_; ++rank) channel.SkipTo(rank, newest);
}

std::vector<Waiting> OrderBook::WaitingSince(int64_t before_us, size_t limit) const {
  std::vector<Waiting> result;
  for (const auto& [id, channel] : channels_) {
    for (const auto& [sequence, entry] : channel->entries) {
      if (result.size() >= limit) break;
      if (entry.requests.empty() || entry.since_us > before_us) continue;
      if (entry.arrived == local_count_) continue;
      Waiting waiting{
          {id, sequence}, entry.since_us, DescribeRequest(*entry.requests[entry.first]), {}, {}};
      for (int rank = 0; rank < local_count_; ++rank) {
        (entry.requests[rank] != nullptr ? waiting.present : waiting.missing).push_back(rank);
      }
      result.push_back(std::move(waiting));
    }
  }
  return result;
}

}  // namespace ringd::daemon
