#include <string.h>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/gathered_sums.h"

namespace ringd::daemon {
namespace {

// An allreduce in half the steps, for small tensors: every node's sum goes once around the ring.
// Node i sends its own, then passes on those of nodes i-1, i-2, ... Each sum is one piece.
class RingGatherAllreduce : public NeighbourAlgorithm {
 public:
  RingGatherAllreduce(const GroupLayout& layout, const Collective& collective, RingScratch* scratch)
      : sums_(layout, collective, scratch), steps_(layout.node_count() - 1) {}

  uint64_t send_bytes() const override { return uint64_t{sums_.sum_bytes()} * steps_; }
  uint64_t receive_bytes() const override { return send_bytes(); }
  uint32_t NextSendBytes() const override { return taken_ < steps_ ? sums_.sum_bytes() : 0; }
  uint32_t NextReceiveBytes() const override { return received_ < steps_ ? sums_.sum_bytes() : 0; }

  bool Prepare() override {
    sums_.SumInputs();
    return true;
  }

  const std::byte* TakePiece() override {
    return taken_ > received_ ? nullptr : sums_.At(taken_++);
  }

  std::byte* ReceiveBuffer() override { return sums_.At(received_ + 1); }

  void Received(const std::byte* data) override {
    if (data != ReceiveBuffer()) memcpy(ReceiveBuffer(), data, sums_.sum_bytes());
    if (++received_ == steps_) sums_.AddAll();
  }

 private:
  GatheredSums sums_;
  const int steps_;
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
