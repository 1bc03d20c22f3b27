// What all nodes want from all, in log2(n) steps: small allreduces and barriers over shortcuts.
#include <string.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/gathered_sums.h"

namespace ringd::daemon {
namespace {

// One block a node. A node that knows those of the 2^k nodes that end with itself sends them (the
// last time no more than are missing) to the node 2^k places to its right, and then knows twice as
// many. Each stream is one piece.
class Doubling : public RingAlgorithm {
 public:
  Doubling(int node_count, int shortcut_count, uint32_t block_bytes) {
    for (int k = 0; k <= shortcut_count; ++k) {
      const int blocks = std::min(1 << k, node_count - (1 << k));
      streams_.push_back(std::make_unique<Stream>(this, k, block_bytes * (1u << k),
                                                  block_bytes * static_cast<uint32_t>(blocks)));
    }
  }

  int stream_count() const override { return static_cast<int>(streams_.size()); }
  RingStream* stream(int index) override { return streams_[index].get(); }

 protected:
  // All blocks, by distance to the left; the node's own is there from Prepare on.
  virtual std::byte* blocks() = 0;
  virtual void AllReceived() = 0;

 private:
  class Stream : public RingStream {
   public:
    Stream(Doubling* owner, int index, uint32_t begin, uint32_t bytes)
        : owner_(owner), index_(index), begin_(begin), bytes_(bytes) {}

    uint64_t send_bytes() const override { return bytes_; }
    uint64_t receive_bytes() const override { return bytes_; }
    uint32_t NextSendBytes() const override { return is_taken_ ? 0 : bytes_; }
    uint32_t NextReceiveBytes() const override { return is_received_ ? 0 : bytes_; }
    const std::byte* TakePiece() override {
      if (owner_->known_ < index_) return nullptr;
      is_taken_ = true;
      return owner_->blocks();
    }
    std::byte* ReceiveBuffer() override { return owner_->blocks() + begin_; }
    void Received(const std::byte* data) override {
      if (data != ReceiveBuffer()) memcpy(ReceiveBuffer(), data, bytes_);
      is_received_ = true;
      owner_->NoteReceived();
    }
    bool is_received() const { return is_received_; }

   private:
    Doubling* const owner_;
    const int index_;
    const uint32_t begin_;  // Of the blocks that come.
    const uint32_t bytes_;
    bool is_taken_ = false;
    bool is_received_ = false;
  };

  void NoteReceived() {
    while (known_ < stream_count() && streams_[known_]->is_received()) ++known_;
    if (known_ == stream_count()) AllReceived();
  }

  std::vector<std::unique_ptr<Stream>> streams_;
  int known_ = 0;  // Streams from the first on that have come.
};

class DoublingAllreduce : public Doubling {
 public:
  DoublingAllreduce(const GroupLayout& layout, const Collective& collective, int shortcut_count,
                    RingScratch* scratch)
      : DoublingAllreduce(layout.node_count(), shortcut_count,
                          std::make_unique<GatheredSums>(layout, collective, scratch)) {}

  bool Prepare() override {
    sums_->SumInputs();
    return true;
  }

 private:
  DoublingAllreduce(int node_count, int shortcut_count, std::unique_ptr<GatheredSums> sums)
      : Doubling(node_count, shortcut_count, sums->sum_bytes()), sums_(std::move(sums)) {}

  std::byte* blocks() override { return sums_->At(0); }
  void AllReceived() override { sums_->AddAll(); }

  const std::unique_ptr<GatheredSums> sums_;
};

// Who has a byte of each node knows that all have come.
class DoublingBarrier : public Doubling {
 public:
  DoublingBarrier(int node_count, int shortcut_count)
      : Doubling(node_count, shortcut_count, 1), blocks_(node_count, std::byte{1}) {}

 private:
  std::byte* blocks() override { return blocks_.data(); }
  void AllReceived() override {}

  std::vector<std::byte> blocks_;
};

}  // namespace

std::unique_ptr<RingAlgorithm> MakeDoublingAllreduce(const GroupLayout& layout,
                                                     const Collective& collective,
                                                     int shortcut_count, RingScratch* scratch) {
  return std::make_unique<DoublingAllreduce>(layout, collective, shortcut_count, scratch);
}

std::unique_ptr<RingAlgorithm> MakeDoublingBarrier(const GroupLayout& layout, int shortcut_count) {
  return std::make_unique<DoublingBarrier>(layout.node_count(), shortcut_count);
}

}  // namespace ringd::daemon
