#include <string.h>

#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/node_reduction.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {
namespace {

// An allreduce in half the steps, for small tensors: every node's sum goes once around the ring.
// Node i sends its own, then passes on those of nodes i-1, i-2, ... Each sum is one piece. With all
// of them, each node does what the ring's way does on its round, segment by segment.
class RingGatherAllreduce : public RingAlgorithm {
 public:
  RingGatherAllreduce(const GroupLayout& layout, const Collective& collective, RingScratch* scratch)
      : collective_(collective),
        reduction_(collective, scratch),
        node_count_(layout.node_count()),
        node_(layout.node_index),
        bytes_(static_cast<uint32_t>(collective.count * DTypeBytes(collective.dtype))),
        stride_((bytes_ + kAlignment - 1) / kAlignment * kAlignment),
        sums_(stride_ * static_cast<size_t>(node_count_)) {}

  uint64_t send_bytes() const override { return Total(); }
  uint64_t receive_bytes() const override { return Total(); }
  uint32_t NextSendBytes() const override { return taken_ < node_count_ - 1 ? bytes_ : 0; }
  uint32_t NextReceiveBytes() const override { return received_ < node_count_ - 1 ? bytes_ : 0; }

  bool Prepare() override {
    reduction_.SumInputs(0, bytes_, SumOf(node_));
    return true;
  }

  const std::byte* TakePiece() override {
    if (taken_ > received_) return nullptr;
    return SumOf(Wrap(node_ - taken_++, node_count_));
  }

  std::byte* ReceiveBuffer() override { return SumOf(Wrap(node_ - 1 - received_, node_count_)); }

  void Received(const std::byte* data) override {
    if (data != ReceiveBuffer()) memcpy(ReceiveBuffer(), data, bytes_);
    if (++received_ < node_count_ - 1) return;
    for (int segment = 0; segment < node_count_; ++segment) AddSegment(segment);
  }

 private:
  static constexpr size_t kAlignment = 64;

  uint64_t Total() const { return static_cast<uint64_t>(node_count_ - 1) * bytes_; }
  std::byte* SumOf(int node) const { return sums_.get() + stride_ * static_cast<size_t>(node); }

  void AddSegment(int segment) {
    const size_t element_bytes = DTypeBytes(collective_.dtype);
    const auto at = [&](int index) {
      return SegmentBegin(collective_.count, element_bytes, node_count_, index) * element_bytes;
    };
    const uint64_t begin = at(segment);
    const auto bytes = static_cast<uint32_t>(at(segment + 1) - begin);
    if (bytes == 0) return;
    std::vector<std::byte*> outputs;
    for (const RankBuffer& rank : collective_.ranks) outputs.push_back(rank.output + begin);
    const std::byte* partial = SumOf(segment) + begin;
    for (int step = 1; step < node_count_; ++step) {
      const std::byte* const sum = SumOf((segment + step) % node_count_) + begin;
      const bool is_last = step == node_count_ - 1;
      reduction_.AddSum(partial, sum, bytes, is_last,
                        is_last ? outputs : std::vector<std::byte*>{outputs[0]});
      partial = outputs[0];
    }
  }

  const Collective& collective_;
  NodeReduction reduction_;
  const int node_count_;
  const int node_;
  const uint32_t bytes_;
  const size_t stride_;
  const AlignedBuffer sums_;  // By node.
  int taken_ = 0;
  int received_ = 0;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingGatherAllreduce(const GroupLayout& layout,
                                                       const Collective& collective,
                                                       RingScratch* scratch) {
  return std::make_unique<RingGatherAllreduce>(layout, collective, scratch);
}

}  // namespace ringd::daemon
