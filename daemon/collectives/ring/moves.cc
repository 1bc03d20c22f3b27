// Operations that move bytes and compute nothing: allgather, barrier.
#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kPrepareBytes = 1 << 20;  // Moved by one Prepare.

// A ring of node blocks: node i sends its own, then passes on those of i-1, i-2, ...
class RingAllgather : public NeighbourAlgorithm {
 public:
  RingAllgather(const GroupLayout& layout, const Collective& collective)
      : layout_(layout),
        collective_(collective),
        node_count_(layout.node_count()),
        rank_offsets_(RankOffsets(layout, collective)),
        send_(StepCount(), [this](uint64_t t) { return BlockOf(t, layout_.node_index); }),
        receive_(StepCount(), [this](uint64_t t) { return BlockOf(t, layout_.node_index - 1); }) {
    for (uint64_t t = 0; t < StepCount(); ++t) {
      send_bytes_ += BlockOf(t, layout.node_index).bytes;
      receive_bytes_ += BlockOf(t, layout.node_index - 1).bytes;
    }
    own_bytes_ = BlockOf(0, layout.node_index).bytes;
    for (int i = 0; i < layout.local_count(); ++i) {
      sources_.push_back(collective.ranks[i].input);
      unmoved_bytes_.push_back(RankBytes(i));
    }
  }

  uint64_t send_bytes() const override { return send_bytes_; }
  uint64_t receive_bytes() const override { return receive_bytes_; }
  uint32_t NextSendBytes() const override { return send_.bytes(); }
  uint32_t NextReceiveBytes() const override { return receive_.bytes(); }

  // An input in place lies where the first rank's result belongs: it moves to its own place before
  // that comes.
  bool Prepare() override {
    uint64_t budget = kPrepareBytes;
    for (int i = 0; i < layout_.local_count(); ++i) {
      const RankBuffer& rank = collective_.ranks[i];
      if (rank.input != rank.output || rank.output == nullptr) continue;
      std::byte* const place = rank.output + OffsetOf(i);
      // From the end: source and target may overlap.
      while (unmoved_bytes_[i] > 0 && place != rank.output) {
        if (budget == 0) return false;
        const uint64_t bytes = std::min(budget, unmoved_bytes_[i]);
        unmoved_bytes_[i] -= bytes;
        memmove(place + unmoved_bytes_[i], rank.output + unmoved_bytes_[i], bytes);
        budget -= bytes;
      }
      sources_[i] = place;
    }
    return true;
  }

  const std::byte* TakePiece() override {
    const uint64_t begin = send_.begin();
    const uint32_t bytes = send_.bytes();
    if (send_.block().step == 0) {
      CopyInputs(begin, begin + bytes);
    } else if (send_.stream_offset() + bytes > own_bytes_ + receive_.stream_offset()) {
      return nullptr;
    }
    send_.Advance();
    return collective_.ranks[0].output + begin;
  }

  std::byte* ReceiveBuffer() override { return collective_.ranks[0].output + receive_.begin(); }

  void Received(const std::byte* data) override {
    const uint64_t begin = receive_.begin();
    std::byte* const first = collective_.ranks[0].output + begin;
    if (data != first) memcpy(first, data, receive_.bytes());
    for (size_t i = 1; i < collective_.ranks.size(); ++i) {
      memcpy(collective_.ranks[i].output + begin, first, receive_.bytes());
    }
    receive_.Advance();
  }

 private:
  // Bytes before each rank's part, and in all.
  static std::vector<uint64_t> RankOffsets(const GroupLayout& layout,
                                           const Collective& collective) {
    std::vector<uint64_t> offsets(layout.size() + 1, 0);
    for (int rank = 0; rank < layout.size(); ++rank) {
      offsets[rank + 1] = offsets[rank] + collective.counts[rank] * DTypeBytes(collective.dtype);
    }
    return offsets;
  }

  uint64_t StepCount() const { return static_cast<uint64_t>(node_count_ - 1); }
  uint64_t OffsetOf(int local) const { return rank_offsets_[layout_.first_local_rank() + local]; }
  uint64_t RankBytes(int local) const { return OffsetOf(local + 1) - OffsetOf(local); }

  Block BlockOf(uint64_t t, int sender) const {
    const GroupLayout::Node& node =
        layout_.nodes[Wrap(Wrap(sender, node_count_) - static_cast<int>(t), node_count_)];
    Block block;
    block.step = static_cast<int>(t);
    block.begin = rank_offsets_[node.first_rank];
    block.bytes = rank_offsets_[node.first_rank + node.rank_count] - block.begin;
    return block;
  }

  // The inputs' part of [begin, end) of the result, to all outputs.
  void CopyInputs(uint64_t begin, uint64_t end) {
    for (int i = 0; i < layout_.local_count(); ++i) {
      const uint64_t from = std::max(begin, OffsetOf(i));
      const uint64_t to = std::min(end, OffsetOf(i + 1));
      if (from >= to) continue;
      const std::byte* const source = sources_[i] + (from - OffsetOf(i));
      for (const RankBuffer& rank : collective_.ranks) {
        if (rank.output + from != source) memcpy(rank.output + from, source, to - from);
      }
    }
  }

  const GroupLayout& layout_;
  const Collective& collective_;
  const int node_count_;
  const std::vector<uint64_t> rank_offsets_;
  PieceCursor send_;
  PieceCursor receive_;
  uint64_t send_bytes_ = 0;
  uint64_t receive_bytes_ = 0;
  uint64_t own_bytes_ = 0;
  std::vector<const std::byte*> sources_;  // Of the local ranks.
  std::vector<uint64_t> unmoved_bytes_;
};

// An allgather of one byte a node: who has all bytes knows that all nodes have come.
class RingBarrier : public NeighbourAlgorithm {
 public:
  explicit RingBarrier(const GroupLayout& layout)
      : steps_(static_cast<uint64_t>(layout.node_count() - 1)) {}

  uint64_t send_bytes() const override { return steps_; }
  uint64_t receive_bytes() const override { return steps_; }
  uint32_t NextSendBytes() const override { return sent_ < steps_ ? 1 : 0; }
  uint32_t NextReceiveBytes() const override { return received_ < steps_ ? 1 : 0; }
  const std::byte* TakePiece() override {
    if (sent_ > received_) return nullptr;
    ++sent_;
    return &token_;
  }
  std::byte* ReceiveBuffer() override { return &received_token_; }
  void Received(const std::byte*) override { ++received_; }

 private:
  const uint64_t steps_;
  const std::byte token_{1};
  std::byte received_token_{0};
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingAllgather(const GroupLayout& layout,
                                                 const Collective& collective) {
  return std::make_unique<RingAllgather>(layout, collective);
}

std::unique_ptr<RingAlgorithm> MakeRingBarrier(const GroupLayout& layout) {
  return std::make_unique<RingBarrier>(layout);
}

}  // namespace ringd::daemon
