#include "client/c/direct_path.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "client/c/error.h"
#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/reduce/reduce.h"

namespace ringd::client {
namespace {

bool IsLayoutKnown(const segment::Header& header, uint64_t bytes, uint32_t rank_count) {
  return header.magic == segment::kMagic && header.layout_version == segment::kLayoutVersion &&
         header.rank_count == rank_count && header.bytes == bytes;
}

bool IsEven(const ringd_operation& operation) {
  return std::all_of(operation.counts, operation.counts + operation.count_count,
                     [&](int64_t count) { return count == operation.counts[0]; });
}

// Whether the descriptor says the whole shape.
bool IsShapeInline(const ringd_operation& operation) {
  return operation.ndim <= arena::kMaxInlineDims &&
         std::all_of(operation.shape, operation.shape + operation.ndim,
                     [](int64_t dim) { return dim <= int64_t{UINT32_MAX}; });
}

}  // namespace

bool IsDirect(const ringd_operation& operation, const OperationBytes& bytes) {
  if (operation.group != 0 || operation.name != nullptr || !IsShapeInline(operation)) return false;
  switch (static_cast<Operation>(operation.operation)) {
    case Operation::kBarrier:
      return true;
    case Operation::kAllreduce:
      return bytes.input <= segment::kSmallBytes &&
             IsReducible(static_cast<DType>(operation.dtype),
                         static_cast<Reduction>(operation.reduction));
    case Operation::kBroadcast:
      return bytes.output <= segment::kSmallBytes;
    case Operation::kAllgather:
      return bytes.input <= segment::kSmallBytes && IsEven(operation);
    default:
      return false;
  }
}

int DirectPath::Create(UniqueFd fd, const ringd_info& info, std::unique_ptr<DirectPath>* path) {
  const auto rank_count = static_cast<uint32_t>(info.world_size);
  const uint64_t bytes = segment::SegmentBytes(rank_count);
  const char* const kForeign =
      "the job's shared segment is not the one of this library; install the same version of ringd "
      "for the job and its daemon";
  if (rank_count < 2 || rank_count > segment::kMaxRanks ||
      CheckSealedMemory(fd.get(), bytes) != 0) {
    return Fail(Code::kInternal, kForeign);
  }
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return FailFormat(Code::kResourceExhausted, "mapping the job's shared segment: %s",
                      strerror(errno));
  }
  madvise(base, bytes, MADV_DONTFORK);
  path->reset(new DirectPath(base, bytes, info));
  if (IsLayoutKnown((*path)->view_.header(), bytes, rank_count)) return RINGD_OK;
  path->reset();
  return Fail(Code::kInternal, kForeign);
}

DirectPath::DirectPath(void* base, uint64_t bytes, const ringd_info& info)
    : base_(base),
      bytes_(bytes),
      view_(static_cast<std::byte*>(base), static_cast<uint32_t>(info.world_size)),
      rank_(static_cast<uint32_t>(info.rank)),
      rank_count_(static_cast<uint32_t>(info.world_size)) {}

DirectPath::~DirectPath() { munmap(base_, bytes_); }

uint64_t DirectPath::SequenceOf(ringd_handle handle) const {
  const uint64_t state = state_.load(std::memory_order_acquire);
  if (state == 0 || handle_.load(std::memory_order_acquire) != handle) return 0;
  return state >> 2;
}

void DirectPath::SetHandle(ringd_handle handle) {
  handle_.store(handle, std::memory_order_release);
}

bool DirectPath::MayPublish() const {
  if (closed()) return false;
  if (last_finished_) return true;
  // The operation before the last one may still be read by a rank that has published its own part.
  const uint64_t former =
      view_.line(rank_).notes[view_.NextSlot(rank_)].sequence.load(std::memory_order_relaxed);
  for (uint32_t rank = 0; rank < rank_count_; ++rank) {
    if (rank == rank_ || view_.Newest(rank) != former) continue;
    if (view_.line(rank).consumed.load(std::memory_order_acquire) < former) return false;
  }
  return true;
}

bool DirectPath::IsLikeTheLast(const ringd_operation& operation) const {
  if (operation.size != last_.size || operation.name != nullptr) return false;
  const bool has_memory = operation.input != nullptr && operation.output != nullptr;
  return has_memory && operation.count == last_.count && operation.operation == last_.operation &&
         operation.dtype == last_.dtype && operation.reduction == last_.reduction &&
         operation.group == last_.group && operation.root == last_.root &&
         operation.output_count == last_.output_count && operation.ndim == last_.ndim &&
         operation.count_count == 0 && last_.count_count == 0 &&
         operation.prescale == last_.prescale && operation.postscale == last_.postscale &&
         operation.tag == last_.tag && operation.wire == last_.wire &&
         operation.flags == last_.flags && (operation.ndim == 0 || operation.shape != nullptr) &&
         std::equal(operation.shape, operation.shape + operation.ndim, operation_.description.dims,
                    [](int64_t dim, uint32_t known) { return dim == int64_t{known}; });
}

void DirectPath::Learn(const ringd_operation& operation, const OperationBytes& bytes) {
  last_ = operation;
  ringd_operation agreed = operation;
  agreed.wire = 0;  // Nothing travels.
  operation_.description = DescribeOperation(agreed);
  operation_.bytes = bytes;
}

