// How streams are cut: blocks, pieces, segments; and memory for them.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_PIECES_H_
#define RINGD_DAEMON_COLLECTIVES_RING_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

namespace ringd::daemon {

// One data frame: large enough that headers and system calls don't show, small enough to stay in
// the cache between receiving, reducing and sending. A multiple of every element's size.
inline constexpr uint32_t kRingPieceBytes = 256u << 10;

// Aligned to a vector's width.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes))) {}
  std::byte* get() const { return data_.get(); }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

// Element where segment `index` of `segment_count` begins; count for index == segment_count. Equal
// shares; for large tensors rounded to whole cache lines.
uint64_t SegmentBegin(uint64_t count, size_t element_bytes, int segment_count, int index);

// a mod n in [0, n) also for a < 0, a >= -n.
constexpr int Wrap(int a, int n) { return (a + n) % n; }

// A run of bytes that a stream carries whole.
struct Block {
  int step = 0;
  int from = 0;  // Node where it begins, and where it ends: all-to-all only.
  int to = 0;
  uint64_t begin = 0;  // In the tensor, or in what lies between `from` and `to`.
  uint64_t bytes = 0;
};

// Walks a stream of blocks piece by piece, past the empty ones.
class PieceCursor {
 public:
  using BlockAt = std::function<Block(uint64_t index)>;
  PieceCursor(uint64_t block_count, BlockAt block_at);

  bool at_end() const { return index_ == block_count_; }
  // The piece: REQUIRES: !at_end(), but for bytes, which is 0 there.
  const Block& block() const { return block_; }
  uint64_t begin() const { return block_.begin + in_block_; }
  uint32_t bytes() const {
    if (at_end()) return 0;
    const uint64_t left = block_.bytes - in_block_;
    return left < kRingPieceBytes ? static_cast<uint32_t>(left) : kRingPieceBytes;
  }
  uint64_t stream_offset() const { return stream_offset_; }
  void Advance();

 private:
  void SkipEmpty();

  uint64_t block_count_;
  BlockAt block_at_;
  uint64_t index_ = 0;
  Block block_;
  uint64_t in_block_ = 0;
  uint64_t stream_offset_ = 0;
};

// Bytes of the whole stream.
uint64_t StreamBytes(uint64_t block_count, const PieceCursor::BlockAt& block_at);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_PIECES_H_
