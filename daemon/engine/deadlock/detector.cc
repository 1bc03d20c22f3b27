#include "daemon/engine/deadlock/detector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringd::daemon {
namespace {

using probe::v1::Channel;
using probe::v1::Wait;

constexpr size_t kMaxChannels = 4096;  // A probe is one note.
constexpr size_t kMaxWaits = 8;        // That a message shows.
constexpr size_t kMaxWaitBytes = 240;  // Of each.
constexpr int kMaxRanges = 8;          // Of its ranks.

ChannelKey KeyOf(const Channel& channel) {
  return {channel.id(), static_cast<int>(channel.first_node()),
          static_cast<int>(channel.second_node())};
}

void AddChannels(const std::set<ChannelKey>& keys, Probe* probe) {
  std::set<ChannelKey> known;
  for (const Channel& channel : probe->channels()) known.insert(KeyOf(channel));
  for (const ChannelKey& key : keys) {
    if (known.contains(key)) continue;
    Channel* const channel = probe->add_channels();
    channel->set_id(key.id);
    channel->set_first_node(static_cast<uint32_t>(key.first_node));
    channel->set_second_node(static_cast<uint32_t>(key.second_node));
    channel->set_next(kNoOperation);
    channel->set_unfinished(kNoOperation);
  }
}

void AddKnowledge(const Snapshot& snapshot, const DeadlockDetector::StateOf& state_of,
                  Probe* probe) {
  probe->set_notes_underway(probe->notes_underway() + snapshot.notes_underway);
  for (Channel& channel : *probe->mutable_channels()) {
    const std::optional<ChannelState> state = state_of(KeyOf(channel));
    if (!state.has_value()) continue;
    channel.set_next(std::min(channel.next(), state->next));
    channel.set_unfinished(std::min(channel.unfinished(), state->unfinished));
    channel.set_newest(std::max(channel.newest(), state->newest));
  }
  std::vector<Wait> waits(probe->waits().begin(), probe->waits().end());
  for (const Wait& wait : snapshot.waits) {
    for (const int32_t rank : wait.ranks()) AddWait(wait.text(), rank, &waits);
  }
  *probe->mutable_waits() = {waits.begin(), waits.end()};
}

bool IsDeadlock(const Probe& probe) {
  const auto& channels = probe.channels();
  return probe.waits_size() > 0 && probe.notes_underway() == 0 &&
         std::all_of(channels.begin(), channels.end(),
                     [](const Channel& channel) { return channel.unfinished() >= channel.next(); });
}

// "rank 3 waits", "ranks 0 to 2, 5 wait".
std::string RanksText(const Wait& wait) {
  const auto& ranks = wait.ranks();
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  int shown = 0;
  for (int i = 0; i < ranks.size();) {
    if (++shown > kMaxRanges) {
      absl::StrAppend(&text, " and ", ranks.size() - i, " more");
      break;
    }
    int last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i]);
    if (last > i) absl::StrAppend(&text, last == i + 1 ? ", " : " to ", ranks[last]);
    i = last + 1;
  }
  return text + (ranks.size() == 1 ? " waits" : " wait");
}

}  // namespace

std::optional<Probe> DeadlockDetector::Check(const Snapshot& snapshot, const StateOf& state_of) {
  const bool is_unchanged = IsUnchanged(snapshot, checked_activity_);
  checked_activity_ = snapshot.is_blocked ? snapshot.activity : kNoOperation;
  if (!is_first_ || !is_unchanged || snapshot.pending.size() > kMaxChannels) return std::nullopt;
  Probe probe;
  probe.set_phase(Probe::PHASE_COLLECT);
  probe.set_round(++round_);
  AddChannels(snapshot.pending, &probe);
  collected_activity_ = snapshot.activity;
  std::optional<Probe> next = std::move(probe);
  while (is_alone_ && next.has_value() && next->phase() != Probe::PHASE_VERDICT) {
    next = Take(*std::move(next), snapshot, state_of);
  }
  return next;
}

std::optional<Probe> DeadlockDetector::Take(Probe probe, const Snapshot& snapshot,
                                            const StateOf& state_of) {
  if (std::max<size_t>(probe.channels_size(), snapshot.pending.size()) > kMaxChannels) {
    return std::nullopt;
  }
  const bool is_collect = probe.phase() == Probe::PHASE_COLLECT;
  if (!is_first_ && is_collect) {
    if (!IsUnchanged(snapshot, checked_activity_)) return std::nullopt;
    round_ = probe.round();
    collected_activity_ = snapshot.activity;
    AddChannels(snapshot.pending, &probe);
    return probe;
  }
  if (probe.round() != round_ || !IsUnchanged(snapshot, collected_activity_)) return std::nullopt;
  if (is_first_ && !is_collect) {
    if (!IsDeadlock(probe)) return std::nullopt;
    probe.set_phase(Probe::PHASE_VERDICT);
    return probe;
  }
  probe.set_phase(Probe::PHASE_VERIFY);
  AddKnowledge(snapshot, state_of, &probe);
  return probe;
}

Outcome DeadlockOutcome(const Probe& verdict) {
  Outcome outcome;
  outcome.code = arena::Code::kMismatch;
  outcome.message = "deadlock: each rank waits in an operation that others have not called";
  std::vector<Wait> waits(verdict.waits().begin(), verdict.waits().end());
  std::sort(waits.begin(), waits.end(),
            [](const Wait& a, const Wait& b) { return a.ranks(0) < b.ranks(0); });
  const char* separator = ": ";
  for (size_t i = 0; i < std::min(waits.size(), kMaxWaits); ++i) {
    const Wait& wait = waits[i];
    absl::StrAppend(&outcome.message, separator, RanksText(wait), " in ", wait.text());
    separator = "; ";
  }
  if (waits.size() > kMaxWaits) {
    absl::StrAppend(&outcome.message, "; and ", waits.size() - kMaxWaits, " more");
  }
  absl::StrAppend(&outcome.message,
                  ". All of them fail; let all ranks of a group call the same operations");
  return outcome;
}

void AddWait(absl::string_view text, int rank, std::vector<Wait>* waits) {
  text = text.substr(0, kMaxWaitBytes);
  auto found = std::find_if(waits->begin(), waits->end(),
                            [&](const Wait& wait) { return wait.text() == text; });
  if (found == waits->end()) {
    found = waits->emplace(waits->end());
    found->set_text(std::string(text));
  }
  auto* const ranks = found->mutable_ranks();
  const auto place = std::lower_bound(ranks->begin(), ranks->end(), rank);
  if (place != ranks->end() && *place == rank) return;
  const auto index = place - ranks->begin();
  ranks->Add(rank);
  std::rotate(ranks->begin() + index, ranks->end() - 1, ranks->end());
}

}  // namespace ringd::daemon
