#include "client/c/arena_memory.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/c/error.h"

namespace ringd::client {
namespace {

// fork concerns the process, so the list of its arenas is one of the process.
struct ForkRegistry {
  std::once_flag once;
  std::mutex mu;
  std::vector<ArenaMemory*> memories;  // Guarded by mu.
  std::atomic<bool> forked{false};
};

ForkRegistry& Registry() {
  static auto* const registry = new ForkRegistry;
  return *registry;
}

bool IsLayoutKnown(const arena::ArenaHeader& header, uint64_t bytes) {
  constexpr arena::Offsets kOffsets = arena::SegmentOffsets();
  return header.magic == arena::kMagic && header.layout_version == arena::kLayoutVersion &&
         header.header_bytes == arena::kHeaderBytes && header.segment_bytes == bytes &&
         header.queue_offset == kOffsets.queue && header.slots_offset == kOffsets.slots &&
         header.errors_offset == kOffsets.errors && header.slab_offset == kOffsets.slab &&
         header.slot_count == arena::kSlotCount &&
         header.error_record_count == arena::kErrorRecordCount;
}

}  // namespace

// The three handlers of pthread_atfork. The lock is held across the fork so that the child finds
// the list whole.
struct ArenaMemory::ForkHandlers {
  static void Prepare() { Registry().mu.lock(); }
  static void Parent() { Registry().mu.unlock(); }
  static void Child() {
    ForkRegistry& registry = Registry();
    for (ArenaMemory* memory : registry.memories) {
      if (memory->attached_.load(std::memory_order_relaxed)) registry.forked.store(true);
      memory->RemapInChild();
    }
    registry.mu.unlock();
  }
};

bool IsForkedChild() { return Registry().forked.load(std::memory_order_relaxed); }

int ArenaMemory::Create(UniqueFd fd, uint64_t bytes, std::shared_ptr<ArenaMemory>* memory) {
  constexpr arena::Offsets kOffsets = arena::SegmentOffsets();
  if (bytes <= kOffsets.slab) {
    return FailFormat(Code::kInternal, "segment 0 of the arena has only %llu bytes",
                      static_cast<unsigned long long>(bytes));
  }
  std::shared_ptr<ArenaMemory> created(new ArenaMemory);
  if (const int code = created->Map(std::move(fd), bytes, kOffsets.slab); code != RINGD_OK) {
    return code;
  }
  std::byte* const base = created->segments_[0].base;
  created->header_ = reinterpret_cast<arena::ArenaHeader*>(base);
  created->queue_ = reinterpret_cast<arena::Descriptor*>(base + kOffsets.queue);
  created->slots_ = reinterpret_cast<arena::Slot*>(base + kOffsets.slots);
  created->errors_ = reinterpret_cast<arena::ErrorRecord*>(base + kOffsets.errors);
  if (!IsLayoutKnown(*created->header_, bytes)) {
    return Fail(Code::kInternal,
                "the arena's layout is not the one of this library; install the same version of "
                "ringd for the job and its daemon");
  }
  ForkRegistry& registry = Registry();
  std::call_once(registry.once, [] {
    pthread_atfork(&ForkHandlers::Prepare, &ForkHandlers::Parent, &ForkHandlers::Child);
  });
  {
    std::lock_guard lock(registry.mu);
    registry.memories.push_back(created.get());
  }
  *memory = std::move(created);
  return RINGD_OK;
}

ArenaMemory::~ArenaMemory() {
  ForkRegistry& registry = Registry();
  {
    std::lock_guard lock(registry.mu);
    std::erase(registry.memories, this);
  }
  for (uint32_t i = 0; i < segment_count(); ++i) munmap(segments_[i].base, segments_[i].bytes);
}

int ArenaMemory::AddSegment(UniqueFd fd, uint64_t bytes) { return Map(std::move(fd), bytes, 0); }

int ArenaMemory::Map(UniqueFd fd, uint64_t bytes, uint64_t slab_offset) {
  const uint32_t index = segment_count();
  if (index == arena::kMaxSegments) {
    return FailFormat(Code::kResourceExhausted, "an arena can't have more than %u segments",
                      arena::kMaxSegments);
  }
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return FailFormat(Code::kResourceExhausted, "mapping %llu bytes of the arena: %s",
                      static_cast<unsigned long long>(bytes), strerror(errno));
  }
  if (slab_offset > 0) madvise(base, slab_offset, MADV_DONTFORK);
  segments_[index] = Segment{.base = static_cast<std::byte*>(base),
                             .bytes = bytes,
                             .slab_offset = slab_offset,
                             .fd = std::move(fd)};
  {
    std::lock_guard lock(mu_);
    slab_.AddSegment(index, slab_offset, bytes);
  }
  segment_count_.store(index + 1, std::memory_order_release);
  return RINGD_OK;
}

void ArenaMemory::RemapInChild() {
  for (uint32_t i = 0; i < segment_count(); ++i) {
    const Segment& segment = segments_[i];
    mmap(segment.base + segment.slab_offset, segment.bytes - segment.slab_offset,
         PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, segment.fd.get(),
         static_cast<off_t>(segment.slab_offset));
  }
}

uint64_t ArenaMemory::total_bytes() const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < segment_count(); ++i) total += segments_[i].bytes;
  return total;
}

arena::Ref ArenaMemory::RefOf(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (uint32_t i = 0; i < segment_count(); ++i) {
    const uint64_t offset = address - reinterpret_cast<uintptr_t>(segments_[i].base);
    if (offset < segments_[i].bytes) {
      return offset < segments_[i].slab_offset ? arena::kNullRef : arena::MakeRef(i, offset);
    }
  }
  return arena::kNullRef;
}

arena::Ref ArenaMemory::Allocate(uint64_t bytes, Slab::Holder holder) {
  std::lock_guard lock(mu_);
  return slab_.Allocate(bytes, holder);
}

bool ArenaMemory::Free(arena::Ref block) {
  std::lock_guard lock(mu_);
  return slab_.Free(block);
}

arena::Ref ArenaMemory::Acquire(arena::Ref first, uint64_t bytes) {
  std::lock_guard lock(mu_);
  return slab_.Acquire(first, bytes);
}

void ArenaMemory::Release(arena::Ref block) {
  std::lock_guard lock(mu_);
  slab_.Release(block);
}

uint64_t ArenaMemory::caller_blocks() const {
  std::lock_guard lock(mu_);
  return slab_.caller_blocks();
}

}  // namespace ringd::client
