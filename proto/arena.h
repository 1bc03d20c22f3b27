// The arena: the memory that one training process shares with the node's daemon.
//
// A contract like a proto: both sides compile this file, and neither trusts the other's words.
// Offsets, never pointers; fixed-width fields; one writer for each word, named beside it together
// with the memory order. An arena serves one client (one process that called ringd_init) and dies
// with it: nothing in it is ever reset.
//
// Segment 0 holds, in this order: ArenaHeader, submission queue, operation slots, error records,
// slab. Further segments are slab only. The worker makes each segment (memfd, sealed against
// resizing, backed by fallocate), fills in the constants of the header, and hands it to the daemon
// and to the client.
//
// Layout rules: kLayoutVersion grows with every change that an old reader would misread.
#ifndef RINGD_PROTO_ARENA_H_
#define RINGD_PROTO_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/types.h"

namespace ringd::arena {

inline constexpr uint64_t kMagic = 0x616e657261676e72;  // "rngarena"
inline constexpr uint32_t kLayoutVersion = 2;

// Operations that one client may have in flight. The queue has as many places as there are slots
// and each queued descriptor holds a slot, so a submission never finds the queue full: it fails in
// the client, at the slot limit.
inline constexpr uint32_t kSlotCount = 65536;
inline constexpr uint32_t kErrorRecordCount = 64;
inline constexpr uint32_t kMaxSegments = 256;
inline constexpr uint64_t kSlabAlignment = 128;  // Every allocation; two cache lines.
inline constexpr uint64_t kDefaultBytes = 256u << 20;
inline constexpr uint64_t kMinBytes = 16u << 20;
inline constexpr uint32_t kMaxInlineDims = 4;
inline constexpr uint32_t kMaxDims = 32;
inline constexpr uint32_t kMaxNameBytes = 4096;
inline constexpr uint64_t kMaxMetaBytes = 64u << 20;  // A plan of 100,000 tensors with long names.

// A place in the arena: segment index in the top 16 bits, byte offset in the lower 48.
using Ref = uint64_t;
inline constexpr Ref kNullRef = ~uint64_t{0};
constexpr Ref MakeRef(uint32_t segment, uint64_t offset) {
  return (uint64_t{segment} << 48) | (offset & 0xffffffffffff);
}
constexpr uint32_t RefSegment(Ref ref) { return static_cast<uint32_t>(ref >> 48); }
constexpr uint64_t RefOffset(Ref ref) { return ref & 0xffffffffffff; }

enum DescriptorFlags : uint16_t {
  kFlagNamed = 1 << 0,   // Ordered by name: ranks may submit such operations of a group in any
                         // order. They have no sequence. Collectives that move data, with a name.
  kFlagBeside = 1 << 1,  // The result lies beside the input, which stays untouched: the operation
                         // can run again.
  kFlagReproducible = 1 << 2,
};

// One operation, written by the client before it publishes the queue's head, copied once by the
// daemon, then validated. Everything in it is hostile input.
struct Descriptor {
  uint16_t size;    // sizeof(Descriptor) as the writer knows it.
  uint8_t version;  // kLayoutVersion.
  Operation operation;
  DType dtype;
  Reduction reduction;
  uint16_t flags;       // DescriptorFlags.
  uint32_t slot;        // Index of the operation slot that is told when the operation is over.
  uint32_t number;      // What the slot's word becomes then.
  uint32_t generation;  // The generation that the client believes in (lower 32 bits).
  uint32_t group;       // Process set; 0 is the whole job. Groups are made in group 0.
  uint64_t
      serial;  // 1, 2, 3, ... over all submissions of this client: nothing lost, nothing twice.
  Ref input;
  Ref output;          // Equal to input: in place.
  uint64_t count;      // Elements at `input`; scatter, recv: at `output`. 0 is legal.
  uint64_t signature;  // Hash of operation, dtype, reduction, shape, root, scales, name, tag:
                       // SignatureOf in client/c.
  Ref meta;            // A Meta record, or kNullRef where all is said inline.
  uint32_t meta_bytes;
  int32_t root;  // Rank in the group: the root, or the peer of a message. Plans: the plan's id.
                 // Groups: the id of the group that is made or given up.
  double prescale;
  double postscale;
  uint32_t bucket;  // kPlanBucket: index in the plan. Others: lower half of the sequence.
  uint32_t tag;
  uint8_t ndim;  // <= kMaxInlineDims: dims below are the tensor's shape; else the shape is in the
                 // meta record.
  uint8_t wire;  // WireDType of common/reduce: allreduce; else 0.
  uint8_t reserved[2];
  uint32_t sequence_high;         // See SequenceOf.
  uint32_t dims[kMaxInlineDims];  // Inline shape, where each dimension fits; used for messages,
                                  // never for addressing.
};
static_assert(sizeof(Descriptor) == 128);
static_assert(offsetof(Descriptor, serial) == 24);
static_assert(offsetof(Descriptor, sequence_high) == 108);
static_assert(offsetof(Descriptor, dims) == 112);

// The operation's number in group 0's own sequence, where the client counts it: 1, 2, 3, ... over
// all clients of the rank. Those that ranks carry out themselves (proto/segment.h) are left out. 0:
// the daemon counts. Not for buckets of plans.
constexpr uint64_t SequenceOf(const Descriptor& descriptor) {
  return uint64_t{descriptor.sequence_high} << 32 | descriptor.bucket;
}
constexpr void SetSequence(uint64_t sequence, Descriptor* descriptor) {
  descriptor->sequence_high = static_cast<uint32_t>(sequence >> 32);
  descriptor->bucket = static_cast<uint32_t>(sequence);
}

// A variable-length record in the slab: shape, then counts, then name. The daemon copies it before
// reading.
//   int64 shape[ndim]; int64 counts[count_count]; char name[name_bytes]; char site[site_bytes]
// counts: allgather, gather: elements of each rank of the group, in rank order. Reducescatter,
// scatter: the same, of the outputs. Alltoall: size x size matrix, elements from rank i to rank j
// at [i * size + j]. Groups: ranks of the job that are members, ascending.
struct Meta {
  uint32_t ndim;  // <= kMaxDims.
  uint32_t count_count;
  uint32_t name_bytes;  // <= kMaxNameBytes; no terminating zero.
  uint32_t site_bytes;  // Call site, "train.py:41": for messages only, never compared.
};
static_assert(sizeof(Meta) == 16);

// A bucket plan (the meta record of kPlanRegister): PlanHeader, PlanBucket[bucket_count],
// PlanTensor[tensor_count], int64 dims[dim_count], char names[name_bytes]. What all ranks must
// agree on is everything but the Refs.
struct PlanHeader {
  uint32_t
      plan;  // The client's id; each rank counts its plans from 1, so equal plans have equal ids.
  uint32_t bucket_count;
  uint32_t tensor_count;
  uint32_t dim_count;
  uint32_t name_bytes;
  uint32_t reserved;
};
static_assert(sizeof(PlanHeader) == 24);
inline constexpr uint32_t kMaxPlanBuckets = 4096;
inline constexpr uint32_t kMaxPlansPerClient = 256;
inline constexpr uint32_t kMaxGroups = 4096;  // Of a job, ids: a group over nodes has two sockets.

struct PlanBucket {
  Ref input;   // count elements, this rank's contribution.
  Ref output;  // count elements; equal to input: in place.
  uint64_t count;
  double prescale;
  double postscale;
  DType dtype;
  Reduction reduction;
  uint8_t wire;  // WireDType of common/reduce.
  uint8_t reserved[5];
};
static_assert(sizeof(PlanBucket) == 48);

struct PlanTensor {
  uint32_t bucket;
  uint32_t ndim;
  uint32_t first_dim;    // Index into dims.
  uint32_t name_offset;  // Into names.
  uint32_t name_bytes;
  uint32_t reserved;
  uint64_t offset;  // Elements from the start of its bucket.
};
static_assert(sizeof(PlanTensor) == 32);

// What a finished operation says. Shared by slots, error records and the C ABI (the same numbers
// there).
enum class Code : uint32_t {
  kOk = 0,
  kInvalidArgument = 1,
  kMismatch = 2,
  kPeerFailed = 3,
  kGenerationChanged = 4,
  kDeadlineExceeded = 5,
  kNotInitialized = 6,
  kForked = 7,
  kInterrupted = 8,  // Of a wait, not of an operation, as is kDeadlineExceeded.
  kResourceExhausted = 9,
  kUnavailable = 10,
  kInternal = 11,
};

// One operation in flight. The client recycles slots by its own index; number = previous number
// + 1.
struct Slot {
  std::atomic<uint32_t>
      word;  // Daemon, seq_cst: number of the last finished operation. Shared futex.
  std::atomic<uint32_t>
      waiters;  // Client, seq_cst: > 0 while somebody sleeps on `word` (the daemon wakes then).
                // Each thread counts 1, and kBlockedWaiter more if its wait has no time limit.
  std::atomic<uint32_t> code;  // Daemon, relaxed, before `word`: Code of that operation.
  std::atomic<uint32_t>
      error;  // Daemon, relaxed, before `word`: serial of its error record, 0 if none.
};
static_assert(sizeof(Slot) == 16);
inline constexpr uint32_t kBlockedWaiter = 1 << 16;

// What went wrong.
struct ErrorDetails {
  int32_t rank;       // The rank at fault, -1 if none.
  int32_t exit_code;  // Of that rank's process; -1 if it did not exit.
  int32_t signal;     // That ended it; 0 if none.
  char node[112];     // Zero-terminated, as are the texts.
  char message[2944];
  char stderr_tail[1024];
};

// The daemon writes record serial % kErrorRecordCount; a reader copies the details and then checks
// that `serial` has not moved on (else only the code is known). They may be rewritten meanwhile, so
// both copy them by common/base/word_copy.h.
struct ErrorRecord {
  std::atomic<uint32_t> serial;  // Daemon, release, last; 0 while being written.
  ErrorDetails details;          // Daemon, relaxed, word by word.
};
static_assert(sizeof(ErrorRecord) == 4096);

struct ArenaHeader {
  // Constants, written by the worker before anybody else sees the segment.
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;
  uint64_t segment_bytes;
  uint64_t queue_offset;
  uint64_t slots_offset;
  uint64_t errors_offset;
  uint64_t slab_offset;
  uint32_t slot_count;
  uint32_t error_record_count;
  uint8_t reserved0[64];

