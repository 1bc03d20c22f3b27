#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/node_reduction.h"
#include "daemon/collectives/ring/staged.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kFinishBytes = 1 << 20;  // Moved by one Finish.

// Segment d is what the ranks of node d get. Node i sends its sum of segment i-1, adds its inputs
// to segments i-2, i-3,
// ... and passes them on; the last, i, is complete and its own. In waves, since inputs are only
// read.
//
// Steps of a wave: 0 .. n-2; what comes in step t < n-2 goes out in step t+1.
class RingReduceScatter : public StagedAlgorithm {
 public:
  RingReduceScatter(const GroupLayout& layout, const Collective& collective, RingScratch* scratch,
                    std::vector<uint64_t> rank_offsets, uint64_t wave_count)
      : StagedAlgorithm(
            wave_count * static_cast<uint64_t>(layout.node_count() - 1),
            [&layout, rank_offsets](uint64_t k) { return BlockOf(layout, rank_offsets, k, -1); },
            [&layout, rank_offsets](uint64_t k) { return BlockOf(layout, rank_offsets, k, -2); }),
        layout_(layout),
        collective_(collective),
        reduction_(collective, scratch),
        rank_offsets_(std::move(rank_offsets)) {
    for (const RankBuffer& rank : collective.ranks) {
      if (rank.output == rank.input && rank.output != nullptr) in_place_ = rank.output;
    }
  }

  static std::vector<uint64_t> RankOffsets(const GroupLayout& layout,
                                           const Collective& collective) {
    std::vector<uint64_t> offsets(layout.size() + 1, 0);
    for (int rank = 0; rank < layout.size(); ++rank) {
      offsets[rank + 1] = offsets[rank] + collective.counts[rank] * DTypeBytes(collective.dtype);
    }
    return offsets;
  }

  static uint64_t WaveCount(const GroupLayout& layout, const std::vector<uint64_t>& offsets) {
    uint64_t largest = 0;
    for (const GroupLayout::Node& node : layout.nodes) {
      largest =
          std::max(largest, offsets[node.first_rank + node.rank_count] - offsets[node.first_rank]);
    }
    return (largest + kWaveBytes - 1) / kWaveBytes;
  }

  // With an input in place, results wait in that input until all has been read; then they move to
  // their outputs, that input's own rank last.
  bool Finish() override {
    if (in_place_ == nullptr) return true;
    uint64_t budget = kFinishBytes;
    for (const bool is_holder : {false, true}) {
      for (size_t i = 0; i < collective_.ranks.size(); ++i) {
        if ((collective_.ranks[i].output == in_place_) != is_holder) continue;
        if (!MoveResult(i, &budget)) return false;
      }
    }
    return true;
  }

 protected:
  bool BeginsHere(const Block& block) const override { return block.step == 0; }
  bool EndsHere(const Block& block) const override {
    return block.step == layout_.node_count() - 2;
  }

  const std::byte* MakeOwn(const Block&, uint64_t begin, uint32_t bytes,
                           std::byte* place) override {
    if (reduction_.IsInput()) return collective_.ranks[0].input + begin;
    reduction_.SumInputs(begin, bytes, place);
    return place;
  }

  void Pass(const Block&, uint64_t begin, uint32_t bytes, std::byte* data) override {
    reduction_.Add(data, begin, bytes, {data});
  }

  void Consume(const Block&, uint64_t begin, uint32_t bytes, std::byte* data) override {
    if (in_place_ != nullptr) {
      reduction_.AddLast(data, begin, bytes, {in_place_ + begin});
      return;
    }
    for (size_t i = 0; i < collective_.ranks.size(); ++i) {
      const uint64_t from = std::max(begin, OffsetOf(i));
      const uint64_t to = std::min(begin + bytes, OffsetOf(i + 1));
      if (from >= to) continue;
      reduction_.AddLast(data + (from - begin), from, static_cast<uint32_t>(to - from),
                         {collective_.ranks[i].output + (from - OffsetOf(i))});
    }
  }

 private:
  static Block BlockOf(const GroupLayout& layout, const std::vector<uint64_t>& offsets, uint64_t k,
                       int shift) {
    const int node_count = layout.node_count();
    const uint64_t wave = k / static_cast<uint64_t>(node_count - 1);
    Block block;
    block.step = static_cast<int>(k % static_cast<uint64_t>(node_count - 1));
    const int segment = Wrap(Wrap(layout.node_index + shift, node_count) - block.step, node_count);
    const GroupLayout::Node& node = layout.nodes[segment];
    const uint64_t begin = offsets[node.first_rank];
    const uint64_t end = offsets[node.first_rank + node.rank_count];
    block.begin = std::min(begin + wave * kWaveBytes, end);
    block.bytes = std::min(end - block.begin, kWaveBytes);
    return block;
  }

  uint64_t OffsetOf(size_t local) const {
    return rank_offsets_[layout_.first_local_rank() + static_cast<int>(local)];
  }

  // Forward: the target never lies behind the source.
  bool MoveResult(size_t local, uint64_t* budget) {
    if (moved_bytes_.empty()) moved_bytes_.resize(collective_.ranks.size(), 0);
    const uint64_t total = OffsetOf(local + 1) - OffsetOf(local);
    std::byte* const output = collective_.ranks[local].output;
    const std::byte* const source = in_place_ + OffsetOf(local);
    while (moved_bytes_[local] < total && output != source) {
      if (*budget == 0) return false;
      const uint64_t bytes = std::min(*budget, total - moved_bytes_[local]);
      memmove(output + moved_bytes_[local], source + moved_bytes_[local], bytes);
      moved_bytes_[local] += bytes;
      *budget -= bytes;
    }
    return true;
  }

  const GroupLayout& layout_;
  const Collective& collective_;
  NodeReduction reduction_;
  const std::vector<uint64_t> rank_offsets_;
  std::byte* in_place_ = nullptr;
  std::vector<uint64_t> moved_bytes_;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingReduceScatter(const GroupLayout& layout,
                                                     const Collective& collective,
                                                     RingScratch* scratch) {
  std::vector<uint64_t> offsets = RingReduceScatter::RankOffsets(layout, collective);
  const uint64_t wave_count = RingReduceScatter::WaveCount(layout, offsets);
  return std::make_unique<RingReduceScatter>(layout, collective, scratch, std::move(offsets),
                                             wave_count);
}

}  // namespace ringd::daemon
