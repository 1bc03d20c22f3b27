#include "daemon/engine/order/form.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/operations.h"

namespace ringd::daemon {
namespace {

constexpr size_t kMaxFormBytes = 256 << 10;
constexpr uint64_t kMaxElements = uint64_t{1} << 47;

// On the wire, followed by uint64 counts[count_count] and int64 shape[ndim].
struct Head {
  Operation operation;
  DType dtype;
  Reduction reduction;
  uint8_t ndim;
  int32_t root;
  uint64_t count;
  double prescale;
  double postscale;
  uint64_t signature;
  uint32_t tag;
  uint32_t count_count;
  WireDType wire;
  uint8_t reserved[7];
};
static_assert(sizeof(Head) == 56);

absl::Status Bad() { return absl::InvalidArgumentError("this operation needs every rank"); }

bool MovesCounts(Operation operation) {
  return operation == Operation::kAllgather || operation == Operation::kGather ||
         operation == Operation::kScatter || operation == Operation::kAlltoall ||
         operation == Operation::kReduceScatter;
}

bool IsSound(const Request& request, int size) {
  const Operation operation = request.operation;
  if (operation == Operation::kBarrier) return request.counts.empty();
  if (DTypeBytes(request.dtype) == 0 || request.count > kMaxElements) return false;
  if (HasRoot(operation) && (request.root < 0 || request.root >= size)) return false;
  if (IsReduction(operation) && !IsReducible(request.dtype, request.reduction)) return false;
  const bool is_allreduce = operation == Operation::kAllreduce;
  if (is_allreduce ? !CanNarrow(request.dtype, request.wire) : request.wire != WireDType::kSame) {
    return false;
  }
  const auto ranks = static_cast<uint64_t>(size);
  const uint64_t want = operation == Operation::kAlltoall ? ranks * ranks : ranks;
  if (!request.counts.empty() && (!MovesCounts(operation) || request.counts.size() != want)) {
    return false;
  }
  for (const uint64_t count : request.counts) {
    if (count > kMaxElements) return false;
  }
  return IsReduction(operation) || HasRoot(operation) || operation == Operation::kAllgather ||
         operation == Operation::kAlltoall;
}

}  // namespace

std::string FormOf(const Request& request) {
  Head head{};
  head.operation = request.operation;
  if (request.operation == Operation::kPlanBucket) head.operation = Operation::kAllreduce;
  head.dtype = request.dtype;
  head.reduction = request.reduction;
  head.wire = request.wire;
  head.root = request.root;
  head.prescale = request.prescale;
  head.postscale = request.postscale;
  head.signature = request.signature;
  head.tag = request.tag;
  head.count_count = static_cast<uint32_t>(request.counts.size());
  // With counts, a rank's own count and shape are its own.
  const bool is_even = request.counts.empty();
  if (is_even) head.count = request.count;
  if (is_even) head.ndim = static_cast<uint8_t>(request.shape.size());
  std::string form(reinterpret_cast<const char*>(&head), sizeof(head));
  form.append(reinterpret_cast<const char*>(request.counts.data()),
              request.counts.size() * sizeof(uint64_t));
  form.append(reinterpret_cast<const char*>(request.shape.data()), head.ndim * sizeof(int64_t));
  if (form.size() > kMaxFormBytes) form.clear();
  return form;
}

absl::StatusOr<RequestPtr> RequestFrom(absl::string_view form, int size) {
  Head head;
  if (form.size() < sizeof(head)) return Bad();
  std::memcpy(&head, form.data(), sizeof(head));
  form.remove_prefix(sizeof(head));
  if (form.size() != (uint64_t{head.count_count} + head.ndim) * sizeof(uint64_t)) return Bad();
  auto request = std::make_unique<Request>();
  request->operation = head.operation;
  request->dtype = head.dtype;
  request->reduction = head.reduction;
  request->wire = head.wire;
  request->root = head.root;
  request->count = head.count;
  request->prescale = head.prescale;
  request->postscale = head.postscale;
  request->signature = head.signature;
  request->tag = head.tag;
  request->counts.resize(head.count_count);
  const size_t count_bytes = head.count_count * sizeof(uint64_t);
  if (count_bytes > 0) std::memcpy(request->counts.data(), form.data(), count_bytes);
  request->shape.resize(head.ndim);
  if (head.ndim > 0) {
    std::memcpy(request->shape.data(), form.data() + count_bytes, head.ndim * sizeof(int64_t));
  }
  if (!IsSound(*request, size)) return Bad();
  return request;
}

}  // namespace ringd::daemon
