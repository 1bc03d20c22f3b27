// What the detection of deadlocks asks of messages, and what it does to them.
#include <algorithm>
#include <utility>

#include "daemon/engine/groups/messages.h"
#include "proto/wire.h"

namespace ringd::daemon {

ChannelKey Messages::ChannelWith(int node, uint64_t id) const {
  return {id, std::min(node, layout_.node_index), std::max(node, layout_.node_index)};
}

int Messages::OtherNode(const ChannelKey& channel) const {
  if (channel.second_node >= layout_.node_count()) return -1;
  if (channel.first_node == layout_.node_index) return channel.second_node;
  return channel.second_node == layout_.node_index ? channel.first_node : -1;
}

bool Messages::IsStuck() const {
  return std::none_of(started_.begin(), started_.end(),
                      [](const auto& started) { return started.second.node < 0; }) &&
         std::none_of(pairs_.begin(), pairs_.end(),
                      [](const auto& pair) { return pair.second.opening; });
}

void Messages::Visit(const RequestVisitor& visit) const {
  for (const auto& [key, lane] : lanes_) {
    const OperationKey message{
        wire::MessageChannelId(std::get<0>(key), true, 0, 0, std::get<3>(key)), 0};
    for (const Waiting& waiting : lane.sends) visit(message, *waiting.request);
    for (const Waiting& waiting : lane.recvs) visit(message, *waiting.request);
  }
  for (const auto& [id, started] : started_) {
    for (const RequestPtr& request : started.requests) visit(started.key, *request);
  }
}

std::set<ChannelKey> Messages::Pending() const {
  std::set<ChannelKey> pending;
  for (const auto& [id, started] : started_) {
    if (started.node >= 0) pending.insert(ChannelWith(started.node, started.key.channel));
  }
  return pending;
}

std::optional<ChannelState> Messages::StateOf(const ChannelKey& channel) const {
  const int node = OtherNode(channel);
  if (node < 0) return std::nullopt;
  ChannelState state;
  if (const auto pair = pairs_.find(node); pair != pairs_.end()) {
    const auto& sequences = pair->second.sequences;
    if (const auto last = sequences.find(channel.id); last != sequences.end()) {
      state.newest = last->second;
    }
  }
  state.next = state.newest + 1;
  for (const auto& [id, started] : started_) {
    if (started.node != node || started.key.channel != channel.id) continue;
    state.unfinished = std::min(state.unfinished, started.key.sequence);
  }
  return state;
}

void Messages::WithdrawLocal(const Outcome& outcome) {
  for (const auto& [key, lane] : std::exchange(lanes_, {})) {
    for (const Waiting& waiting : lane.sends) Tell(waiting.request, outcome);
    for (const Waiting& waiting : lane.recvs) Tell(waiting.request, outcome);
  }
}

void Messages::Withdraw(const ChannelKey& channel, uint64_t newest, const Outcome& outcome) {
  const int node = OtherNode(channel);
  if (node < 0) return;
  Pair& pair = pairs_[node];
  pair.sequences[channel.id] = newest;
  std::vector<OperationKey> keys;
  for (const auto& [id, started] : started_) {
    if (started.node == node && started.key.channel == channel.id) keys.push_back(started.key);
  }
  for (const OperationKey& key : keys) pair.communicator->Abort(key, outcome);
}

}  // namespace ringd::daemon
