// Life cycle and submission; waiting is in arena_client_wait.cc.
#include "client/c/arena_client.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "client/c/error.h"
#include "client/c/plan.h"
#include "client/c/signature.h"
#include "client/c/standalone.h"
#include "common/base/cpus.h"
#include "common/base/futex.h"
#include "proto/operations.h"

namespace ringd::client {
namespace {

constexpr uint64_t kMinGrowBytes = 64u << 20;  // fallocate takes about 16 ms for it.
constexpr uint64_t kGrowUnit = 2u << 20;       // A huge page, where the host gives them.
constexpr size_t kInlineBatch = 8;             // Larger batches are prepared on the heap.

std::atomic<uint64_t> last_id{0};

bool Overlap(arena::Ref a, uint64_t a_bytes, arena::Ref b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// All or nothing: the signature of each operation is that of all, so that a rank which differs in
// one differs in all. Not of messages, whose peers have other batches.
void BindTogether(Prepared* prepared, size_t n) {
  Hasher all;
  size_t bound = 0;
  for (size_t i = 0; i < n; ++i) {
    if (IsMessage(prepared[i].descriptor.operation)) continue;
    all.Add(prepared[i].descriptor.signature);
    ++bound;
  }
  for (size_t i = 0; i < n && bound > 1; ++i) {
    uint64_t& signature = prepared[i].descriptor.signature;
    if (!IsMessage(prepared[i].descriptor.operation)) signature ^= all.Finish();
  }
}

}  // namespace

int ArenaClient::Create(ArenaClientOptions options, std::unique_ptr<ArenaClient>* client) {
  std::shared_ptr<ArenaMemory> memory;
  const int code = ArenaMemory::Create(std::move(options.segment), options.segment_bytes, &memory);
  if (code != RINGD_OK) return code;
  UniqueFd shared_segment = std::move(options.shared_segment);
  client->reset(new ArenaClient(std::move(options)));
  (*client)->memory_ = std::move(memory);
  return shared_segment.valid() ? (*client)->OpenDirectPath(std::move(shared_segment)) : RINGD_OK;
}

ArenaClient::ArenaClient(ArenaClientOptions options)
    : id_(++last_id),
      info_(options.info),
      doorbell_(std::move(options.doorbell)),
      grow_(std::move(options.grow)),
      liveness_fd_(options.liveness_fd),
      standalone_(options.standalone),
      spin_(options.info.local_size <= UsableCpus()),
      groups_(options.info.world_size) {}

ArenaClient::~ArenaClient() {
  for (auto& plan : plans_) delete plan.load();
  memory_->Detach();
}

void ArenaClient::Shutdown(int64_t timeout_us) {
  std::vector<ringd_handle> handles;
  {
    std::lock_guard lock(submit_mu_);
    HandOverLocked();
    handles = slots_.LiveHandles();
  }
  const int64_t deadline_us = MonotonicMicros() + timeout_us;
  for (const ringd_handle handle : handles) {
    WaitResult result = WaitResult::kInterrupted;
    while (result == WaitResult::kInterrupted) {
      result = Await(handle, std::max<int64_t>(0, deadline_us - MonotonicMicros()));
    }
    if (result == WaitResult::kDone || result == WaitResult::kNotLive) continue;
    break;
  }
  closed_.store(true);
  memory_->Detach();
}

ringd_info ArenaClient::info() const {
  ringd_info info = info_;
  const uint64_t generation = memory_->header().generation.load(std::memory_order_acquire);
  if (generation != 0) info.generation = generation;
  return info;
}

int ArenaClient::CheckUsable() {
  if (IsForkedChild()) {
    return Fail(Code::kForked,
                "this process is a fork of one that uses ringd: ringd works in the parent only; "
                "start children that need it with exec (multiprocessing: \"spawn\")");
  }
  if (closed_.load(std::memory_order_relaxed)) {
    return Fail(Code::kNotInitialized, "ringd was shut down; call ringd.init() again");
  }
  if (memory_->header().poison.load(std::memory_order_acquire) != 0) return ReportPoison();
  if (gone_.load(std::memory_order_relaxed)) return ReportGone();
  return RINGD_OK;
}

void* ArenaClient::Allocate(size_t bytes) {
  if (IsForkedChild() || closed_.load()) {
    CheckUsable();
    return nullptr;
  }
  const arena::Ref block = AllocateBlock(bytes, Slab::Holder::kCaller);
  return block == arena::kNullRef ? nullptr : memory_->Pointer(block);
}

int ArenaClient::Free(void* pointer) {
  if (IsForkedChild()) return CheckUsable();
  const arena::Ref block = memory_->RefOf(pointer);
  if (block != arena::kNullRef && memory_->Free(block)) return RINGD_OK;
  return Fail(Code::kInvalidArgument, "ringd_free: not memory of ringd_allocate, or freed twice");
}

arena::Ref ArenaClient::AllocateBlock(uint64_t bytes, Slab::Holder holder) {
  arena::Ref block = memory_->Allocate(bytes, holder);
  if (block == arena::kNullRef) Grow(bytes, &block, holder);
  return block;
}

int ArenaClient::Grow(uint64_t bytes, arena::Ref* block, Slab::Holder holder) {
  std::lock_guard lock(grow_mu_);
  *block = memory_->Allocate(bytes, holder);  // Somebody else may have grown it.
  if (*block != arena::kNullRef) return RINGD_OK;
  if (bytes > (uint64_t{1} << 47)) {
    return FailFormat(Code::kResourceExhausted, "%llu bytes are more than an arena can hold",
                      static_cast<unsigned long long>(bytes));
  }
  if (!grow_) return Fail(Code::kResourceExhausted, "the arena is full and can't grow");
  const uint64_t needed = (bytes + kGrowUnit - 1) / kGrowUnit * kGrowUnit;
  UniqueFd fd;
  uint64_t segment_bytes = 0;
  int code = grow_(std::max(needed, kMinGrowBytes), &fd, &segment_bytes);
  if (code == RINGD_RESOURCE_EXHAUSTED && needed < kMinGrowBytes) {
    code = grow_(needed, &fd, &segment_bytes);
  }
  if (code != RINGD_OK) return code;
  code = memory_->AddSegment(std::move(fd), segment_bytes);
  if (code != RINGD_OK) return code;
  *block = memory_->Allocate(bytes, holder);
  if (*block != arena::kNullRef) return RINGD_OK;
  return Fail(Code::kInternal, "the new segment is smaller than was asked for");
}

int ArenaClient::SubmitBatch(const ringd_operation* operations, size_t n, ringd_handle* handles) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  if (n > arena::kSlotCount) {
    return FailFormat(Code::kResourceExhausted, "a batch of %zu operations; the limit is %u", n,
                      arena::kSlotCount);
  }
  if (n == 1 && direct_ != nullptr) {
    uint64_t sequence = 0;
    const int code = BeginDirect(*operations, true, handles, &sequence);
    if (code != RINGD_OK || sequence != 0) return code;
  }
  Prepared inline_batch[kInlineBatch];
  std::vector<Prepared> large_batch(n > kInlineBatch ? n : 0);
  Prepared* const prepared = n > kInlineBatch ? large_batch.data() : inline_batch;
  int code = RINGD_OK;
  size_t done = 0;
  while (done < n && code == RINGD_OK) {
    code = Prepare(operations[done], &prepared[done]);
    if (code == RINGD_OK) ++done;
  }
  if (code == RINGD_OK) {
    BindTogether(prepared, n);
    code = SubmitPrepared(prepared, n, handles);
  }
  if (code == RINGD_OK) return RINGD_OK;
  for (size_t i = 0; i < done; ++i) ReleaseHoldings(prepared[i].holdings);
  return code;
}

int ArenaClient::Prepare(const ringd_operation& operation, Prepared* prepared) {
  OperationBytes bytes;
  int code = RINGD_OK;
  if (operation.group == 0) {
    code = CheckOperation(operation, info_, &bytes);
  } else {
    ringd_info info;
    code = FindGroup(operation.group, &info);
    if (code == RINGD_OK) code = CheckOperation(operation, info, &bytes);
  }
  if (code != RINGD_OK) return code;
  ringd_operation placed = operation;
  if (info_.node_count == 1) placed.wire = 0;
  prepared->is_direct = direct_ != nullptr && IsDirect(operation, bytes);
  if (prepared->is_direct) placed.count_count = 0;  // Even: as the direct path has it.
  prepared->descriptor = DescribeOperation(placed);
  code = PlaceBuffers(placed, bytes, prepared);
  if (code == RINGD_OK) code = WriteMeta(placed, prepared);
  if (code != RINGD_OK) ReleaseHoldings(prepared->holdings);
  return code;
}

int ArenaClient::FindInArena(const Buffer& buffer, arena::Ref* block, arena::Ref* ref) {
  if (buffer.bytes == 0) {
    *ref = arena::MakeRef(0, arena::SegmentOffsets().slab);
    return RINGD_OK;
  }
  *ref = memory_->RefOf(buffer.pointer);
  if (*ref == arena::kNullRef) return RINGD_OK;
  if (*ref % buffer.alignment != 0) {
    *ref = arena::kNullRef;  // Copied, as memory outside is.
    return RINGD_OK;
  }
  *block = memory_->Acquire(*ref, buffer.bytes);
  if (*block != arena::kNullRef) return RINGD_OK;
  return Fail(Code::kInvalidArgument,
              "the tensor lies in the arena, but not in one live allocation: was it freed?");
}

int ArenaClient::PlaceBuffers(const ringd_operation& operation, const OperationBytes& bytes,
                              Prepared* prepared) {
  arena::Descriptor& descriptor = prepared->descriptor;
  Holdings& holdings = prepared->holdings;
  if (descriptor.operation == Operation::kBarrier || descriptor.operation == Operation::kNoop) {
    return RINGD_OK;
  }
  const uint64_t alignment = DTypeBytes(descriptor.dtype);
  const Buffer output{operation.output, bytes.output, alignment};
  int code = FindInArena(output, &holdings.output_block, &descriptor.output);
  if (code == RINGD_OK && descriptor.output == arena::kNullRef) {
    code = StageOutput(operation, bytes.output, prepared);
  }
  if (code != RINGD_OK || !bytes.reads_input) {
    descriptor.input = descriptor.output;
    return code;
  }
  const Buffer input{operation.input, bytes.input, alignment};
  code = FindInArena(input, &holdings.input_block, &descriptor.input);
  if (code != RINGD_OK) return code;
  if (descriptor.input == arena::kNullRef) return StageInput(operation, bytes, prepared);
  if (descriptor.input == descriptor.output) {
    if (bytes.may_run_in_place || bytes.input == 0 || bytes.output == 0) return RINGD_OK;
    return Fail(Code::kInvalidArgument, "this operation can't run in place");
  }
  if (Overlap(descriptor.input, bytes.input, descriptor.output, bytes.output)) {
    return Fail(Code::kInvalidArgument, "input and output overlap but are not the same");
  }
  return RINGD_OK;
}

int ArenaClient::StageOutput(const ringd_operation& operation, uint64_t bytes, Prepared* prepared) {
  const arena::Ref block = AllocateBlock(bytes, Slab::Holder::kOperation);
  if (block == arena::kNullRef) return LastError().code;
  prepared->holdings.output_block = block;
  prepared->holdings.copy_from = memory_->Pointer(block);
  prepared->holdings.copy_to = operation.output;
  prepared->holdings.copy_bytes = bytes;
  prepared->descriptor.output = block;
  return RINGD_OK;
}

int ArenaClient::StageInput(const ringd_operation& operation, const OperationBytes& bytes,
                            Prepared* prepared) {
  arena::Descriptor& descriptor = prepared->descriptor;
  if (bytes.may_run_in_place && (operation.flags & arena::kFlagBeside) == 0) {
    descriptor.input = descriptor.output;
  } else {
    const arena::Ref block = AllocateBlock(bytes.input, Slab::Holder::kOperation);
    if (block == arena::kNullRef) return LastError().code;
    prepared->holdings.input_block = block;
    descriptor.input = block;
  }
  std::byte* const staging = memory_->Pointer(descriptor.input);
  if (staging != operation.input) {
    std::memcpy(staging, operation.input, bytes.input);
    bytes_copied_.fetch_add(bytes.input, std::memory_order_relaxed);
  }
  return RINGD_OK;
}

int ArenaClient::WriteMeta(const ringd_operation& operation, Prepared* prepared) {
  const uint64_t bytes = MetaBytes(operation);
  if (bytes == 0) return RINGD_OK;
  if (bytes > arena::kMaxMetaBytes) {
    return Fail(Code::kResourceExhausted, "counts, shape and name are longer than 64 MB");
  }
  const arena::Ref block = AllocateBlock(bytes, Slab::Holder::kOperation);
  if (block == arena::kNullRef) return LastError().code;
  WriteMetaRecord(operation, memory_->Pointer(block));
  prepared->holdings.meta_block = block;
  prepared->descriptor.meta = block;
  prepared->descriptor.meta_bytes = static_cast<uint32_t>(bytes);
  return RINGD_OK;
}

void ArenaClient::ReleaseHoldings(const Holdings& holdings) {
  for (const arena::Ref block :
       {holdings.input_block, holdings.output_block, holdings.meta_block}) {
    if (block != arena::kNullRef) memory_->Release(block);
  }
}

int ArenaClient::SubmitPrepared(Prepared* prepared, size_t n, ringd_handle* handles) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  CountThread();
  {
    std::lock_guard lock(submit_mu_);
    if (join_ != 0) return FailJoined();
    if (!HasRoomLocked(n)) {
      return FailFormat(Code::kResourceExhausted,
                        "%zu operations are in flight; the limit of one client is %u: wait for "
                        "some of them (ringd.synchronize) before submitting more",
                        slots_.in_flight(), arena::kSlotCount);
    }
    if (const int code = HandOverLocked(); code != RINGD_OK) return code;
    PublishLocked(prepared, n, handles);
  }
  RingDoorbell();
  return RINGD_OK;
}

