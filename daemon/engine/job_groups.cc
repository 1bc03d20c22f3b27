// Groups of a job: made, given up, watched for stalls.
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "daemon/collectives/mismatch.h"
#include "daemon/engine/job.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

void Tell(const std::vector<RequestPtr>& requests, const Outcome& outcome) {
  for (const RequestPtr& request : requests) request->client->Finish(*request, outcome);
}

}  // namespace

std::unique_ptr<Group> Job::MakeGroup(uint32_t id, const GroupLayout& layout,
                                      std::unique_ptr<Communicator> communicator,
                                      std::unique_ptr<SharedSegment> segment) {
  std::vector<int> local_ranks;
  for (int i = 0; i < layout.local_count(); ++i) {
    const int rank = layout.JobRank(layout.first_local_rank() + i);
    local_ranks.push_back(rank - generation_.layout.first_local_rank());
  }
  return std::make_unique<Group>(
      id, layout, std::move(local_ranks), std::move(communicator),
      [this](std::vector<RequestPtr> requests, const Outcome& outcome) {
        OnGroups(std::move(requests), outcome);
      },
      std::move(segment));
}

Messages::Host Job::MessagesHost() {
  Messages::Host host;
  host.make_local = [this] {
    GroupLayout layout;
    layout.nodes = {{"", 0, 2}};
    std::unique_ptr<Communicator> local;
    events_.open_communicator(wire::kMessages, layout, {generation_.layout.node_index},
                              [&local](auto opened) { local = *std::move(opened); });
    return local;
  };
  host.open_pair = [this](int node, const GroupLayout& layout, Messages::Opened opened) {
    std::vector<int> nodes = {node, generation_.layout.node_index};
    std::sort(nodes.begin(), nodes.end());
    events_.open_communicator(wire::kMessages, layout, std::move(nodes), std::move(opened));
  };
  return host;
}

GroupLayout Job::LayoutOf(const std::vector<uint64_t>& ranks, std::vector<int>* nodes) const {
  const GroupLayout& job = generation_.layout;
  GroupLayout layout;
  layout.node_index = -1;
  size_t next = 0;
  for (int node = 0; node < job.node_count(); ++node) {
    const int end = job.nodes[node].first_rank + job.nodes[node].rank_count;
    const auto first = static_cast<int>(next);
    while (next < ranks.size() && static_cast<int>(ranks[next]) < end) {
      layout.members.push_back(static_cast<int>(ranks[next++]));
    }
    const int count = static_cast<int>(next) - first;
    if (count == 0) continue;
    if (node == job.node_index) layout.node_index = layout.node_count();
    layout.nodes.push_back({job.nodes[node].name, first, count});
    nodes->push_back(node);
  }
  return layout;
}

void Job::OnGroups(std::vector<RequestPtr> requests, const Outcome& outcome) {
  if (!outcome.ok()) return Tell(requests, outcome);
  if (requests[0]->operation == Operation::kGroupRegister)
    return RegisterGroup(std::move(requests));
  RetireGroup(static_cast<uint32_t>(requests[0]->root));
  Tell(requests, outcome);
}

// Where nothing is to be made, the ranks are told at once; else when the communicator is there.
void Job::RegisterGroup(std::vector<RequestPtr> requests) {
  const auto id = static_cast<uint32_t>(requests[0]->root);
  if (failed_ != nullptr) return Tell(requests, *failed_);
  std::vector<int> nodes;
  const GroupLayout layout = LayoutOf(requests[0]->counts, &nodes);
  const auto found = groups_.find(id);
  const bool is_there =
      id == 0 || (found != groups_.end() && found->second->layout().members == layout.members);
  if (is_there) return Tell(requests, Outcome{});
  RetireGroup(id);  // Of former clients.
  if (layout.node_index < 0) return Tell(requests, Outcome{});
  opening_[id] = {std::move(requests), layout};
  events_.open_communicator(id, layout, std::move(nodes), [this, id](auto communicator) {
    OnGroupOpened(id, std::move(communicator));
  });
}

void Job::OnGroupOpened(uint32_t id, absl::StatusOr<std::unique_ptr<Communicator>> communicator) {
  auto node = opening_.extract(id);
  if (node.empty()) return;
  const Opening& opening = node.mapped();
  if (!communicator.ok()) {
    Outcome outcome;
    outcome.code = arena::Code::kUnavailable;
    outcome.message = absl::StrCat("group ", id, ": ", communicator.status().message());
    return Tell(opening.requests, outcome);
  }
  auto& group = groups_[id] = MakeGroup(id, opening.layout, *std::move(communicator));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& cut_off = ranks_[rank].cut_off;
    if (cut_off != nullptr) group->EndRank(static_cast<int>(rank), *cut_off);
  }
  Tell(opening.requests, Outcome{});
}

