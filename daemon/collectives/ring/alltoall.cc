#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/staged.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kPrepareBytes = 1 << 20;  // Copied by one Prepare.

// Where everything lies, in bytes.
class AlltoallMap {
 public:
  AlltoallMap(const GroupLayout& layout, const Collective& collective)
      : layout_(layout), counts_(collective.counts), element_bytes_(DTypeBytes(collective.dtype)) {
    const int node_count = layout.node_count();
    node_bytes_.resize(static_cast<size_t>(node_count) * node_count);
    for (int from = 0; from < node_count; ++from) {
      for (int to = 0; to < node_count; ++to) {
        uint64_t& total = node_bytes_[from * node_count + to];
        ForRanks(from, [&](int r) { ForRanks(to, [&](int s) { total += PairBytes(r, s); }); });
      }
    }
    for (int distance = 1; distance < node_count; ++distance) {
      first_blocks_.push_back(block_count_);
      uint64_t largest = 0;
      for (int from = 0; from < node_count; ++from) {
        largest = std::max(largest, NodeBytes(from, Wrap(from + distance, node_count)));
      }
      block_count_ += (largest + kWaveBytes - 1) / kWaveBytes * static_cast<uint64_t>(distance);
    }
  }

  uint64_t block_count() const { return block_count_; }
  uint64_t PairBytes(int from_rank, int to_rank) const {
    return counts_[static_cast<size_t>(from_rank) * layout_.size() + to_rank] * element_bytes_;
  }
  uint64_t NodeBytes(int from, int to) const {
    return node_bytes_[from * layout_.node_count() + to];
  }

  template <class F>
  void ForRanks(int node, const F& f) const {
    const GroupLayout::Node& entry = layout_.nodes[node];
    for (int rank = entry.first_rank; rank < entry.first_rank + entry.rank_count; ++rank) f(rank);
  }

  // Block k that `node` sends. Order: distance, wave, hop; at hop h (from 1) a node sends what
  // began h-1 nodes to its left.
  Block Sent(int node, uint64_t k) const {
    const auto after = std::upper_bound(first_blocks_.begin(), first_blocks_.end(), k);
    const auto distance = static_cast<int>(after - first_blocks_.begin());
    const uint64_t in_distance = k - *(after - 1);
    const uint64_t wave = in_distance / static_cast<uint64_t>(distance);
    const auto hop = static_cast<int>(in_distance % static_cast<uint64_t>(distance));
    Block block;
    block.from = Wrap(node - hop, layout_.node_count());
    block.to = Wrap(block.from + distance, layout_.node_count());
    const uint64_t total = NodeBytes(block.from, block.to);
    block.begin = std::min(wave * kWaveBytes, total);
    block.bytes = std::min(total - block.begin, kWaveBytes);
    return block;
  }

 private:
  const GroupLayout& layout_;
  const std::vector<uint64_t>& counts_;
  const size_t element_bytes_;
  std::vector<uint64_t> node_bytes_;
  std::vector<uint64_t> first_blocks_;  // By distance - 1.
  uint64_t block_count_ = 0;
};

// Each node's bytes for node + d travel d hops to the right, for d = 1, 2, ...; between two nodes
// they are ordered by sending rank, then receiving rank.
class RingAlltoall : public StagedAlgorithm {
 public:
  RingAlltoall(const GroupLayout& layout, const Collective& collective,
               std::shared_ptr<const AlltoallMap> map)
      : StagedAlgorithm(
            map->block_count(),
            [&layout, map](uint64_t k) { return map->Sent(layout.node_index, k); },
            [&layout, map](uint64_t k) {
              return map->Sent(Wrap(layout.node_index - 1, layout.node_count()), k);
            }),
        layout_(layout),
        collective_(collective),
        map_(std::move(map)) {
    for (const RankBuffer& rank : collective.ranks) inputs_.push_back(rank.input);
    local_pairs_ = static_cast<uint64_t>(layout.local_count()) * layout.local_count();
  }

