#include <string.h>

#include "common/reduce/wire_dtype.h"
#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/allreduce_steps.h"
#include "daemon/collectives/ring/node_reduction.h"
#include "daemon/collectives/ring/pieces.h"

namespace ringd::daemon {
namespace {

// An allreduce whose pieces travel narrower: each node widens what comes, adds its inputs and
// narrows the sum. The last node of a segment narrows the result, too; every node, itself included,
// widens those very bytes.
//
// Pieces and cursors are in the tensor's bytes. Narrow pieces wait to be sent at their place in the
// first rank's output, where they need less room than the elements; finished ones are widened there
// once they have been sent.
class RingNarrowAllreduce : public NeighbourAlgorithm {
 public:
  RingNarrowAllreduce(const GroupLayout& layout, const Collective& collective, RingScratch* scratch)
      : collective_(collective),
        scratch_(scratch),
        reduction_(collective, scratch),
        steps_(layout, collective),
        element_bytes_(DTypeBytes(collective.dtype)),
        send_(steps_.step_count(), [this](uint64_t t) { return steps_.Sent(t); }),
        sent_(steps_.step_count(), [this](uint64_t t) { return steps_.Sent(t); }),
        receive_(steps_.step_count(), [this](uint64_t t) { return steps_.Received(t); }) {
    for (uint64_t t = 0; t < steps_.step_count(); ++t) {
      send_bytes_ += NarrowBytes(steps_.Sent(t).bytes);
      receive_bytes_ += NarrowBytes(steps_.Received(t).bytes);
    }
  }

  uint64_t send_bytes() const override { return send_bytes_; }
  uint64_t receive_bytes() const override { return receive_bytes_; }
  uint32_t NextSendBytes() const override {
    return static_cast<uint32_t>(NarrowBytes(send_.bytes()));
  }
  uint32_t NextReceiveBytes() const override {
    return static_cast<uint32_t>(NarrowBytes(receive_.bytes()));
  }

  const std::byte* TakePiece() override {
    const uint64_t begin = send_.begin();
    const uint32_t bytes = send_.bytes();
    if (send_.block().step > 0) {
      if (send_.stream_offset() + bytes > steps_.own_bytes() + receive_.stream_offset()) {
        return nullptr;
      }
    } else if (reduction_.IsInput()) {
      Narrow(collective_.ranks[0].input + begin, bytes, output() + begin);
    } else {
      reduction_.SumInputs(begin, bytes, wide());
      Narrow(wide(), bytes, output() + begin);
    }
    send_.Advance();
    return output() + begin;
  }

  void PieceSent() override {
    if (steps_.IsWhole(sent_.block())) {
      std::byte* const place = output() + sent_.begin();
      memcpy(wide(), place, NarrowBytes(sent_.bytes()));
      Widen(wide(), sent_.bytes(), place);
    }
    sent_.Advance();
  }

  std::byte* ReceiveBuffer() override {
    const Block& block = receive_.block();
    const bool goes_on = steps_.IsWhole(block) && !steps_.EndsHere(block);
    return goes_on ? output() + receive_.begin() : scratch_->received.get();
  }

  void Received(const std::byte* data) override {
    const uint64_t begin = receive_.begin();
    const uint32_t bytes = receive_.bytes();
    const Block& block = receive_.block();
    std::byte* const place = output() + begin;
    if (steps_.IsWhole(block)) {
      if (!steps_.EndsHere(block) && data != place) memcpy(place, data, NarrowBytes(bytes));
      WidenToOthers(data, begin, bytes);
      if (steps_.EndsHere(block)) Widen(data, bytes, place);
    } else {
      Widen(data, bytes, wide());
      if (steps_.IsPartial(block)) {
        reduction_.Add(wide(), begin, bytes, {wide()});
      } else {
        reduction_.AddLast(wide(), begin, bytes, {wide()});
      }
      Narrow(wide(), bytes, place);
      if (steps_.IsLastPartial(block)) WidenToOthers(place, begin, bytes);
    }
    receive_.Advance();
  }

 private:
  std::byte* output() const { return collective_.ranks[0].output; }
  std::byte* wide() const { return scratch_->wide.get(); }
  size_t NarrowBytes(uint64_t bytes) const {
    return WireBytes(collective_.dtype, collective_.wire, bytes / element_bytes_);
  }
  void Narrow(const std::byte* from, uint32_t bytes, std::byte* to) const {
    NarrowToWire(collective_.dtype, collective_.wire, from, bytes / element_bytes_, to);
  }
  void Widen(const std::byte* from, uint32_t bytes, std::byte* to) const {
    WidenFromWire(collective_.dtype, collective_.wire, from, bytes / element_bytes_, to);
  }
  // To all ranks but the first.
  void WidenToOthers(const std::byte* from, uint64_t begin, uint32_t bytes) const {
    for (size_t i = 1; i < collective_.ranks.size(); ++i) {
      Widen(from, bytes, collective_.ranks[i].output + begin);
    }
  }

  const Collective& collective_;
  RingScratch* const scratch_;
  NodeReduction reduction_;
  const AllreduceSteps steps_;
  const size_t element_bytes_;
  PieceCursor send_;
  PieceCursor sent_;  // What the link has let go of.
  PieceCursor receive_;
  uint64_t send_bytes_ = 0;
  uint64_t receive_bytes_ = 0;
};

static_assert(kRingPieceBytes % (kWireBlock * sizeof(float)) == 0,
              "a segment's bytes are those of its pieces");

}  // namespace

std::unique_ptr<RingAlgorithm> MakeRingNarrowAllreduce(const GroupLayout& layout,
                                                       const Collective& collective,
                                                       RingScratch* scratch) {
  return std::make_unique<RingNarrowAllreduce>(layout, collective, scratch);
}

}  // namespace ringd::daemon
