#include <string.h>

#include <utility>
#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/node_reduction.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {
namespace {

// n segments, one begun by each node. Reduce-scatter in n-1 steps: node i sends the sum of its
// inputs of segment i, then adds its inputs to segments i-1, i-2, ... and passes them on; the last
// it receives, i+1, is complete. Allgather in n-1 steps: it sends segment i+1, then passes on i,
// i-1, ... What is sent in step t > 0 is what came in step t-1. The first rank's output holds the
// sums under way.
class RingAllreduce : public RingAlgorithm {
 public:
  RingAllreduce(const GroupLayout& layout, const Collective& collective, RingScratch* scratch)
      : collective_(collective),
        scratch_(scratch),
        reduction_(collective, scratch),
        node_count_(layout.node_count()),
        node_(layout.node_index),
        send_(StepCount(), [this](uint64_t t) { return BlockOf(t, SentSegment(node_, t)); }),
        receive_(StepCount(), [this](uint64_t t) {
          return BlockOf(t, SentSegment(Wrap(node_ - 1, node_count_), t));
        }) {
    for (uint64_t t = 0; t < StepCount(); ++t) {
      send_bytes_ += BlockOf(t, SentSegment(node_, t)).bytes;
      receive_bytes_ += BlockOf(t, SentSegment(Wrap(node_ - 1, node_count_), t)).bytes;
    }
    own_bytes_ = BlockOf(0, node_).bytes;
  }

  uint64_t send_bytes() const override { return send_bytes_; }
  uint64_t receive_bytes() const override { return receive_bytes_; }
  uint32_t NextSendBytes() const override { return send_.bytes(); }
  uint32_t NextReceiveBytes() const override { return receive_.bytes(); }

  const std::byte* TakePiece() override {
    const uint64_t begin = send_.begin();
    const uint32_t bytes = send_.bytes();
    const std::byte* piece = output() + begin;
    if (send_.block().step > 0) {
      if (send_.stream_offset() + bytes > own_bytes_ + receive_.stream_offset()) return nullptr;
    } else if (reduction_.IsInput()) {
      piece = collective_.ranks[0].input + begin;
    } else {
      reduction_.SumInputs(begin, bytes, output() + begin);
    }
    send_.Advance();
    return piece;
  }

  std::byte* ReceiveBuffer() override {
    return IsScatterStep() ? scratch_->received.get() : output() + receive_.begin();
  }

  void Received(const std::byte* data) override {
    const uint64_t begin = receive_.begin();
    const uint32_t bytes = receive_.bytes();
    if (receive_.block().step < node_count_ - 2) {
      reduction_.Add(data, begin, bytes, {output() + begin});
    } else if (IsScatterStep()) {
      std::vector<std::byte*> outputs;
      for (const RankBuffer& rank : collective_.ranks) outputs.push_back(rank.output + begin);
      reduction_.AddLast(data, begin, bytes, outputs);
    } else {
      if (data != output() + begin) memcpy(output() + begin, data, bytes);
      for (size_t i = 1; i < collective_.ranks.size(); ++i) {
        memcpy(collective_.ranks[i].output + begin, output() + begin, bytes);
      }
    }
    receive_.Advance();
  }

 private:
  uint64_t StepCount() const { return 2 * static_cast<uint64_t>(node_count_ - 1); }
  std::byte* output() const { return collective_.ranks[0].output; }
  bool IsScatterStep() const { return receive_.block().step < node_count_ - 1; }

  int SentSegment(int node, uint64_t t) const {
    const int step = static_cast<int>(t);
    const int gather_step = step - (node_count_ - 1);
    const int segment = gather_step < 0 ? node - step : node + 1 - gather_step;
    return Wrap(segment, node_count_);
  }

  Block BlockOf(uint64_t t, int segment) const {
    const size_t element_bytes = DTypeBytes(collective_.dtype);
    const uint64_t begin = SegmentBegin(collective_.count, element_bytes, node_count_, segment);
    const uint64_t end = SegmentBegin(collective_.count, element_bytes, node_count_, segment + 1);
    Block block;
    block.step = static_cast<int>(t);
    block.begin = begin * element_bytes;
    block.bytes = (end - begin) * element_bytes;
    return block;
  }

  const Collective& collective_;
  RingScratch* const scratch_;
  NodeReduction reduction_;
  const int node_count_;
  const int node_;
  PieceCursor send_;
  PieceCursor receive_;
  uint64_t send_bytes_ = 0;
  uint64_t receive_bytes_ = 0;
  uint64_t own_bytes_ = 0;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingAllreduce(const GroupLayout& layout,
                                                 const Collective& collective,
                                                 RingScratch* scratch) {
  return std::make_unique<RingAllreduce>(layout, collective, scratch);
}

}  // namespace ringd::daemon
