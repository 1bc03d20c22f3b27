#include "client/c/standalone.h"

#include <string.h>
#include <sys/mman.h>

#include "client/c/error.h"
#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/reduce/reduce.h"

namespace ringd::client {

int CreateStandaloneSegment(uint64_t bytes, bool first, UniqueFd* fd) {
  if (const int error = CreateSealedMemory("ringd-standalone", bytes, fd); error != 0) {
    return FailFormat(Code::kResourceExhausted, "making an arena segment of %llu bytes: %s",
                      static_cast<unsigned long long>(bytes), strerror(-error));
  }
  if (!first) return RINGD_OK;
  void* const base =
      mmap(nullptr, arena::kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (base == MAP_FAILED) return Fail(Code::kResourceExhausted, "mapping the arena's header");
  constexpr arena::Offsets kOffsets = arena::SegmentOffsets();
  auto* const header = static_cast<arena::ArenaHeader*>(base);
  header->magic = arena::kMagic;
  header->layout_version = arena::kLayoutVersion;
  header->header_bytes = arena::kHeaderBytes;
  header->segment_bytes = bytes;
  header->queue_offset = kOffsets.queue;
  header->slots_offset = kOffsets.slots;
  header->errors_offset = kOffsets.errors;
  header->slab_offset = kOffsets.slab;
  header->slot_count = arena::kSlotCount;
  header->error_record_count = arena::kErrorRecordCount;
  header->incarnation.store(1, std::memory_order_relaxed);
  header->generation.store(1, std::memory_order_relaxed);
  munmap(base, arena::kHeaderBytes);
  return RINGD_OK;
}

void RunStandalone(const arena::Descriptor& descriptor, ArenaMemory& memory) {
  arena::ArenaHeader& header = memory.header();
  if (descriptor.count > 0) {
    const void* const input = memory.Pointer(descriptor.input);
    void* const output = memory.Pointer(descriptor.output);
    const uint64_t bytes = descriptor.count * DTypeBytes(descriptor.dtype);
    const bool scaled = descriptor.prescale != 1.0 || descriptor.postscale != 1.0;
    if (scaled && descriptor.reduction != Reduction::kNone) {
      const Scaling scaling{.prescale = descriptor.prescale, .postscale = descriptor.postscale};
      Reduce(descriptor.dtype, descriptor.reduction, &input, 1, &output, 1, descriptor.count,
             scaling);
    } else if (input != output) {
      memmove(output, input, bytes);
    }
    if (descriptor.reduction != Reduction::kNone) {
      header.bytes_reduced.fetch_add(bytes, std::memory_order_relaxed);
    }
  }
  header.operations.fetch_add(1, std::memory_order_relaxed);
  header.tail.fetch_add(1, std::memory_order_release);
  arena::Slot& slot = memory.slot(descriptor.slot);
  slot.code.store(0, std::memory_order_relaxed);
  slot.error.store(0, std::memory_order_relaxed);
  slot.word.store(descriptor.number);
  if (slot.waiters.load() > 0) FutexWakeAll(&slot.word);
}

}  // namespace ringd::client
