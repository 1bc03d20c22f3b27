#include "daemon/engine/groups/messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/futex.h"
#include "daemon/collectives/mismatch.h"
#include "daemon/engine/arena/client.h"
#include "daemon/engine/order/end_outcome.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

// Of a message channel: who speaks.
bool FromFirst(uint64_t channel) { return (channel >> 62 & 1) != 0; }
int FromRank(uint64_t channel) { return static_cast<int>(channel >> 38 & 0x3f); }
int ToRank(uint64_t channel) { return static_cast<int>(channel >> 32 & 0x3f); }

// The local rank at the end of the channel that lies on the first or second node.
int RankAt(uint64_t channel, bool first) {
  return FromFirst(channel) == first ? FromRank(channel) : ToRank(channel);
}

// One message inside a node: rank 0 sends to rank 1.
std::shared_ptr<const Collective> LocalMessage(const Request& send, const Request& recv) {
  auto collective = std::make_shared<Collective>();
  collective->operation = Operation::kAlltoall;
  collective->dtype = send.dtype;
  collective->count = send.count;
  collective->counts = {0, send.count, 0, 0};
  collective->ranks = {{send.buffer.input, nullptr}, {nullptr, recv.buffer.output}};
  return collective;
}

// One end of a message between nodes: a broadcast over one rank on each.
std::shared_ptr<const Collective> RemoteMessage(const Request& request, bool from_first) {
  auto collective = std::make_shared<Collective>();
  collective->operation = Operation::kBroadcast;
  collective->dtype = request.dtype;
  collective->count = request.count;
  collective->root = from_first ? 0 : 1;
  collective->ranks = {request.buffer};
  collective->signature =
      request.signature ^ request.count * DTypeBytes(request.dtype) * 0x9e3779b97f4a7c15;
  collective->description = DescribeForRank(request, request.client->rank());
  return collective;
}

}  // namespace

Messages::Messages(const GroupLayout& layout, Host host)
    : layout_(layout), host_(std::move(host)) {}

Messages::~Messages() {
  local_.reset();
  pairs_.clear();
}

int Messages::NodeOf(int rank) const {
  int node = 0;
  while (rank >= layout_.nodes[node].first_rank + layout_.nodes[node].rank_count) ++node;
  return node;
}

void Messages::Tell(const RequestPtr& request, const Outcome& outcome) {
  request->client->Finish(*request, outcome);
}

void Messages::Submit(int local_rank, RequestPtr request) {
  if (failed_.has_value()) return Tell(request, *failed_);
  if (!request->rejection.empty()) {
    Outcome outcome;
    outcome.code = arena::Code::kInvalidArgument;
    outcome.rank = request->client->rank();
    outcome.message = absl::StrCat(DescribeRequest(*request), ": ", request->rejection);
    return Tell(request, outcome);
  }
  const int node = NodeOf(request->peer);
  if (node != layout_.node_index) return SubmitRemote(node, local_rank, std::move(request));
  const int peer = request->peer - layout_.first_local_rank();
  const bool sends = request->operation == Operation::kSend;
  const LaneKey key{request->group, sends ? local_rank : peer, sends ? peer : local_rank,
                    request->tag};
  SubmitLocal(key, std::move(request));
}

// Inside the node.

void Messages::SubmitLocal(const LaneKey& key, RequestPtr request) {
  const bool sends = request->operation == Operation::kSend;
  if (const auto met = lanes_.find(key);
      met != lanes_.end() && !(sends ? met->second.recvs : met->second.sends).empty()) {
    std::deque<Waiting>& others = sends ? met->second.recvs : met->second.sends;
    RequestPtr other = std::move(others.front().request);
    others.pop_front();
    if (others.empty()) lanes_.erase(key);
    return sends ? Meet(std::move(request), std::move(other))
                 : Meet(std::move(other), std::move(request));
  }
  const auto ended = ended_.find(request->peer - layout_.first_local_rank());
  if (ended != ended_.end()) return Tell(request, ended->second);
  Lane& lane = lanes_[key];
  (sends ? lane.sends : lane.recvs).push_back({std::move(request), MonotonicMicros()});
}

