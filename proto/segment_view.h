// Steps in a shared segment that clients and daemons have in common.
#ifndef RINGD_PROTO_SEGMENT_VIEW_H_
#define RINGD_PROTO_SEGMENT_VIEW_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/segment.h"

namespace ringd::segment {

// What a rank publishes.
struct Publication {
  uint64_t sequence = 0;
  uint64_t signature = 0;
  const void* data = nullptr;
  uint32_t bytes = 0;  // <= kSmallBytes.
};

// A mapped segment. Copyable; owns nothing. Thread-safe as far as each word's writer is one.
class View {
 public:
  View() = default;
  View(std::byte* base, uint32_t rank_count) : base_(base), rank_count_(rank_count) {}

  uint32_t rank_count() const { return rank_count_; }
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  Line& line(uint32_t rank) const {
    return *reinterpret_cast<Line*>(base_ + kHeaderBytes + rank * sizeof(Line));
  }
  Slot& slot(uint32_t rank, uint32_t index) const {
    return *reinterpret_cast<Slot*>(base_ + kHeaderBytes + rank_count_ * sizeof(Line) +
                                    (rank * kSlotCount + index) * sizeof(Slot));
  }

  // The newest operation that the rank has published.
  uint64_t Newest(uint32_t rank) const {
    const uint64_t first = line(rank).notes[0].sequence.load(std::memory_order_relaxed);
    const uint64_t second = line(rank).notes[1].sequence.load(std::memory_order_relaxed);
    return first > second ? first : second;
  }

  // Which slot the rank writes next.
  uint32_t NextSlot(uint32_t rank) const {
    const Note* const notes = line(rank).notes;
    return notes[0].sequence.load(std::memory_order_relaxed) >
                   notes[1].sequence.load(std::memory_order_relaxed)
               ? 1
               : 0;
  }

  // The slot of the rank that has operation `sequence`; -1: none (any more). REQUIRES: the caller
  // has read a flag of the rank, or this is a guess to be looked at again.
  int Find(uint32_t rank, uint64_t sequence) const {
    const Note* const notes = line(rank).notes;
    for (uint32_t i = 0; i < kSlotCount; ++i) {
      if (notes[i].sequence.load(std::memory_order_acquire) == sequence) return static_cast<int>(i);
    }
    return -1;
  }

  // Where the slot's data of `bytes` bytes are.
  const std::byte* Data(uint32_t rank, uint32_t index, uint64_t bytes) const {
    if (bytes <= kInlineBytes) {
      return reinterpret_cast<const std::byte*>(&line(rank).notes[index].data);
    }
    return slot(rank, index).data;
  }

  // Begins to write the slot: its former operation is gone.
  void Open(uint32_t rank, uint32_t index) const {
    line(rank).notes[index].sequence.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }

  // Writes note and data of an open slot, then the flag. Returns whether somebody may sleep on it.
  bool Publish(uint32_t rank, uint32_t index, const Publication& publication) const {
    Note& note = line(rank).notes[index];
    if (publication.bytes <= kInlineBytes) {
      uint64_t word = 0;
      if (publication.bytes > 0) std::memcpy(&word, publication.data, publication.bytes);
      note.data.store(word, std::memory_order_relaxed);
    } else {
      std::memcpy(slot(rank, index).data, publication.data, publication.bytes);
    }
    note.signature.store(publication.signature, std::memory_order_relaxed);
    note.sequence.store(publication.sequence, std::memory_order_release);
    line(rank).flag.store(static_cast<uint32_t>(publication.sequence));
    return line(rank).sleepers.load() > 0;
  }

 private:
  std::byte* base_ = nullptr;
  uint32_t rank_count_ = 0;
};

// Hash of what ranks must agree on beyond the operation's own signature.
constexpr uint64_t SignatureOf(const arena::Descriptor& descriptor) {
  return descriptor.signature ^ ((descriptor.count + 1) * 0x9e3779b97f4a7c15);
}

}  // namespace ringd::segment

#endif  // RINGD_PROTO_SEGMENT_VIEW_H_