void Job::RetireGroup(uint32_t id) {
  Outcome outcome;
  outcome.code = arena::Code::kUnavailable;
  outcome.message = absl::StrCat("group ", id, " was removed before the operation had ended");
  if (auto opening = opening_.extract(id); !opening.empty()) {
    Tell(opening.mapped().requests, outcome);
  }
  auto node = id == 0 ? decltype(groups_)::node_type() : groups_.extract(id);
  if (node.empty()) return;
  node.mapped()->FailAll(outcome);
  retired_.push_back(std::move(node.mapped()));
}

void Job::FailGroup(uint32_t group, const Outcome& outcome) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  GetLogger("engine")->info("group failed job={} group={} node={} message=\"{}\"", name(), group,
                            outcome.node, outcome.message);
  found->second->FailPending(outcome);
}

void Job::FailOpening(const Outcome& outcome) {
  for (const auto& [id, opening] : std::exchange(opening_, {})) Tell(opening.requests, outcome);
}

void Job::CheckStalls(int64_t now_us) {
  if (removing_) return;
  const int64_t first_us = generation_.first_stall_us;
  const int64_t before_us = now_us - first_us;
  const Group* group = nullptr;
  std::optional<Group::Stall> oldest;
  for (const auto& [id, candidate] : groups_) {
    std::optional<Group::Stall> stall = candidate->FindStall(before_us);
    if (!stall.has_value()) continue;
    if (oldest.has_value() && oldest->waiting.since_us <= stall->waiting.since_us) continue;
    oldest = std::move(stall);
    group = candidate.get();
  }
  const auto message = messages_.FindStall(before_us, now_us);
  if (!oldest.has_value() && !message.has_value()) {
    next_stall_us_ = first_us;
    if (std::exchange(stalled_since_us_, 0) != 0) events_.stalled({});
    return;
  }
  const bool is_message =
      message.has_value() && (!oldest.has_value() || message->first < oldest->waiting.since_us);
  const int64_t since_us = is_message ? message->first : oldest->waiting.since_us;
  if (since_us != stalled_since_us_) next_stall_us_ = first_us;
  const int64_t age_us = now_us - since_us;
  if (age_us < next_stall_us_) return;
  stalled_since_us_ = since_us;
  next_stall_us_ = 2 * age_us;
  if (is_message) return events_.stalled({message->second, age_us, true});
  for (const int index : oldest->waiting.present) {
    const Rank& rank = ranks_[group->local_ranks()[index]];
    if (rank.client != nullptr) rank.client->view().CountStall();
  }
  events_.stalled({StallReport(*group, *oldest, now_us), age_us, !oldest->waiting.missing.empty()});
}

std::string Job::StallReport(const Group& group, const Group::Stall& stall, int64_t now_us) const {
  const Waiting& waiting = stall.waiting;
  const GroupLayout& layout = group.layout();
  const std::string& node = layout.nodes[layout.node_index].name;
  std::string report = absl::StrCat(OperationText(waiting.key), " (", waiting.description,
                                    ") has waited ", (now_us - waiting.since_us) / 1'000'000, " s");
  const char* separator = ": ";
  for (const int index : waiting.missing) {
    const Rank& rank = ranks_[group.local_ranks()[index]];
    absl::StrAppend(&report, separator, "rank ", layout.JobRank(layout.first_local_rank() + index),
                    " (node ", node, ") ",
                    rank.client != nullptr ? "alive, has not called" : "has no process attached");
    separator = "; ";
  }
  if (!waiting.missing.empty()) return report;
  if (layout.node_count() == 1) return report + ": it is being carried out";
  absl::StrAppend(&report, ": all ranks of node ", node, " have called; waits for");
  separator = " ";
  for (int i = 0; i < layout.node_count(); ++i) {
    const GroupLayout::Node& other = layout.nodes[i];
    if (i == layout.node_index) continue;
    absl::StrAppend(&report, separator, "node ", other.name, " (rank ",
                    layout.JobRank(other.first_rank));
    if (other.rank_count > 1) {
      absl::StrAppend(&report, " to ", layout.JobRank(other.first_rank + other.rank_count - 1));
    }
    absl::StrAppend(&report, ")");
    separator = ", ";
  }
  return report;
}

}  // namespace ringd::daemon
