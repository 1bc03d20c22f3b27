#include "daemon/engine/arena/arena_view.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/base/spread_map.h"
#include "common/base/word_copy.h"

namespace ringd::daemon {
namespace {

constexpr arena::Offsets kOffsets = arena::SegmentOffsets();
constexpr uint64_t kMaxSegmentBytes = uint64_t{1}
                                      << 47;  // What an offset can name, with room to add.

template <size_t N>
void CopyText(const std::string& text, char (&out)[N]) {
  const size_t bytes = std::min(text.size(), N - 1);
  std::memcpy(out, text.data(), bytes);
  std::memset(out + bytes, 0, N - bytes);
}

absl::Status CheckHeader(const arena::ArenaHeader& header, uint64_t bytes) {
  const bool as_agreed =
      header.magic == arena::kMagic && header.layout_version == arena::kLayoutVersion &&
      header.header_bytes == arena::kHeaderBytes && header.segment_bytes == bytes &&
      header.queue_offset == kOffsets.queue && header.slots_offset == kOffsets.slots &&
      header.errors_offset == kOffsets.errors && header.slab_offset == kOffsets.slab &&
      header.slot_count == arena::kSlotCount &&
      header.error_record_count == arena::kErrorRecordCount;
  if (as_agreed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the arena's header is not that of layout ", arena::kLayoutVersion,
                   "; use a worker and a daemon of the same release"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaView>> ArenaView::Map(UniqueFd fd, uint64_t bytes,
                                                          uint32_t place) {
  if (bytes <= kOffsets.slab)
    return absl::InvalidArgumentError("the arena's first segment is too small");
  std::unique_ptr<ArenaView> view(new ArenaView(place));
  absl::Status status = view->MapSegment(std::move(fd), bytes, kOffsets.slab);
  if (status.ok()) status = CheckHeader(*view->header(), bytes);
  if (!status.ok()) return status;
  view->ReadFormerState();
  return view;
}

void ArenaView::ReadFormerState() {
  was_served_ = header()->incarnation.load(std::memory_order_acquire) != 0;
  if (!was_served_) return;
  for (uint32_t i = 0; i < arena::kErrorRecordCount; ++i) {
    error_serial_ = std::max(error_serial_, records()[i].serial.load(std::memory_order_relaxed));
  }
  poisoned_ = header()->poison.load(std::memory_order_seq_cst) != 0;
}

ArenaView::~ArenaView() {
  for (Segment& segment : segments_) {
    segment.guard = SigbusGuard();
    munmap(segment.data, segment.bytes);
  }
}

absl::Status ArenaView::AddSegment(uint32_t index, UniqueFd fd, uint64_t bytes) {
  if (index != segments_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", index, " out of turn: the next is ", segments_.size()));
  }
  if (index >= arena::kMaxSegments) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an arena has at most ", arena::kMaxSegments, " segments"));
  }
  return MapSegment(std::move(fd), bytes, 0);
}

absl::Status ArenaView::MapSegment(UniqueFd fd, uint64_t bytes, uint64_t first) {
  if (bytes == 0 || bytes > kMaxSegmentBytes || CheckSealedMemory(fd.get(), bytes) != 0) {
    return absl::InvalidArgumentError(
        "the arena's segment is not a sealed memfd of the size given");
  }
  void* data = MapSpread(fd.get(), bytes, place_);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("can't map ", bytes, " bytes of an arena: ", std::strerror(errno)));
  }
  SigbusGuard guard(data, bytes);
  if (!guard.active()) {
    munmap(data, bytes);
    return absl::ResourceExhaustedError(absl::StrCat("this daemon maps ", SigbusGuard::kMaxRanges,
                                                     " segments already; use larger ones"));
  }
  segments_.push_back({static_cast<std::byte*>(data), bytes, first, std::move(guard)});
  return absl::OkStatus();
}

arena::ArenaHeader* ArenaView::header() const {
  return reinterpret_cast<arena::ArenaHeader*>(segments_[0].data);
}

arena::Slot* ArenaView::slots() const {
  return reinterpret_cast<arena::Slot*>(segments_[0].data + kOffsets.slots);
}

arena::ErrorRecord* ArenaView::records() const {
  return reinterpret_cast<arena::ErrorRecord*>(segments_[0].data + kOffsets.errors);
}

std::byte* ArenaView::Resolve(arena::Ref ref, uint64_t bytes, uint64_t alignment) const {
  const uint32_t index = arena::RefSegment(ref);
  const uint64_t offset = arena::RefOffset(ref);
  if (index >= segments_.size()) return nullptr;
  const Segment& segment = segments_[index];
  if (offset < segment.first || offset > segment.bytes || bytes > segment.bytes - offset)
    return nullptr;
  if ((offset & (alignment - 1)) != 0) return nullptr;
  return segment.data + offset;
}

uint64_t ArenaView::head() const { return header()->head.load(std::memory_order_seq_cst); }

arena::Descriptor ArenaView::ReadDescriptor(uint64_t index) const {
  arena::Descriptor copy;
  std::memcpy(&copy,
              segments_[0].data + kOffsets.queue + (index % arena::kSlotCount) * sizeof(copy),
              sizeof(copy));
  // The copy is what is validated and used: the compiler must not read the client's memory again.
  asm volatile("" : : "r"(&copy) : "memory");
  return copy;
}

uint64_t ArenaView::tail() const { return header()->tail.load(std::memory_order_acquire); }

void ArenaView::set_tail(uint64_t tail) { header()->tail.store(tail, std::memory_order_release); }

void ArenaView::set_sleeping(bool sleeping) {
  header()->sleeping.store(sleeping ? 1 : 0, std::memory_order_seq_cst);
}

void ArenaView::SetConstants(uint64_t incarnation, uint64_t generation, uint64_t sequence) {
  header()->sequence.store(sequence, std::memory_order_relaxed);
  header()->generation.store(generation, std::memory_order_release);
  header()->incarnation.store(incarnation, std::memory_order_release);
}

void ArenaView::SetSequence(uint64_t sequence) {
  header()->sequence.store(sequence, std::memory_order_relaxed);
}

uint32_t ArenaView::SlotWord(uint32_t slot) const {
  return slots()[slot].word.load(std::memory_order_relaxed);
}

uint32_t ArenaView::threads() const { return header()->threads.load(std::memory_order_relaxed); }

uint32_t ArenaView::BlockedThreads(uint32_t slot) const {
  return slots()[slot].waiters.load(std::memory_order_relaxed) / arena::kBlockedWaiter;
}

uint32_t ArenaView::WriteError(const Outcome& outcome) {
  if (++error_serial_ == 0) ++error_serial_;
  arena::ErrorDetails details;
  details.rank = outcome.rank;
  details.exit_code = outcome.exit_code;
  details.signal = outcome.signal;
  CopyText(outcome.node, details.node);
  CopyText(outcome.message, details.message);
  CopyText(outcome.stderr_tail, details.stderr_tail);
  arena::ErrorRecord& record = records()[error_serial_ % arena::kErrorRecordCount];
  record.serial.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  StoreWords(&record.details, &details, sizeof(details));
  record.serial.store(error_serial_, std::memory_order_release);
  return error_serial_;
}

void ArenaView::Complete(uint32_t slot, uint32_t number, const Outcome& outcome) {
  arena::Slot& place = slots()[slot];
  place.error.store(outcome.ok() ? 0 : WriteError(outcome), std::memory_order_relaxed);
  place.code.store(static_cast<uint32_t>(outcome.code), std::memory_order_relaxed);
  place.word.store(number, std::memory_order_seq_cst);
  if (place.waiters.load(std::memory_order_seq_cst) != 0) FutexWakeAll(&place.word);
}

void ArenaView::Poison(const Outcome& outcome) {
  if (poisoned_) return;
  poisoned_ = true;
  header()->poison_error.store(WriteError(outcome), std::memory_order_relaxed);
  header()->poison.store(static_cast<uint32_t>(outcome.code), std::memory_order_seq_cst);
  FutexWakeAll(&header()->poison);
  for (uint32_t i = 0; i < arena::kSlotCount; ++i) {
    if (slots()[i].waiters.load(std::memory_order_seq_cst) != 0) FutexWakeAll(&slots()[i].word);
  }
}

void ArenaView::CountOperation(uint64_t bytes_reduced) {
  header()->operations.fetch_add(1, std::memory_order_relaxed);
  if (bytes_reduced > 0)
    header()->bytes_reduced.fetch_add(bytes_reduced, std::memory_order_relaxed);
}

void ArenaView::CountNegotiation(uint64_t messages) {
  header()->negotiation_messages.fetch_add(messages, std::memory_order_relaxed);
}

void ArenaView::CountStall() { header()->stalls.fetch_add(1, std::memory_order_relaxed); }

bool ArenaView::bad() const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [](const Segment& segment) { return segment.guard.bad(); });
}

}  // namespace ringd::daemon
