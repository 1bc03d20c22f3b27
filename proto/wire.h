// Frames between daemons, on the data port (TCP). Little endian.
//
// Connection: node i dials its right neighbour i + 1 (mod n), and, of four nodes or more, those 2,
// 4, 8, ... < n places to its right (shortcuts), once for each generation of a job and for each of
// its groups (over the nodes that have members), and the two nodes of a pair dial one another when
// messages are to be sent; payload flows to the right only, READY and acknowledgements to the left,
// notes to the right neighbour, floods (ABORT, LEAVE) both ways. Handshake, before the first
// frame, with K = the generation's key (32 bytes, from the scheduler) and both nonces random:
//   dialler  -> Hello{nonce_a}
//   acceptor -> Challenge{nonce_b, HMAC-SHA256(K, "ringd-accept" | Hello | nonce_b)}
//   dialler  -> Proof{HMAC-SHA256(K, "ringd-dial" | Hello | nonce_b)}
// Whoever fails, or does not finish within the handshake time limit, is dropped and logged; nothing
// of it reaches a job.
//
// Flow: a receiver announces by READY that operation (channel, sequence) has started on its node
// and how much of the operation's stream it can take (further READYs raise that); payload of an
// operation whose READY has not come is sent only while it fits the eager window, so that early
// frames can always be stored, and a slow operation never blocks another behind it. READY and data
// carry the signature: the neighbour compares. An operation that has nothing to send to the right
// sends one empty data frame there: each node hears of both neighbours before it completes. An
// operation may have a stream of its own, with READY, offsets and eager window, on each shortcut;
// where there is nothing to send, nothing goes.
#ifndef RINGD_PROTO_WIRE_H_
#define RINGD_PROTO_WIRE_H_

#include <cstdint>

namespace ringd::wire {

inline constexpr uint32_t kMagic = 0x64676e72;  // "rngd"
inline constexpr uint16_t kVersion = 5;
inline constexpr uint32_t kMaxPayloadBytes = 1u << 20;  // One data frame.
inline constexpr uint32_t kMaxTextBytes = 1u << 20;     // One flood: plans are compared by text.
// A connection, over all operations without READY.
inline constexpr uint32_t kEagerWindowBytes = 1u << 20;
inline constexpr uint32_t kMaxEarlyOperations = 4096;
// One operation without READY.
inline constexpr uint32_t kMaxEagerFrames = 8;
// kAbortFrom only: the ring is broken.
inline constexpr uint64_t kAllChannels = ~uint64_t{0};
// The daemons' own operations, before those of others: they measure the ring.
inline constexpr uint64_t kTuningChannel = uint64_t{1} << 60;
// Hello::group of the connections that carry messages (send, recv) between two nodes.
inline constexpr uint16_t kMessages = 0xffff;

struct Hello {
  uint32_t magic;
  uint16_t version;
  uint16_t group;  // Whose ring; 0: the job's. kMessages: messages between two nodes.
  char job[64];    // Zero-terminated.
  uint64_t generation;
  uint32_t from_node;  // Index in the generation's node order, whatever the group.
  uint32_t to_node;
  uint8_t nonce[32];
};
static_assert(sizeof(Hello) == 120);

struct Challenge {
  uint8_t nonce[32];
  uint8_t mac[32];
};
struct Proof {
  uint8_t mac[32];
};
static_assert(sizeof(Challenge) == 64 && sizeof(Proof) == 32);

enum class FrameType : uint16_t {
  kInvalid = 0,
  kReady = 1,      // No payload. signature set; offset: stream bytes that may be sent in all.
  kData = 2,       // payload_bytes of the operation's byte stream, at `offset` of it.
  kAbort = 3,      // Flood. Operation (channel, sequence) fails; payload: an Failure record.
  kAbortFrom = 4,  // Flood. That operation and all later ones of its channel fail.
  kPing = 5,       // Idle heartbeat; no payload.
  kNote = 6,       // To the right. Payload: what the engines tell one another beside operations
                   // (daemon/engine/names/notes.h).
};

// Precedes each frame. Its receiver drops the connection when a field is out of range, the
// generation is not the connection's own, or the payload is longer than the operation expects.
struct FrameHeader {
  uint32_t magic;
  FrameType type;
  uint16_t flags;
  uint64_t generation;
  uint64_t channel;   // 0: the job's own sequence; groups, plans and messages have numbers of their
                      // own (below).
  uint64_t sequence;  // 1, 2, 3, ... in the channel.
  uint64_t signature;  // Metadata hash, tag included.
  uint64_t offset;
  uint32_t payload_bytes;
  uint32_t origin;  // Floods: node that began it; a node that meets its own flood again drops it.
  uint32_t flood;   // Floods: origin's counter; a flood seen before is dropped.
  uint32_t reserved;
};
static_assert(sizeof(FrameHeader) == 64);

// Channels: each is one sequence of operations, in order; different channels run independently of
// each other.
constexpr uint64_t ChannelId(uint32_t group, uint32_t plan) {
  return (uint64_t{group} << 16) | plan;
}
// In the place of a plan: operations that are ordered by name.
inline constexpr uint32_t kNamed = 0xffff;
constexpr uint32_t ChannelGroup(uint64_t channel) { return (channel >> 16) & 0xffff; }
constexpr uint32_t ChannelPlan(uint64_t channel) { return channel & 0xffff; }

// On the connections between two nodes: messages of one pair of ranks with one tag. from_first:
// from the node that comes first in the generation's order. from, to: local ranks, < 64.
constexpr uint64_t MessageChannelId(uint32_t group, bool from_first, uint32_t from, uint32_t to,
                                    uint32_t tag) {
  return uint64_t{1} << 63 | uint64_t{from_first} << 62 | (uint64_t{group} & 0xffff) << 46 |
         uint64_t{from & 0x3f} << 38 | uint64_t{to & 0x3f} << 32 | tag;
}
constexpr bool IsMessageChannel(uint64_t channel) { return channel >> 63 == 1; }
// There, too: kAbortFrom of this channel says that the local rank has ended; what it had submitted
// is in the kAbortFrom frames before.
constexpr uint64_t EndedChannelId(bool on_first, uint32_t local_rank) {
  return uint64_t{1} << 61 | uint64_t{on_first} << 60 | local_rank;
}
constexpr bool IsEndedChannel(uint64_t channel) { return channel >> 61 == 1; }

// Payload of the floods: this record, then message, stderr tail, then description of the sender's
// operation.
struct Failure {
  uint32_t code;  // arena::Code.
  int32_t rank;
  int32_t exit_code;
  int32_t signal;
  uint32_t message_bytes;
  uint32_t tail_bytes;
  uint32_t description_bytes;
  uint32_t node_bytes;  // Name of the node at fault, after the description.
};
static_assert(sizeof(Failure) == 32);

}  // namespace ringd::wire

#endif  // RINGD_PROTO_WIRE_H_
