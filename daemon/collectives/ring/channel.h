// What the ring's communicator keeps of operations and channels.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_CHANNEL_H_
#define RINGD_DAEMON_COLLECTIVES_RING_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/collectives/communicator.h"
#include "daemon/collectives/ring/algorithm.h"
#include "proto/wire.h"

namespace ringd::daemon {

// Operations of one channel that may run at the same time; the others wait in order. Four keep the
// wire busy while one drains and the next begins.
inline constexpr size_t kMaxRunningOperations = 4;
// Small ones: as many as a round trip needs to be worth its while.
inline constexpr size_t kMaxSmallOperations = 64;
inline constexpr size_t kSmallOperationBytes = 64 << 10;
// Failed operations that a channel remembers, so that their late frames are known from nonsense.
inline constexpr size_t kMaxFailedOperations = 4096;

// How far one of an operation's streams has come.
struct StreamProgress {
  bool left_has_begun = false;
  bool right_is_ready = false;
  bool has_sent_empty = false;
  uint64_t announced_limit = 0;
  uint64_t right_limit = 0;  // Of taken_bytes, once the right node is ready.
  uint64_t taken_bytes = 0;
  uint64_t received_bytes = 0;
  uint32_t frames_with_link = 0;
  uint32_t eager_frames = 0;  // Sent before READY; 0 again after it.
  uint64_t eager_bytes = 0;
};

// An operation that has been started here.
struct RingOperation {
  OperationKey key;
  uint64_t id = 0;  // The link's tag.
  std::shared_ptr<const Collective> collective;
  Communicator::Done done;
  std::unique_ptr<RingAlgorithm> algorithm;  // Null while it waits in the channel's queue.

  bool is_announced = false;            // READY has been sent to the left.
  bool is_mismatched = false;           // A neighbour's operation differs: nothing moves any more.
  std::vector<StreamProgress> streams;  // The algorithm's.
};

// Payload that came before the operation was announced.
struct EarlyFrame {
  wire::FrameHeader header{};
  std::vector<std::byte> data;
};

struct EarlyStream {
  std::optional<wire::FrameHeader> ready;  // The newest, of the right node.
  std::vector<EarlyFrame> frames;          // Of the left node.
};

struct EarlyArrivals {
  std::vector<EarlyStream> streams;  // Up to the last of which something has come.
};

// What one node says that its operation is.
struct MismatchReport {
  uint64_t signature = 0;
  std::string description;
};

// One channel. Sequence numbers up to last_started have been started here (or skipped, after a
// failure).
struct RingChannel {
  uint64_t last_started = 0;
  std::deque<std::shared_ptr<RingOperation>> queued;
  std::vector<std::shared_ptr<RingOperation>> running;
  std::map<uint64_t, EarlyArrivals> early;   // Of operations that are not announced yet.
  std::map<uint64_t, Outcome> failed_early;  // Not started here.
  std::optional<std::pair<uint64_t, Outcome>> failed_from;
  std::map<uint64_t, std::map<uint32_t, MismatchReport>> mismatches;  // Undecided; by node.

  // Whether the first of `queued` may run now.
  bool MayActivate() const;
  // Null: not started, or over.
  std::shared_ptr<RingOperation> Find(uint64_t sequence) const;
  // Why the operation, which is not started here yet, has failed; null if it has not.
  const Outcome* FindFailure(uint64_t sequence) const;
  // For operations up to last_started.
  bool HasFailed(uint64_t sequence) const {
    return sequence <= forgotten_ || failed_.contains(sequence);
  }
  void NoteFailed(uint64_t sequence);
  // Moves on to the operation; those between were skipped.
  void NoteStarted(uint64_t sequence);

 private:
  std::set<uint64_t> failed_;
  uint64_t forgotten_ = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_CHANNEL_H_