  // Inputs in place are copied aside (MakeRingAlgorithm bounds them); then what stays on the node
  // is delivered.
  bool Prepare() override {
    const int local_count = layout_.local_count();
    if (next_copy_ < local_count) {
      CopyAside(next_copy_++);
      return false;
    }
    uint64_t budget = kPrepareBytes;
    while (next_pair_ < local_pairs_) {
      const int first = layout_.first_local_rank();
      const int from = first + static_cast<int>(next_pair_ / local_count);
      const int to = first + static_cast<int>(next_pair_ % local_count);
      const uint64_t bytes = std::min(budget, map_->PairBytes(from, to) - in_pair_);
      if (bytes > 0) {
        memcpy(Target(from, to) + in_pair_, Source(from, to) + in_pair_, bytes);
      }
      in_pair_ += bytes;
      budget -= bytes;
      if (in_pair_ < map_->PairBytes(from, to)) return false;
      in_pair_ = 0;
      ++next_pair_;
    }
    return true;
  }

 protected:
  bool BeginsHere(const Block& block) const override { return block.from == layout_.node_index; }
  bool EndsHere(const Block& block) const override { return block.to == layout_.node_index; }

  const std::byte* MakeOwn(const Block& block, uint64_t begin, uint32_t bytes,
                           std::byte* place) override {
    ForPairs(block, begin, bytes, [&](int from, int to, uint64_t in_pair, uint64_t at, uint64_t n) {
      memcpy(place + at, Source(from, to) + in_pair, n);
    });
    return place;
  }

  void Pass(const Block&, uint64_t, uint32_t, std::byte*) override {}

  void Consume(const Block& block, uint64_t begin, uint32_t bytes, std::byte* data) override {
    ForPairs(block, begin, bytes, [&](int from, int to, uint64_t in_pair, uint64_t at, uint64_t n) {
      memcpy(Target(from, to) + in_pair, data + at, n);
    });
  }

 private:
  void CopyAside(int local) {
    const RankBuffer& rank = collective_.ranks[local];
    if (rank.input != rank.output || rank.input == nullptr) return;
    uint64_t total = 0;
    for (int to = 0; to < layout_.size(); ++to) {
      total += map_->PairBytes(layout_.first_local_rank() + local, to);
    }
    copies_.emplace_back(rank.input, rank.input + total);
    inputs_[local] = copies_.back().data();
  }

  const std::byte* Source(int from, int to) const {
    uint64_t offset = 0;
    for (int other = 0; other < to; ++other) offset += map_->PairBytes(from, other);
    return inputs_[from - layout_.first_local_rank()] + offset;
  }
  std::byte* Target(int from, int to) const {
    uint64_t offset = 0;
    for (int other = 0; other < from; ++other) offset += map_->PairBytes(other, to);
    return collective_.ranks[to - layout_.first_local_rank()].output + offset;
  }

  // Calls f(from, to, offset in the pair's bytes, offset in the piece, bytes) for each pair of
  // ranks in the piece.
  template <class F>
  void ForPairs(const Block& block, uint64_t begin, uint32_t bytes, const F& f) const {
    const uint64_t end = begin + bytes;
    uint64_t pair_begin = 0;
    map_->ForRanks(block.from, [&](int from) {
      map_->ForRanks(block.to, [&](int to) {
        const uint64_t pair_end = pair_begin + map_->PairBytes(from, to);
        const uint64_t first = std::max(begin, pair_begin);
        const uint64_t last = std::min(end, pair_end);
        if (first < last) f(from, to, first - pair_begin, first - begin, last - first);
        pair_begin = pair_end;
      });
    });
  }

  const GroupLayout& layout_;
  const Collective& collective_;
  const std::shared_ptr<const AlltoallMap> map_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::vector<std::byte>> copies_;
  int next_copy_ = 0;
  uint64_t local_pairs_ = 0;
  uint64_t next_pair_ = 0;
  uint64_t in_pair_ = 0;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingAlltoall(const GroupLayout& layout,
                                                const Collective& collective) {
  return std::make_unique<RingAlltoall>(layout, collective,
                                        std::make_shared<AlltoallMap>(layout, collective));
}

}  // namespace ringd::daemon
