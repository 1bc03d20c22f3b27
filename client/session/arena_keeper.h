// Makes and keeps the memory of one arena.
#ifndef RINGD_CLIENT_SESSION_ARENA_KEEPER_H_
#define RINGD_CLIENT_SESSION_ARENA_KEEPER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/memory_limit.h"
#include "common/base/fd.h"

namespace ringd::session {

struct ArenaSizes {
  uint64_t first_bytes = 0;  // Segment 0.
  uint64_t max_bytes = 0;    // All segments together.
};

// Sizes from what was asked for (0: default) and what there is. The maximum defaults to half of the
// limit. A first segment of the default size takes at most a quarter of this rank's share of what
// is free (sharers: ranks that take theirs at the same time), but arena::kMinBytes: its memory is
// taken at once, and the training process wants the rest.
ArenaSizes ChooseArenaSizes(uint64_t arena_bytes, uint64_t arena_max_bytes,
                            const MemoryLimit& limit, int sharers = 1);

// The memfds of one arena: segment 0 with the header's constants filled in, and those that it grew
// by.
//
// Ownership: keeps the descriptors until destroyed; what is handed out is borrowed.
// Thread-compatible: external synchronisation.
// Failure: RESOURCE_EXHAUSTED with what was asked for and what the limit is; nothing has changed
// then.
class ArenaKeeper {
 public:
  struct Segment {
    UniqueFd fd;
    uint64_t bytes = 0;
  };
  using LimitReader = std::function<MemoryLimit()>;  // Called before each segment is made.

  ArenaKeeper(uint64_t arena_bytes, uint64_t arena_max_bytes, LimitReader read_limit,
              int sharers = 1);

  // Makes segment 0. REQUIRES: no segments yet.
  absl::Status CreateFirst();
  // Adds a segment of at least `bytes` and returns its index. Rounds up so that an arena that grows
  // often has few segments, as far as the limits allow.
  absl::StatusOr<uint32_t> Grow(uint64_t bytes);

  const std::vector<Segment>& segments() const { return segments_; }
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t max_bytes() const { return max_bytes_; }  // 0 before CreateFirst, unless it was given.

 private:
  absl::Status Add(uint64_t bytes, const MemoryLimit& limit);

  const uint64_t arena_bytes_;
  const LimitReader read_limit_;
  const int sharers_;
  uint64_t max_bytes_;
  uint64_t total_bytes_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace ringd::session

#endif  // RINGD_CLIENT_SESSION_ARENA_KEEPER_H_
