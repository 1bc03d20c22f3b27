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
//   Where another launcher (torchrun, mpirun, srun) started the ranks, both over the abstract
//   socket AttachSocketName of `ringd-worker attach`, one a job and node: client (libringd.so) ->
//   attach:
//     RankHello                       -> RankPlace once all ranks of the node are there, or Refusal
//     RankGoodbye                     -> nothing: the client has shut ringd down
//   `ringd-worker stand-in`, which the rank's worker started -> attach:
//     StandInHello                    -> RankEnded when the rank's process has ended
//   The shared segment (segment.h) is there for every client of a job, or for none.
//   The client's connection stays open while it lives: its end is the client's shutdown.
//
// Fixed-width, little endian, zero-filled; `kind` first. Readers check the packet's exact size and
// drop whoever sends anything else.
#ifndef RINGD_PROTO_ATTACH_H_
#define RINGD_PROTO_ATTACH_H_

#include <cstddef>
#include <cstdint>
#include <string>

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
  kRankHello = 32,
  kRankPlace = 33,
  kRankGoodbye = 34,
  kStandInHello = 35,
  kRankEnded = 36,
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

struct Place {
  int32_t rank, size, local_rank, local_size;
  bool operator==(const Place&) const = default;
};

struct RankHello {
  Header header;
  Place place;  // As the launcher says.
  int64_t timeout_us;
};
static_assert(sizeof(RankHello) == 32);

struct RankPlace {
  Header header;
  char worker_socket[kNameBytes];  // For this rank's ClientHello.
};
static_assert(sizeof(RankPlace) == 8 + kNameBytes);

struct RankGoodbye {
  Header header;
};

struct StandInHello {
  Header header;
  Place place;  // As ringd says.
  char worker_socket[kNameBytes];
};
static_assert(sizeof(StandInHello) == 24 + kNameBytes);

struct RankEnded {  // The stand-in ends likewise.
  Header header;
  int32_t exit_code;
  int32_t signal;         // 0: it exited.
  char text[kTextBytes];  // For the stand-in's stderr; may be empty.
};
static_assert(sizeof(RankEnded) == 16 + kTextBytes);

// `ringd-worker attach` of one job and user on a node (by its number in the job): in the abstract
// namespace, so that nothing can be left behind. Both sides check the other's uid.
inline std::string AttachSocketName(uint32_t uid, const std::string& job, int32_t node) {
  constexpr size_t kMaxName = 107;
  std::string name = "ringd/attach/" + std::to_string(uid) + "/" + std::to_string(node) + "/" + job;
  name.insert(name.begin(), '\0');
  if (name.size() <= kMaxName) return name;
  uint64_t hash = 14695981039346656037u;  // FNV-1a.
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  const std::string digits = std::to_string(hash);
  return name.substr(0, kMaxName - digits.size() - 1) + "-" + digits;
}

}  // namespace ringd::attach

#endif  // RINGD_PROTO_ATTACH_H_
