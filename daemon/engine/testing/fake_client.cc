#include "daemon/engine/testing/fake_client.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/base/word_copy.h"

namespace ringd::daemon {
namespace {

constexpr arena::Offsets kOffsets = arena::SegmentOffsets();
constexpr int64_t kWaitSliceUs = 100'000;
constexpr uint64_t kRenewedSlabBytes = 64 << 10;
constexpr uint64_t kRenewedDescriptors = 64;

}  // namespace

FakeClient::FakeClient(uint64_t bytes)
    : bytes_(bytes), next_offset_(kOffsets.slab), numbers_(arena::kSlotCount) {
  if (CreateSealedMemory("fake-arena", bytes, &fd_) != 0) abort();
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED) abort();
  data_ = static_cast<std::byte*>(data);
  WriteHeader();
}

FakeClient::~FakeClient() { munmap(data_, bytes_); }

void FakeClient::Renew() {
  // A hole would make it an arena that is not backed by memory: refused.
  const uint64_t queued = std::clamp<uint64_t>(head_, kRenewedDescriptors, arena::kSlotCount);
  std::memset(data_, 0, kOffsets.queue + queued * sizeof(arena::Descriptor));
  std::memset(data_ + kOffsets.slots, 0,
              std::max(next_offset_, kOffsets.slab + kRenewedSlabBytes) - kOffsets.slots);
  WriteHeader();
  next_offset_ = kOffsets.slab;
  head_ = 0;
  serial_ = 0;
  next_slot_ = 0;
  numbers_.assign(arena::kSlotCount, 0);
  doorbell_.reset();
}

void FakeClient::WriteHeader() {
  arena::ArenaHeader* constants = header();
  constants->magic = arena::kMagic;
  constants->layout_version = arena::kLayoutVersion;
  constants->header_bytes = arena::kHeaderBytes;
  constants->segment_bytes = bytes_;
  constants->queue_offset = kOffsets.queue;
  constants->slots_offset = kOffsets.slots;
  constants->errors_offset = kOffsets.errors;
  constants->slab_offset = kOffsets.slab;
  constants->slot_count = arena::kSlotCount;
  constants->error_record_count = arena::kErrorRecordCount;
}

ArenaSegment FakeClient::Segment() const { return {dup(fd_.get()), bytes_}; }

absl::Status FakeClient::Attach(Engine* engine, const std::string& job, int rank, uint64_t arena) {
  absl::StatusOr<int> doorbell = engine->AddClient(job, rank, arena, Segment());
  if (!doorbell.ok()) return doorbell.status();
  doorbell_.reset(*doorbell);
  return absl::OkStatus();
}

arena::Ref FakeClient::Allocate(uint64_t bytes) {
  const uint64_t offset = next_offset_;
  next_offset_ +=
      (bytes + arena::kSlabAlignment - 1) / arena::kSlabAlignment * arena::kSlabAlignment;
  if (next_offset_ > bytes_) abort();
  return arena::MakeRef(0, offset);
}

arena::Descriptor FakeClient::Describe(Operation operation, DType dtype, Reduction reduction,
                                       uint64_t count, arena::Ref input, arena::Ref output) {
  arena::Descriptor descriptor{};
  descriptor.size = sizeof(descriptor);
  descriptor.version = arena::kLayoutVersion;
  descriptor.operation = operation;
  descriptor.dtype = dtype;
  descriptor.reduction = reduction;
  descriptor.generation = static_cast<uint32_t>(generation_);
  descriptor.input = input;
  descriptor.output = output;
  descriptor.count = count;
  descriptor.signature = static_cast<uint64_t>(operation) * 1000 + static_cast<uint64_t>(dtype);
  descriptor.meta = arena::kNullRef;
  descriptor.prescale = 1.0;
  descriptor.postscale = 1.0;
  if (dtype != DType::kInvalid) {
    descriptor.ndim = 1;
    descriptor.dims[0] = static_cast<uint32_t>(count);
  }
  return descriptor;
}

void FakeClient::SetCounts(const std::vector<int64_t>& counts, arena::Descriptor* descriptor) {
  const arena::Meta meta{0, static_cast<uint32_t>(counts.size()), 0, 0};
  descriptor->meta_bytes = static_cast<uint32_t>(sizeof(meta) + counts.size() * sizeof(int64_t));
  descriptor->meta = Allocate(descriptor->meta_bytes);
  auto* record = static_cast<char*>(At(descriptor->meta));
  std::memcpy(record, &meta, sizeof(meta));
  std::copy(counts.begin(), counts.end(), reinterpret_cast<int64_t*>(record + sizeof(meta)));
}

