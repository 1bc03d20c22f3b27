// Proves that no rank of a job can ever go on.
#ifndef RINGD_DAEMON_ENGINE_DEADLOCK_DETECTOR_H_
#define RINGD_DAEMON_ENGINE_DEADLOCK_DETECTOR_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/collectives/communicator.h"
#include "proto/probe.pb.h"

namespace ringd::daemon {

using probe::v1::Probe;

inline constexpr uint64_t kNoOperation = ~uint64_t{0};

// One channel, of the group that its number names or, for messages, of two nodes.
struct ChannelKey {
  uint64_t id = 0;
  int first_node = 0;
  int second_node = 0;
  auto operator<=>(const ChannelKey&) const = default;
};

// How far a channel has come on this node.
struct ChannelState {
  uint64_t next = 1;                   // First operation that has not been started here.
  uint64_t unfinished = kNoOperation;  // First that was started and is not finished.
  uint64_t newest = 0;                 // Last one that a rank here has submitted.
};

// What this node knows at one moment.
struct Snapshot {
  // Every thread of every rank here that has ever called waits, without a time limit, for an
  // operation that is not over.
  bool is_blocked = false;
  uint64_t activity = 0;         // Grows with everything that ranks and nodes tell this one.
  int64_t notes_underway = 0;    // Sent minus received, probes apart.
  std::set<ChannelKey> pending;  // Where something waits.
  std::vector<probe::v1::Wait> waits;
};

// A deadlock is proven when every rank is blocked (Snapshot), nothing has happened between two
// looks at all of them, no note is under way, and no operation that some node has started was
// started by all: then nothing will ever happen. The first node asks, by a probe that goes round
// twice, and a third time with the verdict. On one node the rounds are calls. With more channels
// than a probe takes nothing is proven.
//
// Pure: no I/O, no clock. Thread-bound: the engine's thread.
class DeadlockDetector {
 public:
  // Of this node; null: the channel is not this node's.
  using StateOf = std::function<std::optional<ChannelState>(const ChannelKey& channel)>;

  DeadlockDetector(int node_index, int node_count)
      : is_first_(node_index == 0), is_alone_(node_count == 1) {}

  // At regular intervals. What is to be sent, or the verdict.
  std::optional<Probe> Check(const Snapshot& snapshot, const StateOf& state_of);
  // A probe from the left, but no verdict. What is to be sent, or the verdict. Nothing: it ends
  // here.
  std::optional<Probe> Take(Probe probe, const Snapshot& snapshot, const StateOf& state_of);

 private:
  bool IsUnchanged(const Snapshot& snapshot, uint64_t activity) const {
    return snapshot.is_blocked && snapshot.activity == activity;
  }

  const bool is_first_;
  const bool is_alone_;
  uint64_t round_ = 0;
  uint64_t checked_activity_ = kNoOperation;    // At the last Check, if the node was blocked.
  uint64_t collected_activity_ = kNoOperation;  // When the round's first probe passed.
};

// "rank 0 waits in operation s.7 (...); ranks 1 to 3 wait in ...": kMismatch for all ranks.
Outcome DeadlockOutcome(const Probe& verdict);

// Adds the rank to the wait of that text, or a new one.
void AddWait(absl::string_view text, int rank, std::vector<probe::v1::Wait>* waits);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_DEADLOCK_DETECTOR_H_