void ArenaClient::RingDoorbell() {
  if (memory_->header().sleeping.load() == 0 || !doorbell_.valid()) return;
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the daemon has been told.
  [[maybe_unused]] const ssize_t ignored = write(doorbell_.get(), &one, sizeof(one));
}

void ArenaClient::PublishLocked(Prepared* prepared, size_t n, ringd_handle* handles) {
  const uint64_t head = memory_->header().head.load(std::memory_order_relaxed);
  for (size_t i = 0; i < n; ++i) {
    handles[i] = slots_.Acquire(prepared[i].holdings);
    EnqueueLocked(&prepared[i], handles[i], head + i);
  }
  memory_->header().head.store(head + n);
  if (!standalone_) return;
  for (size_t i = 0; i < n; ++i) RunStandalone(prepared[i].descriptor, *memory_);
}

void ArenaClient::PublishAsLocked(Prepared* prepared, ringd_handle handle) {
  const uint64_t head = memory_->header().head.load(std::memory_order_relaxed);
  EnqueueLocked(prepared, handle, head);
  memory_->header().head.store(head + 1);
}

void ArenaClient::EnqueueLocked(Prepared* prepared, ringd_handle handle, uint64_t position) {
  arena::Descriptor& descriptor = prepared->descriptor;
  descriptor.slot = Slots::SlotOf(handle);
  descriptor.number = Slots::NumberOf(handle);
  descriptor.generation =
      static_cast<uint32_t>(memory_->header().generation.load(std::memory_order_acquire));
  descriptor.serial = ++serial_;
  if (direct_ != nullptr) NumberLocked(*prepared, handle, &descriptor);
  memory_->queue()[position % arena::kSlotCount] = descriptor;
}

ringd_counters ArenaClient::counters() const {
  const arena::ArenaHeader& header = memory_->header();
  ringd_counters counters{};
  counters.size = sizeof(counters);
  counters.operations = header.operations.load(std::memory_order_relaxed);
  counters.bytes_reduced = header.bytes_reduced.load(std::memory_order_relaxed);
  if (direct_ != nullptr) {
    counters.operations += direct_->operations();
    counters.bytes_reduced += direct_->bytes_reduced();
  }
  counters.bytes_copied = bytes_copied_.load(std::memory_order_relaxed);
  counters.negotiation_messages = header.negotiation_messages.load(std::memory_order_relaxed);
  counters.arena_bytes = memory_->total_bytes();
  counters.stalls = header.stalls.load(std::memory_order_relaxed);
  counters.generation = info().generation;
  counters.backstops = backstops_.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace ringd::client
