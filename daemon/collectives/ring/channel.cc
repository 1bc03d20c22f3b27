#include "daemon/collectives/ring/channel.h"

#include <algorithm>
#include <numeric>

namespace ringd::daemon {

std::shared_ptr<RingOperation> RingChannel::Find(uint64_t sequence) const {
  const auto is_it = [&](const auto& operation) { return operation->key.sequence == sequence; };
  if (const auto found = std::find_if(running.begin(), running.end(), is_it);
      found != running.end()) {
    return *found;
  }
  const auto is_before = [](const auto& operation, uint64_t wanted) {
    return operation->key.sequence < wanted;
  };
  const auto found = std::lower_bound(queued.begin(), queued.end(), sequence, is_before);
  return found == queued.end() || !is_it(*found) ? nullptr : *found;
}

bool RingChannel::MayActivate() const {
  if (queued.empty()) return false;
  if (running.size() < kMaxRunningOperations) return true;
  const Collective& next = *queued.front()->collective;
  const uint64_t elements = std::accumulate(next.counts.begin(), next.counts.end(), next.count);
  return running.size() < kMaxSmallOperations &&
         elements <= kSmallOperationBytes / std::max<size_t>(1, DTypeBytes(next.dtype));
}

const Outcome* RingChannel::FindFailure(uint64_t sequence) const {
  if (const auto found = failed_early.find(sequence); found != failed_early.end()) {
    return &found->second;
  }
  if (failed_from.has_value() && sequence >= failed_from->first) return &failed_from->second;
  return nullptr;
}

void RingChannel::NoteFailed(uint64_t sequence) {
  failed_.insert(sequence);
  if (failed_.size() <= kMaxFailedOperations) return;
  forgotten_ = *failed_.begin();
  failed_.erase(failed_.begin());
}

void RingChannel::NoteStarted(uint64_t sequence) {
  while (!failed_early.empty() && failed_early.begin()->first <= sequence) {
    NoteFailed(failed_early.begin()->first);
    failed_early.erase(failed_early.begin());
  }
  last_started = sequence;
}

}  // namespace ringd::daemon
