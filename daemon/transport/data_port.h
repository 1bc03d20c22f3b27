// The node's one data port: authenticated connections between daemons (proto/wire.h).
#ifndef RINGD_DAEMON_TRANSPORT_DATA_PORT_H_
#define RINGD_DAEMON_TRANSPORT_DATA_PORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {

// Beside its neighbours, a node of a ring is connected with those 2, 4, 8, ... places to its right
// and left, so that what must reach all nodes needs log2(n) steps. Fewer than 4 nodes gain nothing.
constexpr int ShortcutCount(int node_count) {
  int count = 0;
  if (node_count < 4) return count;
  while ((2 << count) < node_count) ++count;
  return count;
}

// What a generation's ring needs from the transport.
struct RingOptions {
  std::string job;
  uint64_t generation = 0;
  std::string key;  // 32 bytes.
  int node_index = 0;
  int node_count = 0;  // >= 2.
  uint16_t group = 0;  // wire::Hello::group.
  // Of the ring's nodes: their indices in the generation. Empty: the same numbers.
  std::vector<int> nodes;
  std::string right_address;  // host:port of node (node_index + 1) % node_count.
  // Of the nodes 2, 4, ... places further: all of ShortcutCount, or on all nodes none.
  std::vector<std::string> shortcut_addresses;
  absl::Duration connect_timeout = absl::Seconds(30);
};

// A connection that another node has asked for, as far as it can be trusted yet: not at all.
struct RingRequest {
  std::string job;
  uint64_t generation = 0;
  uint16_t group = 0;
  int from_node = 0;  // In the generation.
};

// Two connected, authenticated, non-blocking TCP sockets; the owner closes them.
struct SocketPair {
  int right = -1;  // Dialled by us.
  int left = -1;   // Dialled by the node to the left.
};

struct RingSockets : SocketPair {
  std::vector<SocketPair> shortcuts;  // By RingOptions::shortcut_addresses.
};

// Listens on the node's data port and makes rings: for each generation one connection to the right
// neighbour (retried with backoff) and one from the left, and its shortcuts; the same for each
// group of a generation.
//
// Life: Create binds and listens; OpenRing any number of times; CloseRing forgets one that is not
// done yet. Ownership: sockets pass to the callback. The event loop outlives it. Thread-bound: the
// event loop's thread. Failure: OpenRing's callback gets DEADLINE_EXCEEDED (names the neighbour and
// what is missing), UNAUTHENTICATED (wrong key) or UNAVAILABLE. A connection that fails its
// handshake is dropped and logged; at most kMaxHandshakes (64) at once.
class DataPort {
 public:
  using RingDone = std::function<void(absl::StatusOr<RingSockets>)>;

  // address: "host:port"; port 0 picks a free one.  UNAVAILABLE: can't bind (names address and
  // cause).
  static absl::StatusOr<std::unique_ptr<DataPort>> Create(EventLoop* loop,
                                                          const std::string& address);
  virtual ~DataPort() = default;

  virtual int port() const = 0;
  virtual void OpenRing(const RingOptions& options, RingDone done) = 0;
  // peer: of the two nodes that wire::kMessages connects, the other one.
  virtual void CloseRing(const std::string& job, uint64_t generation, uint16_t group = 0,
                         int peer = 0) = 0;
  // `wanted` runs when somebody asks for a ring that is not being opened here; it may open it.
  virtual void set_wanted_handler(std::function<void(const RingRequest&)> wanted) = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_TRANSPORT_DATA_PORT_H_
