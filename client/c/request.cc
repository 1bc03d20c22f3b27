#include "client/c/request.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "client/c/error.h"
#include "client/c/signature.h"
#include "common/base/types.h"
#include "common/reduce/wire_dtype.h"
#include "proto/operations.h"

namespace ringd::client {
namespace {

constexpr uint64_t kMaxOperationBytes = uint64_t{1} << 47;  // Half of what a Ref can address.

bool Carries(Operation operation) {
  return operation != Operation::kNoop && operation != Operation::kBarrier &&
         !IsOfGroups(operation);
}

int Invalid(const ringd_operation& operation, const char* why) {
  return FailFormat(Code::kInvalidArgument, "%s: %s",
                    OperationName(static_cast<Operation>(operation.operation)), why);
}

int CheckKind(const ringd_operation& operation, const ringd_info& info) {
  if (operation.size < sizeof(ringd_operation)) {
    return Fail(Code::kInvalidArgument, "ringd_operation.size is not sizeof(ringd_operation)");
  }
  switch (static_cast<Operation>(operation.operation)) {
    case Operation::kNoop:
    case Operation::kBarrier:
    case Operation::kAllreduce:
    case Operation::kAllgather:
    case Operation::kBroadcast:
    case Operation::kReduceScatter:
    case Operation::kAlltoall:
    case Operation::kReduce:
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kSend:
    case Operation::kRecv:
      break;
    default:
      return FailFormat(Code::kInvalidArgument, "operation %u is not available",
                        operation.operation);
  }
  const auto kind = static_cast<Operation>(operation.operation);
  if (!Carries(kind)) return RINGD_OK;
  if (operation.dtype >= kDTypeCount || DTypeBytes(static_cast<DType>(operation.dtype)) == 0) {
    return Invalid(operation, "unknown dtype");
  }
  const auto reduction = static_cast<Reduction>(operation.reduction);
  if (operation.reduction >= kReductionCount || reduction == Reduction::kAdasum) {
    return Invalid(operation, "unknown reduction");
  }
  if (IsReduction(kind) != (reduction != Reduction::kNone)) {
    return Invalid(operation, IsReduction(kind) ? "a reduction is needed" : "takes no reduction");
  }
  if (reduction == Reduction::kAverage && operation.dtype == static_cast<uint32_t>(DType::kBool)) {
    return Invalid(operation, "bool has no average; use sum (or) or product (and)");
  }
  if (IsReduction(kind) && (std::isnan(operation.prescale) || std::isnan(operation.postscale))) {
    return Invalid(operation, "a scale factor is not a number");
  }
  const auto wire = static_cast<WireDType>(operation.wire);
  if (operation.wire != 0 && kind != Operation::kAllreduce) {
    return Invalid(operation, "only allreduce has another dtype between nodes");
  }
  if (operation.wire >= kWireDTypeCount || !CanNarrow(static_cast<DType>(operation.dtype), wire)) {
    return FailFormat(Code::kInvalidArgument, "%s: %s can't travel as %s", OperationName(kind),
                      DTypeName(static_cast<DType>(operation.dtype)), WireDTypeName(wire));
  }
  const bool is_rank = operation.root >= 0 && operation.root < info.world_size;
  if (HasRoot(kind) && !is_rank) {
    return FailFormat(Code::kInvalidArgument, "%s: root %d is not a rank of a %s of %d",
                      OperationName(kind), operation.root, operation.group == 0 ? "job" : "group",
                      info.world_size);
  }
  if (IsMessage(kind) && (!is_rank || operation.root == info.rank)) {
    return FailFormat(Code::kInvalidArgument, "%s: %d is not another rank of a %s of %d",
                      OperationName(kind), operation.root, operation.group == 0 ? "job" : "group",
                      info.world_size);
  }
  return RINGD_OK;
}

// The flag says that it is ordered by its name.
int CheckNamed(const ringd_operation& operation) {
  if ((operation.flags & arena::kFlagNamed) == 0) return RINGD_OK;
  const auto kind = static_cast<Operation>(operation.operation);
  if (operation.name == nullptr || *operation.name == '\0') {
    return Invalid(operation, "is to be ordered by name, but has none");
  }
  return IsMessage(kind) || !Carries(kind) ? Invalid(operation, "can't be ordered by name")
                                           : RINGD_OK;
}

int CheckDescription(const ringd_operation& operation) {
  if (operation.ndim > arena::kMaxDims) return Invalid(operation, "more than 32 dimensions");
  if (operation.ndim > 0 && operation.shape == nullptr) return Invalid(operation, "shape is null");
  for (uint32_t i = 0; i < operation.ndim; ++i) {
    if (operation.shape[i] < 0) return Invalid(operation, "a dimension is negative");
  }
  if (operation.name != nullptr && std::strlen(operation.name) > arena::kMaxNameBytes) {
    return Invalid(operation, "the name is longer than 4096 bytes");
  }
  if (operation.count_count > 0 && operation.counts == nullptr) {
    return Invalid(operation, "counts is null");
  }
  if ((operation.flags & ~uint32_t{arena::kFlagBeside | arena::kFlagNamed}) != 0) {
    return Invalid(operation, "unknown flags");
  }
  return CheckNamed(operation);
}

// Sum of n counts, each `stride` apart. False: negative or too large.
bool SumCounts(const int64_t* counts, size_t n, size_t stride, uint64_t* sum) {
  *sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t count = counts[i * stride];
    if (count < 0 || static_cast<uint64_t>(count) > kMaxOperationBytes) return false;
    *sum += static_cast<uint64_t>(count);
  }
  return *sum <= kMaxOperationBytes;
}

// Elements at input and output that the operation's counts ask for.
int ExpectedElements(const ringd_operation& operation, const ringd_info& info, uint64_t* input,
                     uint64_t* output) {
  const auto size = static_cast<size_t>(info.world_size);
  const auto rank = static_cast<size_t>(info.rank);
  const auto kind = static_cast<Operation>(operation.operation);
  const bool is_root = operation.root == info.rank;
  const bool gathers = kind == Operation::kAllgather || kind == Operation::kGather;
  const bool scatters = kind == Operation::kScatter;
  *input = operation.count;
  *output = operation.count;
  if (kind == Operation::kAllreduce || kind == Operation::kBroadcast ||
      kind == Operation::kReduce || IsMessage(kind)) {
    if (kind == Operation::kSend || (kind == Operation::kReduce && !is_root)) *output = 0;
    return operation.count_count == 0 ? RINGD_OK : Invalid(operation, "takes no counts");
  }
  if (operation.count_count == 0) {
    if (gathers) {
      *output = kind == Operation::kGather && !is_root ? 0 : operation.count * size;
    } else if (scatters) {
      *input = is_root ? operation.output_count * size : 0;
      *output = operation.output_count;
    } else if (operation.count % size != 0) {
      return Invalid(operation, "count is not a multiple of the number of ranks; give counts");
    } else if (kind == Operation::kReduceScatter) {
      *output = operation.count / size;
    }
    return RINGD_OK;
  }
  const bool matrix = kind == Operation::kAlltoall;
  if (operation.count_count != (matrix ? size * size : size)) {
    return Invalid(operation, "counts has the wrong length for this number of ranks");
  }
  uint64_t sum = 0;
  bool good = true;
  if (matrix) {
    good = SumCounts(operation.counts, size * size, 1, &sum) &&
           SumCounts(operation.counts + rank * size, size, 1, input) &&
           SumCounts(operation.counts + rank, size, size, output);
  } else {
    good = SumCounts(operation.counts, size, 1, &sum);
    const auto own = static_cast<uint64_t>(operation.counts[rank]);
    *input = gathers ? own : sum;
    *output = gathers ? sum : own;
    if (kind == Operation::kGather && !is_root) *output = 0;
    if (scatters && !is_root) *input = 0;
  }
  return good ? RINGD_OK : Invalid(operation, "counts are negative or too large");
}

}  // namespace