bool DirectPath::Publish(const ringd_operation& operation, uint64_t sequence, ringd_handle handle) {
  const uint32_t index = view_.NextSlot(rank_);
  const OperationBytes& bytes = operation_.bytes;
  arena::SetSequence(sequence, &operation_.description);
  operation_.sequence = sequence;
  operation_.output = operation.output;
  last_finished_ = false;
  SetHandle(handle);
  view_.Open(rank_, index);
  segment::Publication publication;
  publication.sequence = sequence;
  publication.signature = segment::SignatureOf(operation_.description);
  signature_.store(publication.signature, std::memory_order_relaxed);
  publication.data = operation.input;
  publication.bytes = bytes.reads_input ? static_cast<uint32_t>(bytes.input) : 0;
  operation_.input = view_.Data(rank_, index, bytes.input);
  const char* const site = operation.site == nullptr ? "" : operation.site;
  const bool same_site = strncmp(operation_.site, site, sizeof(operation_.site) - 1) == 0;
  if (!same_site) CopyText(site, operation_.site, sizeof(operation_.site));
  if (!same_site) described_ = {};
  if (described_[index] != publication.signature) {
    segment::Slot& slot = view_.slot(rank_, index);
    std::memcpy(&slot.description, &operation_.description, sizeof(slot.description));
    std::memcpy(slot.site, operation_.site, sizeof(slot.site));
    described_[index] = publication.signature;
  }
  state_.store(StateOf(sequence, kPending), std::memory_order_release);
  if (view_.Publish(rank_, index, publication)) FutexWakeAll(&view_.line(rank_).flag);
  return (view_.header().attention.load() & segment::kRing) != 0;
}

DirectPath::State DirectPath::Look(uint64_t sequence, uint32_t* waits_for) const {
  const auto flag = static_cast<uint32_t>(sequence);
  for (uint32_t rank = *waits_for; rank < rank_count_; ++rank) {
    if (rank == rank_) continue;
    const segment::Line& line = view_.line(rank);
    if (static_cast<int32_t>(line.flag.load(std::memory_order_acquire) - flag) < 0) {
      *waits_for = rank;
      return IsPending(sequence) ? State::kWaiting : State::kGone;
    }
    const int index = view_.Find(rank, sequence);
    const uint64_t mine = signature_.load(std::memory_order_relaxed);
    if (index < 0 || line.notes[index].signature.load(std::memory_order_relaxed) != mine) {
      return IsPending(sequence) ? State::kTrouble : State::kGone;
    }
  }
  return State::kReady;
}

bool DirectPath::BeginFinish(uint64_t sequence) {
  uint64_t pending = StateOf(sequence, kPending);
  return state_.compare_exchange_strong(pending, StateOf(sequence, kFinishing),
                                        std::memory_order_acquire);
}

bool DirectPath::Finish() {
  const uint64_t sequence = operation_.sequence;
  const uint64_t bytes = operation_.bytes.input;
  std::array<const void*, segment::kMaxRanks> data;
  std::array<int, segment::kMaxRanks> indices;
  for (uint32_t rank = 0; rank < rank_count_; ++rank) {
    indices[rank] = view_.Find(rank, sequence);
    data[rank] = view_.Data(rank, static_cast<uint32_t>(std::max(indices[rank], 0)), bytes);
  }
  if (bytes > 0) Compute(data);
  std::atomic_thread_fence(std::memory_order_acquire);
  for (uint32_t rank = 0; rank < rank_count_; ++rank) {
    if (indices[rank] >= 0 && view_.Find(rank, sequence) == indices[rank]) continue;
    TakeBack();
    return false;
  }
  view_.line(rank_).consumed.store(sequence, std::memory_order_release);
  last_finished_ = true;
  const bool reduces = operation_.description.operation == Operation::kAllreduce;
  // One writer at a time: whoever finishes.
  operations_.store(operations() + 1, std::memory_order_relaxed);
  bytes_reduced_.store(bytes_reduced() + (reduces ? bytes : 0), std::memory_order_relaxed);
  return true;
}

void DirectPath::Compute(const std::array<const void*, segment::kMaxRanks>& data) const {
  const arena::Descriptor& description = operation_.description;
  const uint64_t bytes = operation_.bytes.input;
  auto* const output = static_cast<std::byte*>(operation_.output);
  if (description.operation == Operation::kBroadcast) {
    std::memcpy(output, data[description.root], bytes);
    return;
  }
  if (description.operation == Operation::kAllgather) {
    for (uint32_t rank = 0; rank < rank_count_; ++rank) {
      std::memcpy(output + rank * bytes, data[rank], bytes);
    }
    return;
  }
  Scaling scaling{.prescale = description.prescale, .postscale = description.postscale};
  if (description.reduction == Reduction::kAverage) scaling.divisor = rank_count_;
  const bool is_aligned = reinterpret_cast<uintptr_t>(output) % DTypeBytes(description.dtype) == 0;
  alignas(64) std::byte room[segment::kSmallBytes];
  void* const result = is_aligned ? output : room;
  Reduce(description.dtype, description.reduction, data.data(), rank_count_, &result, 1,
         description.count, scaling);
  if (!is_aligned) std::memcpy(output, room, bytes);
}

bool DirectPath::HandOver() {
  while (true) {
    uint64_t state = state_.load(std::memory_order_acquire);
    if (state == 0) return false;
    if ((state & 3) == kPending &&
        state_.compare_exchange_strong(state, StateOf(state >> 2, kHandingOver),
                                       std::memory_order_acquire)) {
      return true;
    }
    sched_yield();  // Finish takes microseconds.
  }
}

FutexResult DirectPath::Sleep(uint64_t sequence, uint32_t waits_for, int64_t timeout_us) {
  segment::Line& line = view_.line(waits_for);
  line.sleepers.fetch_add(1);
  const uint32_t seen = line.flag.load();
  FutexResult result = FutexResult::kValueChanged;
  if (static_cast<int32_t>(seen - static_cast<uint32_t>(sequence)) < 0) {
    result = FutexWait(&line.flag, seen, timeout_us);
  }
  line.sleepers.fetch_sub(1);
  return result;
}

}  // namespace ringd::client