void FakeClient::SetName(const std::string& name, arena::Descriptor* descriptor) {
  const arena::Meta meta{0, 0, static_cast<uint32_t>(name.size()), 0};
  descriptor->meta_bytes = static_cast<uint32_t>(sizeof(meta) + name.size());
  descriptor->meta = Allocate(descriptor->meta_bytes);
  auto* record = static_cast<char*>(At(descriptor->meta));
  std::memcpy(record, &meta, sizeof(meta));
  std::memcpy(record + sizeof(meta), name.data(), name.size());
  descriptor->flags |= arena::kFlagNamed;
}

FakeClient::Ticket FakeClient::Number(arena::Descriptor* descriptor) {
  descriptor->slot = next_slot_;
  next_slot_ = (next_slot_ + 1) % arena::kSlotCount;
  descriptor->number = ++numbers_[descriptor->slot];
  descriptor->serial = ++serial_;
  return {descriptor->slot, descriptor->number};
}

FakeClient::Ticket FakeClient::Submit(arena::Descriptor descriptor) {
  const Ticket ticket = Number(&descriptor);
  Publish({descriptor});
  return ticket;
}

std::vector<FakeClient::Ticket> FakeClient::SubmitBatch(
    std::vector<arena::Descriptor> descriptors) {
  std::vector<Ticket> tickets;
  for (arena::Descriptor& descriptor : descriptors) tickets.push_back(Number(&descriptor));
  Publish(descriptors);
  return tickets;
}

void FakeClient::Publish(const std::vector<arena::Descriptor>& descriptors) {
  auto* queue = reinterpret_cast<arena::Descriptor*>(data_ + kOffsets.queue);
  for (size_t i = 0; i < descriptors.size(); ++i) {
    queue[(head_ + i) % arena::kSlotCount] = descriptors[i];
  }
  MoveHead(head_ + descriptors.size());
}

void FakeClient::MoveHead(uint64_t head) {
  head_ = head;
  header()->head.store(head_, std::memory_order_seq_cst);
  if (header()->sleeping.load(std::memory_order_seq_cst) == 0) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(doorbell_.get(), &one, sizeof(one));
}

arena::Slot* FakeClient::slot(uint32_t index) const {
  return reinterpret_cast<arena::Slot*>(data_ + kOffsets.slots) + index;
}

bool FakeClient::IsOver(Ticket ticket) const {
  return slot(ticket.slot)->word.load(std::memory_order_seq_cst) == ticket.number;
}

FakeClient::Result FakeClient::Wait(Ticket ticket, int64_t timeout_us) {
  arena::Slot* place = slot(ticket.slot);
  const int64_t limit_us = MonotonicMicros() + timeout_us;
  while (!IsOver(ticket) && !IsPoisoned()) {
    if (MonotonicMicros() > limit_us) return {.timed_out = true};
    place->waiters.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = place->word.load(std::memory_order_seq_cst);
    if (seen != ticket.number && !IsPoisoned()) {
      const bool timed_out = FutexWait(&place->word, seen, kWaitSliceUs) == FutexResult::kTimedOut;
      if (timed_out && IsOver(ticket)) ++late_wakes_;
    }
    place->waiters.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (!IsOver(ticket)) return PoisonResult();
  return ReadResult(place->code.load(), place->error.load());
}

FakeClient::Result FakeClient::Block(Ticket ticket, int64_t timeout_us) {
  header()->threads.store(1);
  slot(ticket.slot)->waiters.fetch_add(arena::kBlockedWaiter);
  Result result = Wait(ticket, timeout_us);
  slot(ticket.slot)->waiters.fetch_sub(arena::kBlockedWaiter);
  return result;
}

FakeClient::Result FakeClient::PoisonResult() const {
  return ReadResult(header()->poison.load(), header()->poison_error.load());
}

FakeClient::Result FakeClient::ReadResult(uint32_t code, uint32_t serial) const {
  Result result;
  result.code = static_cast<arena::Code>(code);
  if (serial == 0) return result;
  const auto* record = reinterpret_cast<const arena::ErrorRecord*>(data_ + kOffsets.errors) +
                       serial % arena::kErrorRecordCount;
  arena::ErrorDetails details;
  LoadWords(&details, &record->details, sizeof(details));
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record->serial.load(std::memory_order_acquire) != serial) return result;
  result.message = details.message;
  result.rank = details.rank;
  result.node = details.node;
  result.exit_code = details.exit_code;
  result.signal = details.signal;
  result.stderr_tail = details.stderr_tail;
  return result;
}

}  // namespace ringd::daemon
