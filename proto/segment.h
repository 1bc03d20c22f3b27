// The shared segment: memory in which the ranks of a job on one node carry out small collectives
// among themselves, without their daemon.
//
// A contract like a proto, as arena.h is. The daemon makes one memfd for each generation of a job
// that has 2 to 64 ranks, all on one node, and hands it to every client. In this order: Header, a
// Line for each rank, kSlotCount Slots for each rank. Nothing is ever reset: a rank's next client
// finds what its former one has left.
//
// Which operations go this way is a function of the operation alone (client/c/direct_path.h). They
// keep their numbers in group 0's own sequence; the slot that a rank writes is the one that does
// not have its newest operation. Where a rank can't do its part itself, its daemon does it: it
// publishes a submitted operation in its rank's place, and takes what others have published.
#ifndef RINGD_PROTO_SEGMENT_H_
#define RINGD_PROTO_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "proto/arena.h"

namespace ringd::segment {

inline constexpr uint64_t kMagic = 0x67657372676e7231;  // "1rngrseg"
inline constexpr uint32_t kLayoutVersion = 1;
inline constexpr uint32_t kMaxRanks = 64;
inline constexpr uint32_t kSlotCount = 2;      // A rank that has finished an operation knows that
                                               // nobody needs the one before it.
inline constexpr uint32_t kSmallBytes = 4096;  // Of one rank's data.
inline constexpr uint32_t kInlineBytes = 8;    // Data as short as that lies in the line.
inline constexpr uint32_t kSiteBytes = 128;
inline constexpr uint32_t kHeaderBytes = 4096;

enum Attention : uint32_t {
  kRing = 1 << 0,  // Ring the doorbell after publishing: the daemon waits for a rank.
  kClosed =
      1 << 1,  // Publish nothing more: submit to the daemon, which says why. Sleepers are woken.
};

struct Header {
  // Constants, written by the daemon before anybody else sees the segment.
  uint64_t magic;
  uint32_t layout_version;
  uint32_t rank_count;
  uint64_t bytes;

  alignas(128) std::atomic<uint32_t> attention;  // Daemon, seq_cst. Read after publishing.
};
static_assert(sizeof(Header) <= kHeaderBytes);

// What a slot has.
struct Note {
  std::atomic<uint64_t> sequence;   // Rank, 0 with release while the slot changes, then the number.
  std::atomic<uint64_t> signature;  // Rank, relaxed: what ranks must agree on.
  std::atomic<uint64_t> data;       // Rank, relaxed: data of at most kInlineBytes.
};
static_assert(sizeof(Note) == 24);

// "Rank": the rank's client, or its daemon for operations that the client has submitted and that
// are not over. A client publishes nothing while it has such ones.
struct Line {
  std::atomic<uint32_t> flag;  // Rank, seq_cst: lower half of the number of the operation that it
                               // published last; then it reads `sleepers` and `attention`. Futex.
  std::atomic<uint32_t> sleepers;  // Others, seq_cst: how many sleep on `flag`.
  Note notes[kSlotCount];
  // Client, release: what it has done with. Nobody looks at it but after a failure.
  alignas(128) std::atomic<uint64_t> consumed;
};
static_assert(sizeof(Line) == 256);
static_assert(offsetof(Line, notes) == 8);

// Rank, before `flag`. Whoever reads looks at the note's sequence before and afterwards.
struct Slot {
  arena::Descriptor description;  // For messages and for the daemon; without places in the arena.
  char site[kSiteBytes];          // Call site, zero-terminated.
  alignas(128) std::byte data[kSmallBytes];
};
static_assert(sizeof(Slot) == 256 + kSmallBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

constexpr uint64_t SegmentBytes(uint32_t rank_count) {
  const uint64_t bytes =
      kHeaderBytes + uint64_t{rank_count} * (sizeof(Line) + kSlotCount * sizeof(Slot));
  return (bytes + 4095) / 4096 * 4096;
}

}  // namespace ringd::segment

#endif  // RINGD_PROTO_SEGMENT_H_
