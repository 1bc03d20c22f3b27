#include "client/session/arena_keeper.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/sealed_memory.h"
#include "common/status/macros.h"
#include "proto/arena.h"

namespace ringd::session {
namespace {

constexpr uint64_t kFirstShare = 4;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2u << 20;  // Segments are whole huge pages where there is room.
constexpr uint64_t kGrowthBytes =
    64u << 20;  // Least growth: an arena of 64 GB then stays far below kMaxSegments,
constexpr uint64_t kGrowthShare = 4;  // since each segment adds a quarter of what there is, too.
constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 46;  // Offsets have 48 bits.

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
uint64_t RoundDown(uint64_t value, uint64_t unit) { return value / unit * unit; }

absl::Status WriteHeader(int fd, uint64_t bytes) {
  void* memory = mmap(nullptr, arena::kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mapping a new arena: ", strerror(errno)));
  }
  constexpr arena::Offsets kOffsets = arena::SegmentOffsets();
  auto* header = new (memory) arena::ArenaHeader{};
  header->layout_version = arena::kLayoutVersion;
  header->header_bytes = arena::kHeaderBytes;
  header->segment_bytes = bytes;
  header->queue_offset = kOffsets.queue;
  header->slots_offset = kOffsets.slots;
  header->errors_offset = kOffsets.errors;
  header->slab_offset = kOffsets.slab;
  header->slot_count = arena::kSlotCount;
  header->error_record_count = arena::kErrorRecordCount;
  header->magic = arena::kMagic;
  munmap(memory, arena::kHeaderBytes);
  return absl::OkStatus();
}

}  // namespace

ArenaSizes ChooseArenaSizes(uint64_t arena_bytes, uint64_t arena_max_bytes,
                            const MemoryLimit& limit, int sharers) {
  ArenaSizes sizes;
  const uint64_t wanted_max = arena_max_bytes != 0 ? arena_max_bytes : limit.limit_bytes / 2;
  sizes.max_bytes = std::clamp(RoundDown(wanted_max, kPage), arena::kMinBytes, kMaxSegmentBytes);
  const uint64_t share = limit.available_bytes / static_cast<uint64_t>(std::max(sharers, 1));
  uint64_t first = std::min(arena::kDefaultBytes, share / kFirstShare);
  if (arena_bytes != 0)
    first = arena_bytes <= limit.available_bytes ? arena_bytes : limit.available_bytes / 2;
  first = std::min(std::min(first, kMaxSegmentBytes) + kHugePage - 1, sizes.max_bytes);
  sizes.first_bytes = std::max(RoundDown(first, kHugePage), arena::kMinBytes);
  return sizes;
}

ArenaKeeper::ArenaKeeper(uint64_t arena_bytes, uint64_t arena_max_bytes, LimitReader read_limit,
                         int sharers)
    : arena_bytes_(arena_bytes),
      read_limit_(std::move(read_limit)),
      sharers_(sharers),
      max_bytes_(arena_max_bytes) {}

absl::Status ArenaKeeper::CreateFirst() {
  const MemoryLimit limit = read_limit_();
  const ArenaSizes sizes = ChooseArenaSizes(arena_bytes_, max_bytes_, limit, sharers_);
  RINGD_RETURN_IF_ERROR(Add(sizes.first_bytes, limit));
  max_bytes_ = sizes.max_bytes;
  if (absl::Status status = WriteHeader(segments_[0].fd.get(), sizes.first_bytes); !status.ok()) {
    segments_.clear();
    total_bytes_ = 0;
    return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ArenaKeeper::Grow(uint64_t bytes) {
  const auto index = static_cast<uint32_t>(segments_.size());
  if (index >= arena::kMaxSegments) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the arena has ", index, " segments already, its most; allocate in larger pieces"));
  }
  const uint64_t room = max_bytes_ - std::min(max_bytes_, total_bytes_);
  if (bytes > kMaxSegmentBytes || RoundUp(bytes, kPage) > room) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the arena holds ", FormatBytes(total_bytes_), " and ", FormatBytes(bytes),
                     " more were asked for, but its most is ", FormatBytes(max_bytes_),
                     " (arena_max); raise --arena-max or free memory"));
  }
  const MemoryLimit limit = read_limit_();
  const uint64_t least = std::max<uint64_t>(RoundUp(bytes, kPage), kPage);
  const uint64_t ample =
      RoundUp(std::max({least, kGrowthBytes, total_bytes_ / kGrowthShare}), kHugePage);
  const bool ample_fits = ample <= room && ample <= limit.available_bytes / 2;
  RINGD_RETURN_IF_ERROR(Add(ample_fits ? ample : least, limit));
  return index;
}

absl::Status ArenaKeeper::Add(uint64_t bytes, const MemoryLimit& limit) {
  if (bytes > limit.available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        FormatBytes(bytes), " more for the arena don't fit: ", FormatBytes(limit.available_bytes),
        " of ", FormatBytes(limit.limit_bytes), " (", limit.source,
        ") are free; raise the memory limit or use less"));
  }
  Segment segment;
  segment.bytes = bytes;
  if (const int rc = CreateSealedMemory("ringd-arena", bytes, &segment.fd); rc < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("making ", FormatBytes(bytes), " of arena memory: ", strerror(-rc)));
  }
  segments_.push_back(std::move(segment));
  total_bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace ringd::session
