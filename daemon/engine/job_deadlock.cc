// Whether the ranks of a job can ever go on, and what is done if not.
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "daemon/collectives/mismatch.h"
#include "daemon/engine/job.h"
#include "proto/wire.h"

namespace ringd::daemon {

void Job::CheckDeadlock() {
  if (removing_ || failed_ != nullptr) return;
  Act(detector_.Check(TakeSnapshot(),
                      [this](const ChannelKey& channel) { return StateOf(channel); }));
}

absl::Status Job::OnProbe(const std::string& text) {
  Probe probe;
  if (!probe.ParseFromString(text)) return absl::InvalidArgumentError("it sent a malformed probe");
  if (removing_ || failed_ != nullptr) return absl::OkStatus();
  if (probe.phase() == Probe::PHASE_VERDICT) {
    const bool is_over = generation_.layout.node_index == 0;  // It has come round.
    if (!is_over) Act(probe);
    return absl::OkStatus();
  }
  Act(detector_.Take(std::move(probe), TakeSnapshot(),
                     [this](const ChannelKey& channel) { return StateOf(channel); }));
  return absl::OkStatus();
}

void Job::Act(const std::optional<Probe>& probe) {
  if (!probe.has_value()) return;
  if (has_ring()) job_group().SendProbe(probe->SerializeAsString());
  if (probe->phase() == Probe::PHASE_VERDICT) Withdraw(*probe);
}

// What costs little to find out and is rarely so.
bool Job::MayBeBlocked() const {
  return opening_.empty() && messages_.IsStuck() &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
           if (rank.ended) return true;
           Client* const client = rank.client.get();
           return client != nullptr && !client->HasWork() && client->in_flight() > 0 &&
                  client->view().threads() > 0;
         });
}

Snapshot Job::TakeSnapshot() const {
  Snapshot snapshot;
  if (!MayBeBlocked()) return snapshot;
  std::vector<uint32_t> blocked(ranks_.size());
  const RequestVisitor visit = [&](OperationKey key, const Request& request) {
    if (request.IsStandIn()) return;
    const Client& client = *request.client;
    const uint32_t threads = request.client->view().BlockedThreads(request.slot);
    if (threads == 0) return;
    blocked[client.local_rank()] += threads;
    AddWait(absl::StrCat(OperationText(key), " (", DescribeRequest(request), ")"), client.rank(),
            &snapshot.waits);
  };
  for (const auto& [id, group] : groups_) group->Visit(visit);
  messages_.Visit(visit);
  snapshot.is_blocked = true;
  snapshot.activity = past_activity_;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].ended) continue;
    snapshot.is_blocked &= blocked[i] == ranks_[i].client->view().threads();
    snapshot.activity += ranks_[i].client->activity();
  }
  for (const auto& [id, group] : groups_) {
    snapshot.activity += group->activity();
    snapshot.notes_underway += group->notes_underway();
  }
  if (snapshot.is_blocked) snapshot.pending = PendingChannels();
  return snapshot;
}

std::set<ChannelKey> Job::PendingChannels() const {
  std::set<ChannelKey> pending = messages_.Pending();
  const RequestVisitor add = [&](OperationKey key, const Request&) {
    pending.insert({key.channel, 0, 0});
  };
  for (const auto& [id, group] : groups_) group->Visit(add);
  return pending;
}

std::optional<ChannelState> Job::StateOf(const ChannelKey& channel) const {
  if (wire::IsMessageChannel(channel.id)) return messages_.StateOf(channel);
  const auto group = groups_.find(wire::ChannelGroup(channel.id));
  if (group == groups_.end()) return std::nullopt;
  return group->second->StateOf(channel.id);
}

void Job::Withdraw(const Probe& verdict) {
  const Outcome outcome = DeadlockOutcome(verdict);
  GetLogger("engine")->error("deadlock job={} report=\"{}\"", name(), outcome.message);
  for (const probe::v1::Channel& channel : verdict.channels()) {
    const auto group = groups_.find(wire::ChannelGroup(channel.id()));
    if (!wire::IsMessageChannel(channel.id()) && group != groups_.end()) {
      group->second->Withdraw(channel.id(), channel.newest(), outcome);
    }
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Client* const client = ranks_[i].client.get();
    if (client != nullptr) client->view().SetSequence(job_group().Position(static_cast<int>(i)));
  }
  for (const auto& [id, group] : groups_) group->CompleteWithdrawal(outcome);
  messages_.WithdrawLocal(outcome);
  for (const probe::v1::Channel& channel : verdict.channels()) {
    if (!wire::IsMessageChannel(channel.id())) continue;
    messages_.Withdraw({channel.id(), static_cast<int>(channel.first_node()),
                        static_cast<int>(channel.second_node())},
                       channel.newest(), outcome);
  }
}

}  // namespace ringd::daemon
