#include "daemon/engine/order/stand_in.h"

#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status/macros.h"
#include "daemon/collectives/mismatch.h"
#include "daemon/engine/order/form.h"
#include "proto/operations.h"

namespace ringd::daemon {
namespace {

template <typename T>
uint64_t BitsOf(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

template <typename T>
uint64_t NeutralOf(Reduction reduction) {
  using Limits = std::numeric_limits<T>;
  switch (reduction) {
    case Reduction::kMin:
      return BitsOf<T>(Limits::has_infinity ? Limits::infinity() : Limits::max());
    case Reduction::kMax:
      return BitsOf<T>(Limits::has_infinity ? -Limits::infinity() : Limits::lowest());
    case Reduction::kProduct:
      return BitsOf<T>(T{1});
    default:
      return 0;
  }
}

// 1 and infinity of a 16-bit float.
uint64_t NeutralOfHalf(Reduction reduction, uint16_t one, uint16_t infinity) {
  switch (reduction) {
    case Reduction::kMin:
      return infinity;
    case Reduction::kMax:
      return infinity | 0x8000u;
    case Reduction::kProduct:
      return one;
    default:
      return 0;
  }
}

// The element that changes no result.
uint64_t NeutralBits(DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::kUInt8:
      return NeutralOf<uint8_t>(reduction);
    case DType::kInt8:
      return NeutralOf<int8_t>(reduction);
    case DType::kUInt16:
      return NeutralOf<uint16_t>(reduction);
    case DType::kInt16:
      return NeutralOf<int16_t>(reduction);
    case DType::kUInt32:
      return NeutralOf<uint32_t>(reduction);
    case DType::kInt32:
      return NeutralOf<int32_t>(reduction);
    case DType::kUInt64:
      return NeutralOf<uint64_t>(reduction);
    case DType::kInt64:
      return NeutralOf<int64_t>(reduction);
    case DType::kFloat16:
      return NeutralOfHalf(reduction, 0x3c00, 0x7c00);
    case DType::kBFloat16:
      return NeutralOfHalf(reduction, 0x3f80, 0x7f80);
    case DType::kFloat32:
      return NeutralOf<float>(reduction);
    case DType::kFloat64:
      return NeutralOf<double>(reduction);
    case DType::kBool:
      return NeutralOf<bool>(reduction);
    case DType::kInvalid:
      break;
  }
  return 0;
}

struct Counts {
  uint64_t input = 0;
  uint64_t output = 0;
};

uint64_t Sum(const std::vector<uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

Counts CountsOfAlltoall(const Request& request, size_t rank, size_t size) {
  if (request.counts.empty()) return {request.count, request.count};
  Counts counts;
  for (size_t other = 0; other < size; ++other) {
    counts.input += request.counts[rank * size + other];
    counts.output += request.counts[other * size + rank];
  }
  return counts;
}

// Elements that a rank reads and writes which is not the root.
Counts CountsOf(const Request& request, size_t rank, size_t size) {
  const uint64_t count = request.count;
  const bool is_even = request.counts.empty();
  const uint64_t mine =
      is_even || request.operation == Operation::kAlltoall ? count : request.counts[rank];
  switch (request.operation) {
    case Operation::kAllreduce:
      return {count, count};
    case Operation::kReduce:
      return {count, 0};
    case Operation::kBroadcast:
      return {0, count};
    case Operation::kGather:
      return {mine, 0};
    case Operation::kScatter:
      return {0, mine};
    case Operation::kAllgather:
      return {mine, is_even ? count * size : Sum(request.counts)};
    case Operation::kReduceScatter:
      return is_even ? Counts{count, count / size} : Counts{Sum(request.counts), mine};
    case Operation::kAlltoall:
      return CountsOfAlltoall(request, rank, size);
    default:
      return {};
  }
}

// Zeros, which take no room until they are written.
absl::StatusOr<std::byte*> Allocate(uint64_t bytes, Request* request) {
  if (bytes == 0) return nullptr;
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  }
  auto* const data = static_cast<std::byte*>(base);
  request->memory.emplace_back(data, [bytes](std::byte* memory) { munmap(memory, bytes); });
  return data;
}

void Fill(uint64_t bits, size_t element, uint64_t bytes, std::byte* data) {
  if (bits == 0) return;
  for (uint64_t at = 0; at < bytes; at += element) std::memcpy(data + at, &bits, element);
}

absl::StatusOr<RequestPtr> MakeStandIn(absl::string_view form, int rank, int size) {
  RINGD_ASSIGN_OR_RETURN(RequestPtr request, RequestFrom(form, size));
  request->joined = true;
  const bool is_reduction = IsReduction(request->operation);
  if (HasRoot(request->operation) && request->root == rank) {
    return absl::FailedPreconditionError("it is the root");
  }
  const uint64_t neutral = is_reduction ? NeutralBits(request->dtype, request->reduction) : 0;
  if (neutral != 0 && request->prescale != 1.0) {
    return absl::FailedPreconditionError("a prescale of min, max or product would count for it");
  }
  const size_t element = DTypeBytes(request->dtype);
  const Counts counts = CountsOf(*request, static_cast<size_t>(rank), static_cast<size_t>(size));
  RINGD_ASSIGN_OR_RETURN(std::byte* const input, Allocate(counts.input * element, request.get()));
  if (input != nullptr) Fill(neutral, element, counts.input * element, input);
  const bool in_place = request->operation == Operation::kAllreduce;
  std::byte* output = input;
  if (!in_place) {
    RINGD_ASSIGN_OR_RETURN(output, Allocate(counts.output * element, request.get()));
  }
  request->buffer = {input, output};
  // As of its own descriptor.
  if (!request->counts.empty()) {
    request->count = request->operation == Operation::kScatter ? counts.output : counts.input;
  }
  return request;
}

}  // namespace

void StartOrAbort(OperationKey key, absl::string_view form, const GroupLayout& layout,
                  std::vector<RequestPtr> requests, Actions* actions) {
  absl::Status status;
  int failed = 0;
  for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
    if (requests[i] != nullptr) continue;
    failed = layout.first_local_rank() + static_cast<int>(i);
    absl::StatusOr<RequestPtr> made = MakeStandIn(form, failed, layout.size());
    status = made.status();
    if (!made.ok()) continue;
    requests[i] = *std::move(made);
    requests[i]->sequence = key.sequence;
  }
  if (status.ok()) {
    actions->push_back({Action::Kind::kStart, key, std::move(requests), nullptr});
    return;
  }
  const auto outcome = std::make_shared<Outcome>();
  outcome->code = arena::Code::kInvalidArgument;
  outcome->rank = layout.JobRank(failed);
  outcome->message = absl::StrCat(OperationText(key), " can't be carried out: rank ", outcome->rank,
                                  " has joined, and ", status.message());
  actions->push_back({Action::Kind::kAbort, key, {}, outcome});
  for (RequestPtr& request : requests) {
    if (request == nullptr || request->IsStandIn()) continue;
    actions->push_back(Tell(std::move(request), outcome));
  }
}

}  // namespace ringd::daemon
