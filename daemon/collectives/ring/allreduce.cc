#include <string.h>

#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/allreduce_steps.h"
#include "daemon/collectives/ring/node_reduction.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {
namespace {

// The first rank's output holds the sums under way.
class RingAllreduce : public NeighbourAlgorithm {
 public:
  RingAllreduce(const GroupLayout& layout, const Collective& collective, RingScratch* scratch)
      : collective_(collective),
        scratch_(scratch),
        reduction_(collective, scratch),
        steps_(layout, collective),
        send_(steps_.step_count(), [this](uint64_t t) { return steps_.Sent(t); }),
        receive_(steps_.step_count(), [this](uint64_t t) { return steps_.Received(t); }) {
    for (uint64_t t = 0; t < steps_.step_count(); ++t) {
      send_bytes_ += steps_.Sent(t).bytes;
      receive_bytes_ += steps_.Received(t).bytes;
    }
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
      if (send_.stream_offset() + bytes > steps_.own_bytes() + receive_.stream_offset()) {
        return nullptr;
      }
    } else if (reduction_.IsInput()) {
      piece = collective_.ranks[0].input + begin;
    } else {
      reduction_.SumInputs(begin, bytes, output() + begin);
    }
    send_.Advance();
    return piece;
  }

  std::byte* ReceiveBuffer() override {
    return steps_.IsWhole(receive_.block()) ? output() + receive_.begin()
                                            : scratch_->received.get();
  }

  void Received(const std::byte* data) override {
    const uint64_t begin = receive_.begin();
    const uint32_t bytes = receive_.bytes();
    if (steps_.IsPartial(receive_.block())) {
      reduction_.Add(data, begin, bytes, {output() + begin});
    } else if (steps_.IsLastPartial(receive_.block())) {
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
  std::byte* output() const { return collective_.ranks[0].output; }

  const Collective& collective_;
  RingScratch* const scratch_;
  NodeReduction reduction_;
  const AllreduceSteps steps_;
  PieceCursor send_;
  PieceCursor receive_;
  uint64_t send_bytes_ = 0;
  uint64_t receive_bytes_ = 0;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingAllreduce(const GroupLayout& layout,
                                                 const Collective& collective,
                                                 RingScratch* scratch) {
  return std::make_unique<RingAllreduce>(layout, collective, scratch);
}

}  // namespace ringd::daemon