int CheckOperation(const ringd_operation& operation, const ringd_info& info,
                   OperationBytes* bytes) {
  if (const int code = CheckKind(operation, info); code != RINGD_OK) return code;
  if (const int code = CheckDescription(operation); code != RINGD_OK) return code;
  const auto kind = static_cast<Operation>(operation.operation);
  *bytes = OperationBytes{};
  if (!Carries(kind)) {
    bytes->reads_input = false;
    return RINGD_OK;
  }
  if (operation.count > kMaxOperationBytes || operation.output_count > kMaxOperationBytes) {
    return Invalid(operation, "count is too large");
  }
  uint64_t input = 0;
  uint64_t output = 0;
  if (const int code = ExpectedElements(operation, info, &input, &output); code != RINGD_OK) {
    return code;
  }
  if (operation.count != input || operation.output_count != output) {
    return FailFormat(Code::kInvalidArgument,
                      "%s: has %llu elements at input and %llu at output, but should have %llu "
                      "and %llu",
                      OperationName(kind), static_cast<unsigned long long>(operation.count),
                      static_cast<unsigned long long>(operation.output_count),
                      static_cast<unsigned long long>(input),
                      static_cast<unsigned long long>(output));
  }
  const uint64_t element_bytes = DTypeBytes(static_cast<DType>(operation.dtype));
  bytes->input = input * element_bytes;
  bytes->output = output * element_bytes;
  const bool is_root = operation.root == info.rank;
  bytes->may_run_in_place = kind == Operation::kAllreduce || kind == Operation::kBroadcast ||
                            (kind == Operation::kReduce && is_root);
  bytes->reads_input = kind != Operation::kRecv &&
                       (is_root || (kind != Operation::kBroadcast && kind != Operation::kScatter));
  if (std::max(bytes->input, bytes->output) > kMaxOperationBytes) {
    return Invalid(operation, "count is too large");
  }
  if (bytes->input > 0 && bytes->reads_input && operation.input == nullptr) {
    return Invalid(operation, "input is null");
  }
  if (bytes->output > 0 && operation.output == nullptr) return Invalid(operation, "output is null");
  return RINGD_OK;
}

