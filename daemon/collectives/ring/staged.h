// Operations whose bytes pass through a node that has no place for them: staging, and credit for
// it.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_STAGED_H_
#define RINGD_DAEMON_COLLECTIVES_RING_STAGED_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {

// Streams are cut into waves: each block sends at most kWavePieces before the next block's turn. A
// wave is half the staging: whatever the sizes of the blocks, the node that is furthest behind then
// finds room at its right neighbour, so the ring can't block (its neighbour holds at most the
// wave's block before and the one being sent).
inline constexpr uint32_t kStagingPieces = 8;
inline constexpr uint32_t kWavePieces = kStagingPieces / 2;
inline constexpr uint64_t kWaveBytes = uint64_t{kWavePieces} * kRingPieceBytes;
// Pieces of its own that a node prepares ahead.
inline constexpr uint32_t kOwnPieces = 2;

// A stream of blocks in one order at all nodes: what comes in as block k and does not end here goes
// out as the block after k in the outgoing stream's order. Each received piece takes a place of the
// staging until it is consumed or sent.
class StagedAlgorithm : public NeighbourAlgorithm {
 public:
  uint64_t send_bytes() const override { return send_bytes_; }
  uint64_t receive_bytes() const override { return receive_bytes_; }
  uint32_t NextSendBytes() const override { return send_.bytes(); }
  uint32_t NextReceiveBytes() const override { return receive_.bytes(); }
  uint64_t ReceiveLimit() const override { return granted_.stream_offset(); }

  const std::byte* TakePiece() override;
  void PieceSent() override;
  std::byte* ReceiveBuffer() override;
  void Received(const std::byte* data) override;

 protected:
  StagedAlgorithm(uint64_t block_count, const PieceCursor::BlockAt& sent,
                  const PieceCursor::BlockAt& received);

  // Whether a block of the outgoing stream begins here, and one of the incoming stream ends here.
  virtual bool BeginsHere(const Block& block) const = 0;
  virtual bool EndsHere(const Block& block) const = 0;
  // This node's own bytes [begin, begin + bytes) of the block: written to `place`, or where they
  // lie already.
  virtual const std::byte* MakeOwn(const Block& block, uint64_t begin, uint32_t bytes,
                                   std::byte* place) = 0;
  // A piece that goes on to the right.
  virtual void Pass(const Block& block, uint64_t begin, uint32_t bytes, std::byte* data) = 0;
  // A piece that ends here.
  virtual void Consume(const Block& block, uint64_t begin, uint32_t bytes, std::byte* data) = 0;

 private:
  // A piece that is being sent, and the place that it takes.
  struct Taken {
    std::byte* place = nullptr;
    bool is_own = false;
  };

  void ReleaseStaging(std::byte* place);

  PieceCursor send_;
  PieceCursor receive_;
  PieceCursor granted_;  // Ahead of receive_ by as many pieces as there are free places.
  uint64_t send_bytes_;
  uint64_t receive_bytes_;
  std::optional<AlignedBuffer> staging_memory_;
  std::optional<AlignedBuffer> own_memory_;
  std::vector<std::byte*> free_staging_;
  std::vector<std::byte*> free_own_;
  std::byte* receiving_ = nullptr;
  std::deque<std::byte*> passing_;
  std::deque<Taken> taken_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_STAGED_H_
