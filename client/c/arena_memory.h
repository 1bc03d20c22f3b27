// An arena as this process sees it: its mapped segments and who uses which part of the slab.
#ifndef RINGD_CLIENT_C_ARENA_MEMORY_H_
#define RINGD_CLIENT_C_ARENA_MEMORY_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "client/c/slab.h"
#include "common/base/fd.h"
#include "proto/arena.h"

namespace ringd::client {

// True in a process that was forked while its parent had an attached arena: nothing works here any
// more.
bool IsForkedChild();

// Mapped segments of one arena. Segment 0 begins with header, queue, slots and errors; the rest is
// slab.
//
// Life: Create maps segment 0; Detach when the client ends; the destructor unmaps. Callers' blocks
// keep an object alive beyond its client (see ringd.cc): their arrays stay readable. fork: in the
// child, slabs are private copies and the other parts are not mapped. Ownership: descriptors are
// taken over and kept, for the child's sake. Thread-safe.
class ArenaMemory {
 public:
  // RINGD_INTERNAL: not a segment 0 as proto/arena.h says; RINGD_RESOURCE_EXHAUSTED: mmap.
  static int Create(UniqueFd fd, uint64_t bytes, std::shared_ptr<ArenaMemory>* memory);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  // The next segment, all slab. One thread at a time.
  int AddSegment(UniqueFd fd, uint64_t bytes);

  arena::ArenaHeader& header() const { return *header_; }
  arena::Descriptor* queue() const { return queue_; }
  arena::Slot& slot(uint32_t index) const { return slots_[index]; }
  arena::ErrorRecord& error_record(uint32_t index) const { return errors_[index]; }

  uint32_t segment_count() const { return segment_count_.load(std::memory_order_acquire); }
  uint64_t total_bytes() const;

  std::byte* Pointer(arena::Ref ref) const {
    return segments_[arena::RefSegment(ref)].base + arena::RefOffset(ref);
  }
  // kNullRef: outside of every slab. Bytes that reach over the end are not looked at.
  arena::Ref RefOf(const void* pointer) const;

  arena::Ref Allocate(uint64_t bytes, Slab::Holder holder);
  bool Free(arena::Ref block);
  arena::Ref Acquire(arena::Ref first, uint64_t bytes);
  void Release(arena::Ref block);
  uint64_t caller_blocks() const;

  // The client has ended: a fork no longer makes the child unusable.
  void Detach() { attached_.store(false, std::memory_order_relaxed); }

 private:
  struct Segment {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    uint64_t slab_offset = 0;
    UniqueFd fd;
  };
  struct ForkHandlers;

  ArenaMemory() = default;
  int Map(UniqueFd fd, uint64_t bytes, uint64_t slab_offset);
  void RemapInChild();

  // Constant after Create.
  arena::ArenaHeader* header_ = nullptr;
  arena::Descriptor* queue_ = nullptr;
  arena::Slot* slots_ = nullptr;
  arena::ErrorRecord* errors_ = nullptr;

  // Thread-safe on their own: a segment never changes once it is counted.
  std::array<Segment, arena::kMaxSegments> segments_;
  std::atomic<uint32_t> segment_count_{0};
  std::atomic<bool> attached_{true};

  mutable std::mutex mu_;
  Slab slab_;  // Guarded by mu_.
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_ARENA_MEMORY_H_
