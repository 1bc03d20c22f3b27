#include "daemon/engine/order/plan.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/reduce/reduce.h"
#include "common/reduce/wire_dtype.h"
#include "daemon/collectives/mismatch.h"

namespace ringd::daemon {
namespace {

constexpr uint32_t kMaxPlanId = 0xffff;  // ChannelId has 16 bits for it.
constexpr uint64_t kMaxBucketElements = uint64_t{1} << 48;

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("bad plan record: ", what));
}

// The parts of the record; they point into it and are read by memcpy (nothing is aligned in a
// copy).
struct Parts {
  arena::PlanHeader header;
  const char* buckets;
  const char* tensors;
  const char* dims;
  const char* names;

  template <typename T>
  static T At(const char* base, uint64_t index) {
    T value;
    std::memcpy(&value, base + index * sizeof(T), sizeof(T));
    return value;
  }
};

absl::StatusOr<Parts> Split(absl::Span<const char> record) {
  Parts parts;
  if (record.size() < sizeof(parts.header)) return Bad("shorter than its header");
  std::memcpy(&parts.header, record.data(), sizeof(parts.header));
  const arena::PlanHeader& header = parts.header;
  if (header.plan == 0 || header.plan > kMaxPlanId) return Bad("plan id out of range");
  if (header.bucket_count == 0 || header.bucket_count > arena::kMaxPlanBuckets) {
    return Bad("bucket_count out of range");
  }
  const uint64_t buckets_end =
      sizeof(header) + uint64_t{header.bucket_count} * sizeof(arena::PlanBucket);
  const uint64_t tensors_end =
      buckets_end + uint64_t{header.tensor_count} * sizeof(arena::PlanTensor);
  const uint64_t dims_end = tensors_end + uint64_t{header.dim_count} * sizeof(int64_t);
  if (dims_end + header.name_bytes != record.size()) return Bad("its sizes don't add up");
  parts.buckets = record.data() + sizeof(header);
  parts.tensors = record.data() + buckets_end;
  parts.dims = record.data() + tensors_end;
  parts.names = record.data() + dims_end;
  return parts;
}

absl::Status CheckBucket(const arena::PlanBucket& bucket, uint32_t index) {
  if (DTypeBytes(bucket.dtype) == 0) return Bad(absl::StrCat("dtype of bucket ", index));
  if (!IsReducible(bucket.dtype, bucket.reduction)) {
    return Bad(absl::StrCat("bucket ", index, ": no ", ReductionName(bucket.reduction), " of ",
                            DTypeName(bucket.dtype)));
  }
  if (!CanNarrow(bucket.dtype, static_cast<WireDType>(bucket.wire))) {
    return Bad(absl::StrCat("wire of bucket ", index));
  }
  if (bucket.count > kMaxBucketElements) return Bad(absl::StrCat("count of bucket ", index));
  if (std::isnan(bucket.prescale) || std::isnan(bucket.postscale)) {
    return Bad(absl::StrCat("scale of bucket ", index));
  }
  return absl::OkStatus();
}

std::string Escaped(absl::string_view name) {
  std::string escaped;
  for (char c : name) {
    switch (c) {
      case '\t':
        escaped += "\\t";
        break;
      case '\n':
        escaped += "\\n";
        break;
      case '\\':
        escaped += "\\\\";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

void AppendBucket(const arena::PlanBucket& bucket, uint32_t index, std::string* text) {
  absl::StrAppend(text, kPlanTextBucket, "\t", index, "\t",
                  TensorSignature(bucket.dtype, {static_cast<int64_t>(bucket.count)}), " ",
                  ReductionName(bucket.reduction));
  if (bucket.wire != 0) {
    absl::StrAppend(text, " wire ", WireDTypeName(static_cast<WireDType>(bucket.wire)));
  }
  if (bucket.prescale != 1.0) absl::StrAppend(text, " prescale ", bucket.prescale);
  if (bucket.postscale != 1.0) absl::StrAppend(text, " postscale ", bucket.postscale);
  absl::StrAppend(text, "\n");
}

// Of all tensors so far. None shares its name or dims with another: a text can't be far longer than
// its record.
struct Used {
  uint64_t dims = 0;
  uint64_t name_bytes = 0;
};

absl::Status AppendTensor(const Parts& parts, const std::vector<arena::PlanBucket>& buckets,
                          uint32_t index, Used* used, std::string* text) {
  const auto tensor = Parts::At<arena::PlanTensor>(parts.tensors, index);
  const auto bad = [index](absl::string_view what) {
    return Bad(absl::StrCat(what, " of tensor ", index));
  };
  if (tensor.bucket >= parts.header.bucket_count) return bad("bucket");
  if (tensor.ndim > arena::kMaxDims) return bad("ndim");
  if (uint64_t{tensor.first_dim} + tensor.ndim > parts.header.dim_count) return bad("first_dim");
  if (tensor.name_bytes > arena::kMaxNameBytes ||
      uint64_t{tensor.name_offset} + tensor.name_bytes > parts.header.name_bytes) {
    return bad("name");
  }
  used->dims += tensor.ndim;
  used->name_bytes += tensor.name_bytes;
  if (used->dims > parts.header.dim_count) return bad("first_dim");
  if (used->name_bytes > parts.header.name_bytes) return bad("name");
  std::vector<int64_t> shape;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < tensor.ndim; ++i) {
    shape.push_back(Parts::At<int64_t>(parts.dims, uint64_t{tensor.first_dim} + i));
    if (shape.back() < 0 ||
        __builtin_mul_overflow(elements, static_cast<uint64_t>(shape.back()), &elements)) {
      return bad("shape");
    }
  }
  const arena::PlanBucket& bucket = buckets[tensor.bucket];
  if (tensor.offset > bucket.count || elements > bucket.count - tensor.offset) return bad("offset");
  const absl::string_view name(parts.names + tensor.name_offset, tensor.name_bytes);
  absl::StrAppend(text, kPlanTextTensor, "\t", Escaped(name), "\t",
                  TensorSignature(bucket.dtype, shape), "\t", tensor.bucket, "\t", tensor.offset,
                  "\n");
  return absl::OkStatus();
}

// FNV-1a: every node must find the same number.
uint64_t Hash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::string TensorSignature(DType dtype, absl::Span<const int64_t> shape) {
  return absl::StrCat(DTypeName(dtype), "[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::shared_ptr<const Plan>> Plan::Parse(absl::Span<const char> record) {
  absl::StatusOr<Parts> parts = Split(record);
  if (!parts.ok()) return parts.status();
  std::shared_ptr<Plan> plan(new Plan);
  plan->id_ = parts->header.plan;
  plan->text_ = absl::StrCat("plan ", plan->id_, " with ", parts->header.bucket_count,
                             " buckets and ", parts->header.tensor_count, " tensors\n");
  for (uint32_t i = 0; i < parts->header.bucket_count; ++i) {
    const auto bucket = Parts::At<arena::PlanBucket>(parts->buckets, i);
    if (absl::Status status = CheckBucket(bucket, i); !status.ok()) return status;
    plan->buckets_.push_back(bucket);
    AppendBucket(bucket, i, &plan->text_);
  }
  Used used;
  for (uint32_t i = 0; i < parts->header.tensor_count; ++i) {
    absl::Status status = AppendTensor(*parts, plan->buckets_, i, &used, &plan->text_);
    if (!status.ok()) return status;
  }
  plan->hash_ = Hash(plan->text_);
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace ringd::daemon
