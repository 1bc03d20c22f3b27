// Messages that travel with file descriptors over two Unix sockets (SOCK_SEQPACKET, one message a
// packet).
//
//   worker (or a C++ program that attaches by itself) -> daemon, on RUN_DIR/arena.sock:
//     ArenaOffer + [memfd]            -> ArenaAccept + [doorbell] or + [doorbell, shared segment]
//                                        for segment 0, ArenaAccept + [] for others
//     ClientAttached + [pidfd]        -> ArenaAccept
//     ClientDetached                  -> ArenaAccept
//   client (libringd.so) -> worker, on the socket named in RINGD_SOCKET:
//     ClientHello                     -> Welcome + [segment 0, doorbell], or + [segment 0,
//                                        doorbell, shared segment], or Refusal
//     NeedSegment                     -> SegmentGrant + [memfd], or Refusal
//     NeedToken                       -> TokenGrant, or Refusal (client/session: a program that
//     attaches by itself)
//   The shared segment (segment.h) is there for every client of a job, or for none.
//   The client's connection stays open while it lives: its end is the client's shutdown.
//
// Fixed-width, little endian, zero-filled; `kind` first. Readers check the packet's exact size and
// drop whoever sends anything else.
#ifndef RINGD_PROTO_ATTACH_H_
#define RINGD_PROTO_ATTACH_H_

#include <cstdint>

namespace ringd::attach {

inline constexpr uint32_t kVersion = 2;
inline constexpr uint32_t kTextBytes = 1024;
inline constexpr uint32_t kNameBytes = 128;
inline constexpr uint32_t kSessionBytes = 32;

enum class Kind : uint32_t {
  kInvalid = 0,
  kArenaOffer = 1,
  kArenaAccept = 2,
  kClientAttached = 3,
  kClientDetached = 4,
  kClientHello = 16,
  kWelcome = 17,
  kNeedSegment = 18,
  kSegmentGrant = 19,
  kNeedToken = 20,
  kTokenGrant = 21,
  kRefusal = 31,
};

struct Header {
  Kind kind;
  uint32_t version;  // kVersion; a mismatch is answered by a Refusal that names both versions.
};

struct ArenaOffer {
  Header header;
  uint8_t session[kSessionBytes];  // Secret from AttachResponse: proves that this connection
                                   // belongs to that Attach.
  uint64_t arena;    // Chosen by the worker; counts the clients of this rank: 1, 2, ...
  uint32_t segment;  // 0 first, then 1, 2, ...
  uint32_t reserved;
  uint64_t bytes;
};
static_assert(sizeof(ArenaOffer) == 64);

struct ArenaAccept {
  Header header;
  uint32_t code;  // arena::Code.
  uint32_t reserved;
  char text[kTextBytes];
};
static_assert(sizeof(ArenaAccept) == 16 + kTextBytes);

struct ClientAttached {  // The client's pidfd rides along: its death is the daemon's to notice.
  Header header;
  uint8_t session[kSessionBytes];
  uint64_t arena;
  int32_t pid;
  uint32_t reserved;
};
static_assert(sizeof(ClientAttached) == 56);

struct ClientDetached {
  Header header;
  uint8_t session[kSessionBytes];
  uint64_t arena;
};
static_assert(sizeof(ClientDetached) == 48);

struct ClientHello {
  Header header;
  uint32_t layout_version;  // arena::kLayoutVersion.
  uint32_t abi_version;     // RINGD_ABI_VERSION.
  int32_t pid;
  uint32_t reserved;
};
static_assert(sizeof(ClientHello) == 24);

struct Welcome {
  Header header;
  int32_t rank, size, local_rank, local_size, node_rank, node_count;
  uint64_t generation;
  uint64_t arena_bytes;
  uint64_t arena_max_bytes;  // All segments together.
  char job[kNameBytes];
  char node[kNameBytes];
};
static_assert(sizeof(Welcome) == 56 + 2 * kNameBytes);

struct NeedSegment {
  Header header;
  uint64_t bytes;  // At least; rounded up by the worker.
};
static_assert(sizeof(NeedSegment) == 16);

struct SegmentGrant {
  Header header;
  uint32_t segment;
  uint32_t reserved;
  uint64_t bytes;
};
static_assert(sizeof(SegmentGrant) == 24);

struct NeedToken {
  Header header;
};
struct TokenGrant {
  Header header;
  int32_t rank;
  uint32_t token_bytes;
  uint8_t token[64];
  char job[kNameBytes];
  char daemon_socket[kNameBytes];  // gRPC, "unix:/path".
  char arena_socket[kNameBytes];   // Path.
};
static_assert(sizeof(TokenGrant) == 80 + 3 * kNameBytes);

struct Refusal {
  Header header;
  uint32_t code;  // arena::Code.
  int32_t pid;    // Who holds the rank, where that is the reason; else 0.
  char text[kTextBytes];
};
static_assert(sizeof(Refusal) == 16 + kTextBytes);

}  // namespace ringd::attach

#endif  // RINGD_PROTO_ATTACH_H_