  // Client's line.
  alignas(128) std::atomic<uint64_t> head;  // Client, seq_cst: descriptors published so far
                                            // (queue[i % slot_count]).
  std::atomic<uint32_t> threads;  // Client, relaxed: threads of it that have ever submitted or
                                  // slept in a slot. One that has ended still counts: a program
                                  // that starts some may start more.

  // Daemon's lines.
  alignas(128) std::atomic<uint64_t> tail;  // Daemon, release: descriptors copied so far.
  alignas(128)
      std::atomic<uint32_t> sleeping;  // Daemon, seq_cst: 1 = ring the doorbell after publishing.
  std::atomic<uint32_t>
      poison;  // Daemon, seq_cst, then futex wake: a Code; every pending and later operation of
               // this arena has failed with it (record `poison_error`). 0: alive.
  std::atomic<uint32_t> poison_error;  // Daemon, relaxed, before `poison`.
  std::atomic<uint64_t>
      incarnation;  // Daemon, release: changes with each daemon process that serves this arena.
  std::atomic<uint64_t> generation;  // Daemon, release: the job's current generation.
  std::atomic<uint64_t> sequence;    // Daemon, relaxed, before the client is welcomed and before it
                                     // is told that a join is over or that what waited has been
                                     // withdrawn: the number that this rank's clients have come to
                                     // in group 0.

  // Counters of this rank, for ringd.stats(). Daemon, relaxed.
  alignas(128) std::atomic<uint64_t> operations;
  std::atomic<uint64_t> bytes_reduced;
  std::atomic<uint64_t> negotiation_messages;
  std::atomic<uint64_t> stalls;
};
inline constexpr uint32_t kHeaderBytes = 4096;
static_assert(sizeof(ArenaHeader) <= kHeaderBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

struct Offsets {
  uint64_t queue, slots, errors, slab;
};
// Where the parts of segment 0 lie: the worker writes them, and both readers insist on these very
// numbers.
constexpr Offsets SegmentOffsets() {
  Offsets offsets{};
  offsets.queue = kHeaderBytes;
  offsets.slots = offsets.queue + uint64_t{kSlotCount} * sizeof(Descriptor);
  offsets.errors = offsets.slots + uint64_t{kSlotCount} * sizeof(Slot);
  offsets.slab = offsets.errors + uint64_t{kErrorRecordCount} * sizeof(ErrorRecord);
  return offsets;
}
static_assert(SegmentOffsets().slab % 4096 == 0);
static_assert(SegmentOffsets().slab < kMinBytes);

}  // namespace ringd::arena

#endif  // RINGD_PROTO_ARENA_H_