arena::Descriptor DescribeOperation(const ringd_operation& operation) {
  const auto kind = static_cast<Operation>(operation.operation);
  arena::Descriptor descriptor{};
  descriptor.size = sizeof(descriptor);
  descriptor.version = arena::kLayoutVersion;
  descriptor.operation = kind;
  descriptor.flags = static_cast<uint16_t>(operation.flags);
  descriptor.group = operation.group;
  descriptor.input = arena::kNullRef;
  descriptor.output = arena::kNullRef;
  descriptor.meta = arena::kNullRef;
  descriptor.prescale = 1.0;
  descriptor.postscale = 1.0;
  descriptor.tag = operation.tag;
  descriptor.wire = static_cast<uint8_t>(operation.wire);
  // What an operation does not use takes no part in the agreement of the ranks.
  ringd_operation agreed = operation;
  if (!Carries(kind)) {
    agreed.dtype = static_cast<uint32_t>(DType::kUInt8);
    agreed.reduction = 0;
    agreed.ndim = 0;
  }
  if (!IsReduction(kind)) agreed.prescale = agreed.postscale = 1.0;
  if (!HasRoot(kind)) agreed.root = 0;
  if (kind == Operation::kRecv) agreed.operation = static_cast<uint32_t>(Operation::kSend);
  descriptor.dtype = static_cast<DType>(agreed.dtype);
  descriptor.reduction = static_cast<Reduction>(agreed.reduction);
  descriptor.count = Carries(kind) ? operation.count : 0;
  if (kind == Operation::kScatter) descriptor.count = operation.output_count;
  descriptor.root = IsMessage(kind) ? operation.root : agreed.root;
  descriptor.prescale = agreed.prescale;
  descriptor.postscale = agreed.postscale;
  descriptor.signature = SignatureOf(agreed);
  descriptor.ndim = static_cast<uint8_t>(agreed.ndim);
  for (uint32_t i = 0; i < std::min(agreed.ndim, arena::kMaxInlineDims); ++i) {
    descriptor.dims[i] = static_cast<uint32_t>(std::min<int64_t>(agreed.shape[i], UINT32_MAX));
  }
  return descriptor;
}

uint64_t MetaBytes(const ringd_operation& operation) {
  const uint64_t name_bytes = operation.name == nullptr ? 0 : std::strlen(operation.name);
  const uint64_t site_bytes = operation.site == nullptr ? 0 : std::strlen(operation.site);
  bool shape_is_inline = operation.ndim <= arena::kMaxInlineDims;
  for (uint32_t i = 0; i < operation.ndim; ++i) {
    shape_is_inline = shape_is_inline && operation.shape[i] <= int64_t{UINT32_MAX};
  }
  if (shape_is_inline && operation.count_count == 0 && name_bytes + site_bytes == 0) return 0;
  return sizeof(arena::Meta) +
         (uint64_t{operation.ndim} + operation.count_count) * sizeof(int64_t) + name_bytes +
         std::min<uint64_t>(site_bytes, arena::kMaxNameBytes);
}

void WriteMetaRecord(const ringd_operation& operation, void* record) {
  const size_t name_bytes = operation.name == nullptr ? 0 : std::strlen(operation.name);
  const size_t site_bytes = operation.site == nullptr ? 0 : std::strlen(operation.site);
  const arena::Meta meta{
      .ndim = operation.ndim,
      .count_count = operation.count_count,
      .name_bytes = static_cast<uint32_t>(name_bytes),
      .site_bytes = static_cast<uint32_t>(std::min<size_t>(site_bytes, arena::kMaxNameBytes))};
  auto* to = static_cast<char*>(record);
  const auto append = [&to](const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  };
  append(&meta, sizeof(meta));
  append(operation.shape, operation.ndim * sizeof(int64_t));
  append(operation.counts, operation.count_count * sizeof(int64_t));
  append(operation.name, meta.name_bytes);
  append(operation.site, meta.site_bytes);
}

}  // namespace ringd::client
