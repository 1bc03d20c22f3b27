// The one interface of all collectives: what the engine starts, whatever carries it out.
#ifndef RINGD_DAEMON_COLLECTIVES_COMMUNICATOR_H_
#define RINGD_DAEMON_COLLECTIVES_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "common/reduce/reduce.h"
#include "common/reduce/wire_dtype.h"
#include "proto/arena.h"

namespace ringd::daemon {

// Which ranks of a group live where. Ranks are dense and follow node order: node k has the ranks
// [first_rank[k], first_rank[k] + rank_count[k]).
struct GroupLayout {
  struct Node {
    std::string name;
    int first_rank = 0;
    int rank_count = 0;
  };
  std::vector<Node> nodes;
  int node_index = 0;  // This node.
  // Ranks of the job by rank of the group; empty: the same numbers.
  std::vector<int> members;

  int size() const { return nodes.empty() ? 0 : nodes.back().first_rank + nodes.back().rank_count; }
  int local_count() const { return nodes[node_index].rank_count; }
  int first_local_rank() const { return nodes[node_index].first_rank; }
  int node_count() const { return static_cast<int>(nodes.size()); }
  // What messages call a rank.
  int JobRank(int rank) const { return members.empty() ? rank : members[rank]; }
};

// One operation in its channel. Channels are independent; inside one, operations are numbered 1, 2,
// 3, ...
struct OperationKey {
  uint64_t channel = 0;
  uint64_t sequence = 0;
  friend bool operator==(const OperationKey&, const OperationKey&) = default;
};

// Memory of one local rank. input may equal output (in place); otherwise they don't overlap and the
// input is only read. Null where the operation has none (barrier; broadcast's input on ranks other
// than the root).
struct RankBuffer {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

// One collective operation, immutable once started. Shapes are flattened; `counts` and `count` are
// elements.
//   allreduce      count in, count out; reduction, scaling (the engine puts Average's divisor
//   there) allgather      counts[rank] in, sum(counts) out, in rank order broadcast      count;
//   root's input (or its output when in place) to every rank's output reducescatter  sum(counts)
//   in, counts[rank] out: the rank's slice of the reduction alltoall       counts[from * size +
//   to]; input ordered by `to`, output by `from` barrier        nothing
//   reduce         allreduce whose root alone has an output
//   gather         allgather whose root alone has an output
//   scatter        sum(counts) in at the root, counts[rank] out
// For plan registration and other agreement-only operations: kBarrier with a signature.
struct Collective {
  Operation operation = Operation::kInvalid;
  DType dtype = DType::kInvalid;
  Reduction reduction = Reduction::kNone;
  WireDType wire = WireDType::kSame;  // allreduce: between nodes. One node alone doesn't narrow.
  Scaling scaling;
  int root = 0;
  uint64_t count = 0;
  std::vector<uint64_t> counts;
  std::vector<RankBuffer> ranks;  // This node's ranks, by local rank.
  uint64_t signature = 0;         // Must be the same on all nodes.
  std::string description;  // For the message when it is not: "rank 0: allreduce float32[10] sum".
};

// Why an operation failed, or that it did not.
struct Outcome {
  arena::Code code = arena::Code::kOk;
  std::string message;
  int rank = -1;  // At fault.
  std::string node;
  int exit_code = -1;
  int signal = 0;
  std::string stderr_tail;
  bool ok() const { return code == arena::Code::kOk; }
};

// Carries out the collectives of one group of one generation, together with its peers on the other
// nodes.
//
// Life: created for a generation, destroyed with it; destroying it fails what is in flight with
// kAborted semantics of the caller's choice: call AbortFrom for every channel first. Ownership:
// Collective is shared until done; the buffers belong to the caller and stay valid until `done` has
// run. Thread-bound: the engine's thread. `done` and the failure handler run on it, inside
// Progress, Start or Abort. Failure: every operation's Outcome. After one fails, later ones of the
// channel go on, except after AbortFrom.
class Communicator {
 public:
  using Done = std::function<void(const Outcome&)>;
  // A peer node says that an operation fails which may not have been started here (yet). from: and
  // all later ones.
  using PeerFailure = std::function<void(OperationKey key, bool from, const Outcome&)>;

  virtual ~Communicator() = default;

  // COLLECTIVE: every node of the group starts the same operations of a channel in the same order,
  // each when all its local ranks have submitted. Several may be in flight. `done` runs exactly
  // once: no buffer is used after that.
  virtual void Start(OperationKey key, std::shared_ptr<const Collective> collective, Done done) = 0;

  // Does a bounded piece of work (at most about 1 MB of reduction or one readable socket). Returns
  // whether it did anything; false means that nothing can be done until a socket is ready or
  // another operation starts.
  virtual bool Progress() = 0;

  // Makes the operation fail here (if it was started) and on all peers, started there or not.
  // Idempotent.
  virtual void Abort(OperationKey key, const Outcome& outcome) = 0;
  // The same for it and all later operations of its channel: a rank has left.
  virtual void AbortFrom(OperationKey key, const Outcome& outcome) = 0;

  virtual void set_peer_failure_handler(PeerFailure handler) = 0;

  // Notes: what nodes tell one another beside the operations. Each goes to the right neighbour, in
  // the order of the calls; at most wire::kMaxTextBytes. Nobody gets one in a group of one node.
  // The handler's error breaks the connection.
  using NoteHandler = std::function<absl::Status(const std::string& note)>;
  virtual void set_note_handler(NoteHandler) {}
  virtual void SendNote(std::string) {}

  // Counters since creation.
  struct Counters {
    uint64_t bytes_sent = 0;  // Payload on the network.
    uint64_t bytes_received = 0;
    uint64_t frames_sent = 0;
  };
  virtual Counters counters() const { return {}; }
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_COMMUNICATOR_H_
