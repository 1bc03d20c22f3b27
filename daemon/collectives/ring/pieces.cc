#include "daemon/collectives/ring/pieces.h"

#include <algorithm>
#include <utility>

namespace ringd::daemon {
namespace {

constexpr uint64_t kLineBytes = 64;
// Rounding to lines moves less than a thousandth of a segment from there on.
constexpr uint64_t kMinRoundedSegmentBytes = 64u << 10;

}  // namespace

uint64_t SegmentBegin(uint64_t count, size_t element_bytes, int segment_count, int index) {
  const auto segments = static_cast<uint64_t>(segment_count);
  const auto position = static_cast<uint64_t>(index);
  if (position == segments) return count;
  const bool is_large = count / segments >= kMinRoundedSegmentBytes / element_bytes;
  const uint64_t unit = is_large ? kLineBytes / element_bytes : 1;
  const uint64_t units = count / unit;
  return unit * (position * (units / segments) + std::min(position, units % segments));
}

PieceCursor::PieceCursor(uint64_t block_count, BlockAt block_at)
    : block_count_(block_count), block_at_(std::move(block_at)) {
  if (block_count_ > 0) block_ = block_at_(0);
  SkipEmpty();
}

void PieceCursor::Advance() {
  const uint32_t piece = bytes();
  in_block_ += piece;
  stream_offset_ += piece;
  SkipEmpty();
}

void PieceCursor::SkipEmpty() {
  while (index_ < block_count_ && in_block_ == block_.bytes) {
    in_block_ = 0;
    if (++index_ < block_count_) block_ = block_at_(index_);
  }
}

uint64_t StreamBytes(uint64_t block_count, const PieceCursor::BlockAt& block_at) {
  uint64_t total = 0;
  for (uint64_t index = 0; index < block_count; ++index) total += block_at(index).bytes;
  return total;
}

}  // namespace ringd::daemon
