#include "daemon/engine/segment/shared_segment.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/base/word_copy.h"
#include "common/reduce/reduce.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kMaxSequence = uint64_t{1} << 62;

// Whether an operation is one that ranks carry out in a segment; *bytes: of each rank's data.
bool IsSound(const arena::Descriptor& description, int rank_count, uint64_t* bytes) {
  *bytes = 0;
  if (description.operation == Operation::kBarrier) return true;
  const uint64_t element = DTypeBytes(description.dtype);
  if (element == 0 || description.count > segment::kSmallBytes / element) return false;
  if (description.ndim > arena::kMaxInlineDims) return false;
  *bytes = description.count * element;
  switch (description.operation) {
    case Operation::kAllreduce:
      return IsReducible(description.dtype, description.reduction);
    case Operation::kBroadcast:
      return description.root >= 0 && description.root < rank_count;
    case Operation::kAllgather:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool SharedSegment::IsFor(int rank_count) {
  return rank_count >= 2 && rank_count <= static_cast<int>(segment::kMaxRanks);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(int rank_count) {
  const uint64_t bytes = segment::SegmentBytes(static_cast<uint32_t>(rank_count));
  UniqueFd fd;
  if (const int error = CreateSealedMemory("ringd-segment", bytes, &fd); error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("making a job's shared segment of ", bytes, " bytes: ", strerror(-error)));
  }
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mapping a job's shared segment: ", strerror(errno)));
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(std::move(fd), base, bytes, rank_count));
}

SharedSegment::SharedSegment(UniqueFd fd, void* base, uint64_t bytes, int rank_count)
    : fd_(std::move(fd)),
      view_(static_cast<std::byte*>(base), static_cast<uint32_t>(rank_count)),
      base_(base),
      bytes_(bytes) {
  segment::Header& header = view_.header();
  header.magic = segment::kMagic;
  header.layout_version = segment::kLayoutVersion;
  header.rank_count = static_cast<uint32_t>(rank_count);
  header.bytes = bytes;
}

SharedSegment::~SharedSegment() { munmap(base_, bytes_); }

void SharedSegment::SetWaiting(bool waiting) {
  if (waiting == waiting_) return;
  waiting_ = waiting;
  StoreAttention();
}

void SharedSegment::Close() {
  closed_ = true;
  StoreAttention();
  WakeAll();
}

void SharedSegment::Pause(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  StoreAttention();
  if (paused) WakeAll();
}

void SharedSegment::WakeAll() {
  for (int rank = 0; rank < rank_count(); ++rank) FutexWakeAll(&view_.line(rank).flag);
}

void SharedSegment::StoreAttention() {
  view_.header().attention.store((waiting_ ? segment::kRing : 0u) |
                                 (closed_ || paused_ ? segment::kClosed : 0u));
}

SharedSegment::Sequences SharedSegment::Published(int rank) const {
  Sequences sequences;
  view_.line(rank).flag.load();  // In one order with SetWaiting.
  for (uint32_t i = 0; i < segment::kSlotCount; ++i) {
    const uint64_t sequence = view_.line(rank).notes[i].sequence.load(std::memory_order_acquire);
    sequences[i] = sequence <= kMaxSequence ? sequence : 0;
  }
  return sequences;
}

uint64_t SharedSegment::Newest(int rank) const {
  const Sequences sequences = Published(rank);
  return *std::max_element(sequences.begin(), sequences.end());
}

std::unique_ptr<Request> SharedSegment::Take(int rank, uint64_t sequence) const {
  const int index = view_.Find(rank, sequence);
  if (index < 0) return nullptr;
  // Word by word: what is judged is what is used, whatever the rank writes meanwhile.
  arena::Descriptor description;
  const segment::Slot& slot = view_.slot(rank, index);
  LoadWords(&description, &slot.description, sizeof(description));
  uint64_t bytes = 0;
  if (!IsSound(description, rank_count(), &bytes)) return nullptr;
  auto request = std::make_unique<Request>();
  request->direct = true;
  request->sequence = sequence;
  request->operation = description.operation;
  request->signature = description.signature;
  request->tag = description.tag;
  request->site.assign(slot.site, strnlen(slot.site, sizeof(slot.site)));
  request->shape.assign(
      description.dims,
      description.dims + std::min<uint32_t>(description.ndim, arena::kMaxInlineDims));
  if (request->operation == Operation::kBroadcast) request->root = description.root;
  if (request->operation == Operation::kAllreduce) {
    request->reduction = description.reduction;
    request->prescale = description.prescale;
    request->postscale = description.postscale;
  }
  if (request->operation != Operation::kBarrier) {
    request->dtype = description.dtype;
    request->count = description.count;
  }
  const uint64_t output_bytes =
      request->operation == Operation::kAllgather ? bytes * rank_count() : bytes;
  request->scratch.resize(bytes + output_bytes);
  if (bytes > 0) {
    memcpy(request->scratch.data(), view_.Data(rank, index, bytes), bytes);
    request->buffer = {request->scratch.data(), request->scratch.data() + bytes};
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return view_.Find(rank, sequence) == index ? std::move(request) : nullptr;
}

void SharedSegment::Publish(int rank, const Request& request) {
  if (Newest(rank) >= request.sequence) return;
  segment::Publication publication;
  publication.sequence = request.sequence;
  const bool reads = request.operation != Operation::kBroadcast || request.root == rank;
  const uint64_t bytes = reads ? request.count * DTypeBytes(request.dtype) : 0;
  if (bytes > segment::kSmallBytes) return;
  publication.data = request.buffer.input;
  publication.bytes = static_cast<uint32_t>(bytes);
  arena::Descriptor description{};
  description.operation = request.operation;
  description.dtype = request.dtype;
  description.reduction = request.reduction;
  description.count = request.count;
  description.signature = request.signature;
  description.prescale = request.prescale;
  description.postscale = request.postscale;
  description.root = request.root;
  description.tag = request.tag;
  const size_t ndim = std::min<size_t>(request.shape.size(), arena::kMaxInlineDims);
  description.ndim = static_cast<uint8_t>(ndim);
  for (size_t i = 0; i < ndim; ++i) description.dims[i] = static_cast<uint32_t>(request.shape[i]);
  publication.signature = segment::SignatureOf(description);
  const uint32_t index = view_.NextSlot(rank);
  view_.Open(rank, index);
  segment::Slot& slot = view_.slot(rank, index);
  memcpy(&slot.description, &description, sizeof(description));
  const size_t site_bytes = std::min<size_t>(request.site.size(), segment::kSiteBytes - 1);
  memcpy(slot.site, request.site.data(), site_bytes);
  slot.site[site_bytes] = '\0';
  if (view_.Publish(rank, index, publication)) FutexWakeAll(&view_.line(rank).flag);
}

}  // namespace ringd::daemon
