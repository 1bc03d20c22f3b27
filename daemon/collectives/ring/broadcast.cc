#include <string.h>

#include <memory>
#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {
namespace {

PieceCursor WholeTensor(uint64_t bytes) {
  return PieceCursor(1, [bytes](uint64_t) {
    Block block;
    block.bytes = bytes;
    return block;
  });
}

// The tensor on one node: where it comes from and goes to.
class BroadcastBuffers {
 public:
  BroadcastBuffers(const GroupLayout& layout, const Collective& collective)
      : collective_(collective), bytes_(collective.count * DTypeBytes(collective.dtype)) {
    int root_node = 0;
    const auto end_of = [&](int node) {
      return layout.nodes[node].first_rank + layout.nodes[node].rank_count;
    };
    while (collective.root >= end_of(root_node)) ++root_node;
    distance_ = Wrap(layout.node_index - root_node, layout.node_count());
    source_ = collective.ranks[0].output;
    if (distance_ > 0) return;
    const RankBuffer& root = collective.ranks[collective.root - layout.first_local_rank()];
    source_ = root.input != nullptr ? root.input : root.output;
  }

  // Of this node, to the right of the root's.
  int distance() const { return distance_; }
  bool is_root() const { return distance_ == 0; }
  uint64_t bytes() const { return bytes_; }
  const std::byte* source() const { return source_; }
  std::byte* first_output() const { return collective_.ranks[0].output; }

  void CopyToRanks(uint64_t begin, uint32_t bytes) const {
    for (const RankBuffer& rank : collective_.ranks) {
      if (rank.output == nullptr || rank.output == source_) continue;
      memcpy(rank.output + begin, source_ + begin, bytes);
    }
  }
  void Store(const std::byte* data, uint64_t begin, uint32_t bytes) const {
    if (data != first_output() + begin) memcpy(first_output() + begin, data, bytes);
    CopyToRanks(begin, bytes);
  }

 private:
  const Collective& collective_;
  const uint64_t bytes_;
  int distance_ = 0;
  const std::byte* source_ = nullptr;
};

// A chain from the root's node along the ring; the root's left neighbour is its end.
class RingBroadcast : public NeighbourAlgorithm {
 public:
  RingBroadcast(const GroupLayout& layout, const Collective& collective)
      : buffers_(layout, collective),
        is_end_(buffers_.distance() == layout.node_count() - 1),
        send_(WholeTensor(send_bytes())),
        receive_(WholeTensor(receive_bytes())) {}

  uint64_t send_bytes() const override { return is_end_ ? 0 : buffers_.bytes(); }
  uint64_t receive_bytes() const override { return buffers_.is_root() ? 0 : buffers_.bytes(); }
  uint32_t NextSendBytes() const override { return send_.bytes(); }
  uint32_t NextReceiveBytes() const override { return receive_.bytes(); }

  const std::byte* TakePiece() override {
    const uint64_t begin = send_.begin();
    if (buffers_.is_root()) {
      buffers_.CopyToRanks(begin, send_.bytes());
    } else if (begin + send_.bytes() > receive_.stream_offset()) {
      return nullptr;
    }
    send_.Advance();
    return buffers_.source() + begin;
  }

  std::byte* ReceiveBuffer() override { return buffers_.first_output() + receive_.begin(); }

  void Received(const std::byte* data) override {
    buffers_.Store(data, receive_.begin(), receive_.bytes());
    receive_.Advance();
  }

 private:
  const BroadcastBuffers buffers_;
  const bool is_end_;
  PieceCursor send_;
  PieceCursor receive_;
};

// A binomial tree over the shortcuts: the node d places from the root receives from that without
// d's highest bit, and sends to those with one bit more above it.
class TreeBroadcast : public RingAlgorithm {
 public:
  TreeBroadcast(const GroupLayout& layout, const Collective& collective, int shortcut_count)
      : buffers_(layout, collective) {
    const int distance = buffers_.distance();
    for (int k = 0; k <= shortcut_count; ++k) {
      const int step = 1 << k;
      const bool sends = step > distance && distance + step < layout.node_count();
      const bool receives = step <= distance && distance < 2 * step;
      streams_.push_back(std::make_unique<Stream>(this, k, sends ? buffers_.bytes() : 0,
                                                  receives ? buffers_.bytes() : 0));
    }
  }

  int stream_count() const override { return static_cast<int>(streams_.size()); }
  RingStream* stream(int index) override { return streams_[index].get(); }

 private:
  class Stream : public RingStream {
   public:
    Stream(TreeBroadcast* owner, int index, uint64_t send_bytes, uint64_t receive_bytes)
        : owner_(owner),
          index_(index),
          send_bytes_(send_bytes),
          receive_bytes_(receive_bytes),
          send_(WholeTensor(send_bytes)),
          receive_(WholeTensor(receive_bytes)) {}

    uint64_t send_bytes() const override { return send_bytes_; }
    uint64_t receive_bytes() const override { return receive_bytes_; }
    uint32_t NextSendBytes() const override { return send_.bytes(); }
    uint32_t NextReceiveBytes() const override { return receive_.bytes(); }

    const std::byte* TakePiece() override {
      const BroadcastBuffers& buffers = owner_->buffers_;
      const uint64_t begin = send_.begin();
      const bool is_here = buffers.is_root() || begin + send_.bytes() <= owner_->received_bytes_;
      if (!is_here) return nullptr;
      // The root's first child is that of the first stream, always.
      if (buffers.is_root() && index_ == 0) buffers.CopyToRanks(begin, send_.bytes());
      send_.Advance();
      return buffers.source() + begin;
    }

    std::byte* ReceiveBuffer() override {
      return owner_->buffers_.first_output() + receive_.begin();
    }

    void Received(const std::byte* data) override {
      owner_->buffers_.Store(data, receive_.begin(), receive_.bytes());
      receive_.Advance();
      owner_->received_bytes_ = receive_.stream_offset();
    }

   private:
    TreeBroadcast* const owner_;
    const int index_;
    const uint64_t send_bytes_;
    const uint64_t receive_bytes_;
    PieceCursor send_;
    PieceCursor receive_;
  };

  const BroadcastBuffers buffers_;
  std::vector<std::unique_ptr<Stream>> streams_;
  uint64_t received_bytes_ = 0;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingBroadcast(const GroupLayout& layout,
                                                 const Collective& collective) {
  return std::make_unique<RingBroadcast>(layout, collective);
}

std::unique_ptr<RingAlgorithm> MakeTreeBroadcast(const GroupLayout& layout,
                                                 const Collective& collective, int shortcut_count) {
  return std::make_unique<TreeBroadcast>(layout, collective, shortcut_count);
}

}  // namespace ringd::daemon
