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

// One operation on one node: a byte stream to the right neighbour and one from the left, both cut
// into pieces of at most kRingPieceBytes by a schedule that both ends compute. Pieces are taken,
// and received, strictly in order.
//
// Life: Prepare until it returns true; then pieces; when both streams are over, Finish until it
// returns true. May be destroyed at any time once none of its pieces is with the link. Ownership:
// the collective and the scratch memory outlive it. Thread-bound: the communicator's.
class RingAlgorithm {
 public:
  virtual ~RingAlgorithm() = default;

  virtual uint64_t send_bytes() const = 0;
  virtual uint64_t receive_bytes() const = 0;

  // A bounded piece of local work before anything is sent or received; true when there is no more.
  virtual bool Prepare() { return true; }

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

  // A bounded piece of local work after the streams; true when there is no more.
  virtual bool Finish() { return true; }
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
  // Allreduces of tensors up to here: whole sums go once around the ring. All nodes' sums of one
  // fit a piece, else they don't.
  uint64_t gather_bytes = 0;
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
std::unique_ptr<RingAlgorithm> MakeRingAlltoall(const GroupLayout& layout,
                                                const Collective& collective);
std::unique_ptr<RingAlgorithm> MakeRingBarrier(const GroupLayout& layout);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_ALGORITHM_H_