void Messages::Meet(RequestPtr send, RequestPtr recv) {
  if (send->dtype != recv->dtype || send->count != recv->count ||
      send->signature != recv->signature) {
    Outcome outcome;
    outcome.code = arena::Code::kMismatch;
    outcome.message = MismatchMessage(
        {wire::MessageChannelId(send->group, true, 0, 0, send->tag), 1},
        DescribeForRank(*send, send->client->rank()), DescribeForRank(*recv, recv->client->rank()));
    Tell(send, outcome);
    return Tell(recv, outcome);
  }
  if (local_ == nullptr) local_ = host_.make_local();
  auto collective = LocalMessage(*send, *recv);
  std::vector<RequestPtr> requests;
  requests.push_back(std::move(send));
  requests.push_back(std::move(recv));
  const uint64_t id = Begin(std::move(requests));
  local_->Start({0, id}, std::move(collective),
                [this, id](const Outcome& outcome) { Finish(id, outcome); });
}

uint64_t Messages::Begin(std::vector<RequestPtr> requests) {
  const uint64_t id = ++last_id_;
  started_[id] = {std::move(requests), MonotonicMicros(), -1, {}};
  return id;
}

void Messages::Finish(uint64_t id, const Outcome& outcome) {
  const auto node = started_.extract(id);
  if (node.empty()) return;
  const std::vector<RequestPtr>& requests = node.mapped().requests;
  const Outcome result = WithoutLostMemory(requests, outcome);
  for (const RequestPtr& request : requests) Tell(request, result);
}

// Between nodes.

void Messages::SubmitRemote(int node, int local_rank, RequestPtr request) {
  Pair& pair = pairs_[node];
  const bool sends = request->operation == Operation::kSend;
  const int peer = request->peer - layout_.nodes[node].first_rank;
  const uint64_t channel = wire::MessageChannelId(
      request->group, IsFirst(node) == sends, static_cast<uint32_t>(sends ? local_rank : peer),
      static_cast<uint32_t>(sends ? peer : local_rank), request->tag);
  const auto ended = pair.ended.find(peer);
  if (ended != pair.ended.end() && !pair.cut.contains(channel)) {
    return Tell(request, ended->second);
  }
  const OperationKey key{channel, ++pair.sequences[channel]};
  Waiting waiting{std::move(request), MonotonicMicros()};
  if (pair.communicator != nullptr) return StartRemote(node, key, std::move(waiting));
  pair.queued.emplace_back(key, std::move(waiting));
  Open(node);
}

void Messages::StartRemote(int node, OperationKey key, Waiting waiting) {
  auto collective = RemoteMessage(*waiting.request, FromFirst(key.channel));
  std::vector<RequestPtr> requests;
  requests.push_back(std::move(waiting.request));
  const uint64_t id = Begin(std::move(requests));
  Started& started = started_[id];
  started.since_us = waiting.since_us;
  started.node = node;
  started.key = key;
  pairs_[node].communicator->Start(key, std::move(collective),
                                   [this, id](const Outcome& outcome) { Finish(id, outcome); });
}

void Messages::Open(int node) {
  if (failed_.has_value() || node < 0 || node >= layout_.node_count() ||
      node == layout_.node_index) {
    return;
  }
  Pair& pair = pairs_[node];
  if (pair.opening || pair.communicator != nullptr) return;
  pair.opening = true;
  GroupLayout layout;
  const int first = IsFirst(node) ? layout_.node_index : node;
  const int second = IsFirst(node) ? node : layout_.node_index;
  layout.nodes = {{layout_.nodes[first].name, 0, 1}, {layout_.nodes[second].name, 1, 1}};
  layout.node_index = IsFirst(node) ? 0 : 1;
  layout.members = {layout_.nodes[first].first_rank, layout_.nodes[second].first_rank};
  host_.open_pair(node, layout,
                  [this, node](auto communicator) { OnOpened(node, std::move(communicator)); });
}

void Messages::OnOpened(int node, absl::StatusOr<std::unique_ptr<Communicator>> communicator) {
  Pair& pair = pairs_[node];
  pair.opening = false;
  auto queued = std::exchange(pair.queued, {});
  if (!communicator.ok() || failed_.has_value()) {
    Outcome outcome;
    outcome.code = arena::Code::kUnavailable;
    outcome.node = layout_.nodes[node].name;
    outcome.message = absl::StrCat("no connection to node ", outcome.node,
                                   " for messages: ", communicator.status().message());
    pair.sequences.clear();  // Nothing was begun: both ends count from 1 again.
    for (const auto& [key, waiting] : queued) Tell(waiting.request, failed_.value_or(outcome));
    return;
  }
  pair.communicator = *std::move(communicator);
  pair.communicator->set_peer_failure_handler(
      [this, node](OperationKey key, bool from, const Outcome& outcome) {
        OnPeerFailure(node, key, from, outcome);
      });
  for (auto& [key, waiting] : queued) StartRemote(node, key, std::move(waiting));
  for (const auto& [rank, outcome] : ended_) TellEnded(node, rank, outcome);
}

