// Frames between daemons, on the data port (TCP). Little endian.
//
// Connection: node i dials its right neighbour i + 1 (mod n), once for each generation of a job;
// payload flows to the right only, READY and acknowledgements to the left, floods (ABORT, LEAVE)
// both ways. Handshake, before the first frame, with K = the generation's key (32 bytes, from the
// scheduler) and both nonces random:
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
// sends one empty data frame there: each node hears of both neighbours before it completes.
#ifndef RINGD_PROTO_WIRE_H_
#define RINGD_PROTO_WIRE_H_

#include <cstdint>

namespace ringd::wire {

inline constexpr uint32_t kMagic = 0x64676e72;  // "rngd"
inline constexpr uint16_t kVersion = 1;
inline constexpr uint32_t kMaxPayloadBytes = 1u << 20;  // One data frame.
inline constexpr uint32_t kMaxTextBytes = 1u << 20;     // One flood: plans are compared by text.
// A connection, over all operations without READY.
inline constexpr uint32_t kEagerWindowBytes = 1u << 20;
inline constexpr uint32_t kMaxEarlyOperations = 4096;
// One operation without READY.
inline constexpr uint32_t kMaxEagerFrames = 8;
// kAbortFrom only: the ring is broken.
inline constexpr uint32_t kAllChannels = 0xffffffff;

struct Hello {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  char job[64];  // Zero-terminated.
  uint64_t generation;
  uint32_t from_node;  // Index in the generation's node order.
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
};

// Precedes each frame. Its receiver drops the connection when a field is out of range, the
// generation is not the connection's own, or the payload is longer than the operation expects.
struct FrameHeader {
  uint32_t magic;
  FrameType type;
  uint16_t flags;
  uint64_t generation;
  uint32_t channel;  // 0: the job's own sequence; groups and plans have numbers of their own
                     // (ChannelId below).
  uint32_t payload_bytes;
  uint64_t sequence;   // 1, 2, 3, ... in the channel.
  uint64_t signature;  // Metadata hash, tag included.
  uint64_t offset;
  uint32_t origin;  // Floods: node that began it; a node that meets its own flood again drops it.
  uint32_t flood;   // Floods: origin's counter; a flood seen before is dropped.
};
static_assert(sizeof(FrameHeader) == 56);

// Channels: each is one sequence of operations, in order; different channels run independently of
// each other.
constexpr uint32_t ChannelId(uint32_t group, uint32_t plan) { return (group << 16) | plan; }

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
