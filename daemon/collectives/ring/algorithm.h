// What one operation sends, receives and computes on this node; the communicator moves the bytes.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_ALGORITHM_H_
#define RINGD_DAEMON_COLLECTIVES_RING_ALGORITHM_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/collectives/communicator.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {

// A byte stream to a node on the right and one from a node on the left, both cut into pieces of at
// most kRingPieceBytes by a schedule that both ends compute. Pieces are taken, and received,
// strictly in order. Thread-bound: the communicator's.
class RingStream {
 public:
  virtual ~RingStream() = default;

  virtual uint64_t send_bytes() const = 0;
  virtual uint64_t receive_bytes() const = 0;

  // Bytes of the next piece to send; 0 after the last. The stream's offset is the caller's to
  // count.
  virtual uint32_t NextSendBytes() const = 0;
  // The next piece, reduced on demand; null if it isn't there yet. Valid until its PieceSent.
  virtual const std::byte* TakePiece() = 0;
  // The oldest piece taken has been sent.
  virtual void PieceSent() {}

  // Bytes of the next piece to receive; 0 after the last.
  virtual uint32_t NextReceiveBytes() const = 0;
  // Where to put it: the same place until Received.
  virtual std::byte* ReceiveBuffer() = 0;
  // The piece has come, to ReceiveBuffer() or to other memory (then it is copied).
  virtual void Received(const std::byte* data) = 0;
  // Bytes of the stream that can be received so far in all. Grows.
  virtual uint64_t ReceiveLimit() const { return receive_bytes(); }
};

// One operation on one node: its streams. Stream 0 is that between neighbours; stream k goes to the
// node 2^k places to the right.
//
// Life: Prepare until it returns true; then pieces; when all streams are over, Finish until it
// returns true. May be destroyed at any time once none of its pieces is with a link. Ownership:
// the collective and the scratch memory outlive it. Thread-bound: the communicator's.
class RingAlgorithm {
 public:
  virtual ~RingAlgorithm() = default;

  // A bounded piece of local work before anything is sent or received; true when there is no more.
  virtual bool Prepare() { return true; }

  virtual int stream_count() const = 0;
  virtual RingStream* stream(int index) = 0;

  // A bounded piece of local work after the streams; true when there is no more.
  virtual bool Finish() { return true; }
};

// One whose bytes go from neighbour to neighbour.
class NeighbourAlgorithm : public RingAlgorithm, public RingStream {
 public:
  int stream_count() const override { return 1; }
  RingStream* stream(int) override { return this; }
};

// Memory that the operations of one communicator share: none needs it from one call to the next,
// but for the piece that is being received.
struct RingScratch {
  AlignedBuffer received{kRingPieceBytes};
  AlignedBuffer local{kRingPieceBytes};
  AlignedBuffer fold{kRingPieceBytes};
  AlignedBuffer wide{kRingPieceBytes};
};

// Which way operations take, the same on all nodes of a ring. The result's bits don't depend on it.
struct RingTable {
  // Allreduces of tensors up to here: each node's sum goes whole to all nodes, if all of them fit a
  // piece.
  uint64_t gather_bytes = 0;
  // Broadcasts up to here: a tree.
  uint64_t tree_bytes = 0;
  // Links to the nodes 2, 4, ... places away. 0: all goes from neighbour to neighbour.
  int shortcut_count = 0;
};

// INVALID_ARGUMENT: the collective can't be carried out; the message says why.
absl::StatusOr<std::unique_ptr<RingAlgorithm>> MakeRingAlgorithm(const GroupLayout& layout,
                                                                 const Collective& collective,
                                                                 const RingTable& table,
                                                                 RingScratch* scratch);

// The single ones, for MakeRingAlgorithm, which has checked the collective.
std::unique_ptr<RingAlgorithm> MakeRingAllreduce(const GroupLayout& layout,
                                                 const Collective& collective,
                                                 RingScratch* scratch);
std::unique_ptr<RingAlgorithm> MakeRingGatherAllreduce(const GroupLayout& layout,
                                                       const Collective& collective,
                                                       RingScratch* scratch);
std::unique_ptr<RingAlgorithm> MakeDoublingAllreduce(const GroupLayout& layout,
                                                     const Collective& collective,
                                                     int shortcut_count, RingScratch* scratch);
std::unique_ptr<RingAlgorithm> MakeRingNarrowAllreduce(const GroupLayout& layout,
                                                       const Collective& collective,
                                                       RingScratch* scratch);
std::unique_ptr<RingAlgorithm> MakeRingReduceScatter(const GroupLayout& layout,
                                                     const Collective& collective,
                                                     RingScratch* scratch);
std::unique_ptr<RingAlgorithm> MakeRingAllgather(const GroupLayout& layout,
                                                 const Collective& collective);
std::unique_ptr<RingAlgorithm> MakeRingBroadcast(const GroupLayout& layout,
                                                 const Collective& collective);
std::unique_ptr<RingAlgorithm> MakeTreeBroadcast(const GroupLayout& layout,
                                                 const Collective& collective, int shortcut_count);
std::unique_ptr<RingAlgorithm> MakeRingAlltoall(const GroupLayout& layout,
                                                const Collective& collective);
std::unique_ptr<RingAlgorithm> MakeRingBarrier(const GroupLayout& layout);
std::unique_ptr<RingAlgorithm> MakeDoublingBarrier(const GroupLayout& layout, int shortcut_count);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_ALGORITHM_H_