void Messages::OnPeerFailure(int node, OperationKey key, bool from, const Outcome& outcome) {
  if (!from) return;
  Pair& pair = pairs_[node];
  if (!wire::IsEndedChannel(key.channel)) {
    pair.cut.insert(key.channel);
    return;
  }
  const int rank = static_cast<int>(key.channel & 0xffff);
  pair.ended.emplace(rank, outcome);
  for (const auto& [channel, sequence] : pair.sequences) {
    if (RankAt(channel, !IsFirst(node)) != rank || pair.cut.contains(channel)) continue;
    pair.communicator->AbortFrom({channel, 1}, outcome);
  }
}

void Messages::TellEnded(int node, int local_rank, const Outcome& outcome) {
  Pair& pair = pairs_[node];
  for (const auto& [channel, sequence] : pair.sequences) {
    if (RankAt(channel, IsFirst(node)) != local_rank) continue;
    pair.communicator->AbortFrom({channel, sequence + 1}, outcome);
  }
  const auto rank = static_cast<uint32_t>(local_rank);
  pair.communicator->AbortFrom({wire::EndedChannelId(IsFirst(node), rank), 1}, outcome);
}

void Messages::EndRank(int local_rank, const Outcome& cause) {
  if (ended_.contains(local_rank)) return;
  const int rank = layout_.first_local_rank() + local_rank;
  const std::string& node = layout_.nodes[layout_.node_index].name;
  const Outcome outcome = EndOutcome(
      cause, rank, node,
      absl::StrCat("rank ", rank, " (node ", node, ") has finished; a message with it is pending"));
  ended_.emplace(local_rank, outcome);
  for (auto& [key, lane] : lanes_) {
    const bool from = std::get<1>(key) == local_rank;
    if (!from && std::get<2>(key) != local_rank) continue;
    for (const Waiting& waiting : std::exchange(from ? lane.recvs : lane.sends, {})) {
      Tell(waiting.request, outcome);
    }
  }
  for (const auto& [node, pair] : pairs_) {
    if (pair.communicator != nullptr) TellEnded(node, local_rank, outcome);
  }
}

void Messages::FailAll(const Outcome& outcome) {
  if (failed_.has_value()) return;
  failed_ = outcome;
  WithdrawLocal(outcome);
  for (auto& [node, pair] : pairs_) {
    for (const auto& [key, waiting] : std::exchange(pair.queued, {})) {
      Tell(waiting.request, outcome);
    }
    if (pair.communicator == nullptr) continue;
    for (const auto& [channel, sequence] : pair.sequences) {
      pair.communicator->AbortFrom({channel, 1}, outcome);
    }
  }
}

bool Messages::Poll() {
  bool worked = local_ != nullptr && local_->Progress();
  for (auto& [node, pair] : pairs_) {
    if (pair.communicator != nullptr) worked |= pair.communicator->Progress();
  }
  return worked;
}

bool Messages::idle() const { return started_.empty(); }

std::optional<std::pair<int64_t, std::string>> Messages::FindStall(int64_t before_us,
                                                                   int64_t now_us) const {
  const Request* oldest = nullptr;
  int64_t since_us = before_us;
  const auto look = [&](const RequestPtr& request, int64_t at_us) {
    if (at_us > since_us) return;
    oldest = request.get();
    since_us = at_us;
  };
  for (const auto& [key, lane] : lanes_) {
    for (const auto* queue : {&lane.sends, &lane.recvs}) {
      if (!queue->empty()) look(queue->front().request, queue->front().since_us);
    }
  }
  for (const auto& [id, started] : started_) look(started.requests[0], started.since_us);
  for (const auto& [node, pair] : pairs_) {
    if (!pair.queued.empty()) {
      look(pair.queued.front().second.request, pair.queued.front().second.since_us);
    }
  }
  if (oldest == nullptr) return std::nullopt;
  const std::string& node = layout_.nodes[NodeOf(oldest->peer)].name;
  return std::pair(since_us,
                   absl::StrCat("message (", DescribeForRank(*oldest, oldest->client->rank()),
                                ") has waited ", (now_us - since_us) / 1'000'000, " s: rank ",
                                oldest->peer, " (node ", node, ") has not called"));
}

}  // namespace ringd::daemon
