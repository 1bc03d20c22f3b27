#include "daemon/engine/arena/descriptor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status/macros.h"
#include "proto/operations.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1}
                                  << 47;  // Times the largest element it still is a sum of 64 bits.
constexpr uint64_t kMaxSequence = uint64_t{1} << 62;
constexpr uint16_t kKnownFlags = arena::kFlagNamed | arena::kFlagBeside | arena::kFlagReproducible;

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("bad descriptor: ", what));
}

bool IsZero(const uint8_t (&bytes)[2]) {
  return std::all_of(std::begin(bytes), std::end(bytes), [](uint8_t byte) { return byte == 0; });
}

bool MovesData(Operation operation) {
  return IsReduction(operation) || HasRoot(operation) || IsMessage(operation) ||
         operation == Operation::kAllgather || operation == Operation::kAlltoall;
}

bool IsKnown(Operation operation) {
  return operation > Operation::kInvalid && operation < Operation{kOperationCount};
}

bool IsCarriedOut(Operation operation) {
  return operation >= Operation::kAllreduce && operation <= Operation::kRecv;
}

// Copies the meta record out of the arena. Empty without one.
absl::StatusOr<std::vector<char>> CopyMeta(const arena::Descriptor& descriptor,
                                           const ArenaView& view) {
  std::vector<char> record;
  if (descriptor.meta == arena::kNullRef) {
    if (descriptor.meta_bytes != 0) return Bad("meta_bytes without meta");
    return record;
  }
  if (descriptor.meta_bytes > arena::kMaxMetaBytes) return Bad("meta_bytes out of range");
  const std::byte* data = view.Resolve(descriptor.meta, descriptor.meta_bytes, alignof(uint64_t));
  if (data == nullptr) return Bad("meta outside the arena");
  const auto* const from = reinterpret_cast<const char*>(data);
  record.assign(from, from + descriptor.meta_bytes);
  return record;
}

absl::Status ParseMeta(const std::vector<char>& record, Request* request) {
  if (record.empty()) return absl::OkStatus();
  arena::Meta meta;
  if (record.size() < sizeof(meta)) return Bad("meta record shorter than its header");
  std::memcpy(&meta, record.data(), sizeof(meta));
  if (meta.ndim > arena::kMaxDims) return Bad("ndim of the meta record out of range");
  if (meta.name_bytes > arena::kMaxNameBytes || meta.site_bytes > arena::kMaxNameBytes) {
    return Bad("name of the meta record out of range");
  }
  const uint64_t words = uint64_t{meta.ndim} + meta.count_count;
  if (sizeof(meta) + words * sizeof(int64_t) + meta.name_bytes + meta.site_bytes != record.size()) {
    return Bad("the sizes of the meta record don't add up");
  }
  const char* data = record.data() + sizeof(meta);
  request->shape.resize(meta.ndim);
  if (meta.ndim > 0) std::memcpy(request->shape.data(), data, meta.ndim * sizeof(int64_t));
  data += meta.ndim * sizeof(int64_t);
  request->counts.resize(meta.count_count);
  if (meta.count_count > 0) {
    std::memcpy(request->counts.data(), data, meta.count_count * sizeof(uint64_t));
  }
  data += meta.count_count * sizeof(uint64_t);
  request->name.assign(data, meta.name_bytes);
  request->site.assign(data + meta.name_bytes, meta.site_bytes);
  for (uint64_t count : request->counts) {
    if (count > kMaxElements) return Bad("count of the meta record out of range");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> ResolveTensor(arena::Ref ref, uint64_t count, size_t element_bytes,
                                         const ArenaView& view, absl::string_view what) {
  if (count == 0) return nullptr;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, uint64_t{element_bytes}, &bytes)) {
    return Bad(absl::StrCat("count of ", what, " out of range"));
  }
  std::byte* data = view.Resolve(ref, bytes, element_bytes);
  if (data == nullptr) return Bad(absl::StrCat(what, " outside the arena or not aligned"));
  return data;
}

bool Overlap(const std::byte* a, uint64_t a_bytes, const std::byte* b, uint64_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

// Resolves both tensors of a request. input_count 0: the operation reads nothing here.
absl::Status ResolveBuffers(arena::Ref input, uint64_t input_count, arena::Ref output,
                            uint64_t output_count, const ArenaView& view, Request* request) {
  const size_t element = DTypeBytes(request->dtype);
  absl::StatusOr<std::byte*> in = ResolveTensor(input, input_count, element, view, "input");
  if (!in.ok()) return in.status();
  absl::StatusOr<std::byte*> out = ResolveTensor(output, output_count, element, view, "output");
  if (!out.ok()) return out.status();
  if (*in != *out && Overlap(*in, input_count * element, *out, output_count * element)) {
    return Bad("output overlaps input without being equal to it");
  }
  request->buffer.input = *in;
  request->buffer.output = *out;
  return absl::OkStatus();
}

uint64_t Sum(const std::vector<uint64_t>& counts) {
  uint64_t sum = 0;
  for (uint64_t count : counts) {
    if (__builtin_add_overflow(sum, count, &sum)) return ~uint64_t{0};
  }
  return sum;
}

struct Sizes {
  uint64_t input = 0;
  uint64_t output = 0;
};

// Elements that an alltoall sends and receives at this rank.
Sizes AlltoallSizes(const Request& request, const DescriptorContext& context) {
  Sizes sizes;
  const auto size = static_cast<uint64_t>(context.size);
  const auto rank = static_cast<uint64_t>(context.rank);
  for (uint64_t other = 0; other < size; ++other) {
    sizes.input += request.counts[rank * size + other];
    sizes.output += request.counts[other * size + rank];
  }
  return sizes;
}

// Elements at the input and at the output. Sets `rejection` where count and counts don't fit each
// other.
Sizes SizesOf(const DescriptorContext& context, Request* request) {
  const auto size = static_cast<uint64_t>(context.size);
  const uint64_t count = request->count;
  const bool is_matrix = request->operation == Operation::kAlltoall;
  const bool gathers =
      request->operation == Operation::kAllgather || request->operation == Operation::kGather;
  const bool scatters = request->operation == Operation::kScatter;
  const bool has_counts =
      is_matrix || gathers || scatters || request->operation == Operation::kReduceScatter;
  Sizes sizes{count, count};
  if (!has_counts) {
    if (!request->counts.empty()) request->rejection = "it takes no counts";
    return sizes;
  }
  if (request->counts.empty()) {
    if (gathers || scatters) {
      uint64_t* const larger = gathers ? &sizes.output : &sizes.input;
      if (__builtin_mul_overflow(count, size, larger)) *larger = ~uint64_t{0};
    } else if (count % size != 0) {
      request->rejection =
          absl::StrCat(count, " elements can't be split evenly over ", size, " ranks; pass counts");
    } else if (!is_matrix) {
      sizes.output = count / size;
    }
    return sizes;
  }
  if (request->counts.size() != (is_matrix ? size * size : size)) {
    request->rejection = absl::StrCat(request->counts.size(), " counts for ", size, " ranks");
    return sizes;
  }
  const uint64_t mine = request->counts[is_matrix ? 0 : context.rank];
  if (is_matrix) {
    sizes = AlltoallSizes(*request, context);
  } else if (gathers) {
    sizes = {mine, Sum(request->counts)};
  } else {
    sizes = {Sum(request->counts), mine};
  }
  if (const uint64_t said = scatters ? sizes.output : sizes.input; said != count) {
    request->rejection = absl::StrCat("it has ", count, " elements, its counts say ", said);
  }
  return sizes;
}

// What this rank reads and writes of them: the root alone, or one end of a message.
Sizes OwnSizes(const Request& request, Sizes sizes, const DescriptorContext& context) {
  const bool is_root = request.root == context.rank;
  switch (request.operation) {
    case Operation::kBroadcast:
    case Operation::kScatter:
      if (!is_root) sizes.input = 0;
      break;
    case Operation::kReduce:
    case Operation::kGather:
      if (!is_root) sizes.output = 0;
      break;
    case Operation::kSend:
      sizes.output = 0;
      break;
    case Operation::kRecv:
      sizes.input = 0;
      break;
    default:
      break;
  }
  return sizes;
}

void CheckMeaning(const DescriptorContext& context, Request* request) {
  if (IsReduction(request->operation) && !IsReducible(request->dtype, request->reduction)) {
    request->rejection = absl::StrCat("there is no ", ReductionName(request->reduction), " of ",
                                      DTypeName(request->dtype));
  } else if ((HasRoot(request->operation) || IsMessage(request->operation)) &&
             (request->root < 0 || request->root >= context.size)) {
    request->rejection = absl::StrCat(IsMessage(request->operation) ? "peer " : "root ",
                                      request->root, " is not one of the ", context.size, " ranks");
  } else if (IsMessage(request->operation) && request->root == context.rank) {
    request->rejection = "a rank sends no messages to itself";
  } else if (!IsCarriedOut(request->operation)) {
    request->rejection = "this daemon does not carry out that operation";
  } else if (std::isnan(request->prescale) || std::isnan(request->postscale)) {
    request->rejection = "a scale is not a number";
  } else if (request->wire != WireDType::kSame && !CanNarrow(request->dtype, request->wire)) {
    request->rejection =
        absl::StrCat(DTypeName(request->dtype), " can't travel as ", WireDTypeName(request->wire));
  }
}

absl::Status MakeData(const arena::Descriptor& descriptor, const DescriptorContext& context,
                      Request* request) {
  if (DTypeBytes(request->dtype) == 0) return Bad("dtype");
  if (request->count > kMaxElements) return Bad("count out of range");
  CheckMeaning(context, request);
  const Sizes all = SizesOf(context, request);
  if (!request->rejection.empty()) return absl::OkStatus();
  const Sizes sizes = OwnSizes(*request, all, context);
  return ResolveBuffers(descriptor.input, sizes.input, descriptor.output, sizes.output,
                        *context.arena, request);
}

// FNV-1a over what all nodes must agree on.
uint64_t GroupHash(int id, const std::vector<uint64_t>& ranks) {
  uint64_t hash = 0xcbf29ce484222325 ^ static_cast<uint64_t>(id);
  for (const uint64_t rank : ranks) hash = (hash ^ rank) * 0x100000001b3;
  return hash;
}

absl::Status MakeOfGroups(const DescriptorContext& context, Request* request) {
  const std::vector<uint64_t>& ranks = request->counts;
  const auto size = static_cast<uint64_t>(context.size);
  if (request->group != 0) return Bad("groups are made in group 0");
  if (request->root < 0 || request->root > static_cast<int>(arena::kMaxGroups)) {
    return Bad("id of a group out of range");
  }
  if (ranks.empty() || ranks.size() > size || ranks.back() >= size) return Bad("ranks of a group");
  if (std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) != ranks.end()) {
    return Bad("ranks of a group are not in ascending order");
  }
  if ((request->root == 0) != (ranks.size() == size)) return Bad("group 0 is that of all ranks");
  request->signature ^= GroupHash(request->root, ranks);
  return absl::OkStatus();
}

absl::Status MakePlanRegister(const std::vector<char>& record, const DescriptorContext& context,
                              Request* request) {
  absl::StatusOr<std::shared_ptr<const Plan>> plan = Plan::Parse(record);
  if (!plan.ok()) return plan.status();
  if ((*plan)->id() != request->plan_id) return Bad("root is not the plan's id");
  for (const arena::PlanBucket& bucket : (*plan)->buckets()) {
    Request place;
    place.dtype = bucket.dtype;
    RINGD_RETURN_IF_ERROR(ResolveBuffers(bucket.input, bucket.count, bucket.output, bucket.count,
                                         *context.arena, &place));
  }
  request->plan = *std::move(plan);
  request->signature ^= request->plan->hash();
  return absl::OkStatus();
}

absl::Status MakePlanBucket(const DescriptorContext& context, Request* request) {
  const auto found = context.plans->find(wire::ChannelId(request->group, request->plan_id));
  if (found == context.plans->end())
    return Bad(absl::StrCat("plan ", request->plan_id, " is not registered"));
  const auto& buckets = found->second->buckets();
  if (request->bucket >= buckets.size()) return Bad("bucket out of range");
  const arena::PlanBucket& bucket = buckets[request->bucket];
  request->plan = found->second;
  request->dtype = bucket.dtype;
  request->reduction = bucket.reduction;
  request->wire = static_cast<WireDType>(bucket.wire);
  request->prescale = bucket.prescale;
  request->postscale = bucket.postscale;
  request->count = bucket.count;
  request->shape = {static_cast<int64_t>(bucket.count)};
  return ResolveBuffers(bucket.input, bucket.count, bucket.output, bucket.count, *context.arena,
                        request);
}

void SetInlineShape(const arena::Descriptor& descriptor, Request* request) {
  if (!request->shape.empty() || descriptor.ndim > arena::kMaxInlineDims) return;
  request->shape.assign(descriptor.dims, descriptor.dims + descriptor.ndim);
}

absl::Status MakeOfTensor(const arena::Descriptor& descriptor, const std::vector<char>& record,
                          const DescriptorContext& context, Request* request) {
  const Operation operation = descriptor.operation;
  if (HasRoot(operation) || IsMessage(operation)) request->root = descriptor.root;
  if (IsMessage(operation) && request->root >= 0 && request->root < context.size) {
    request->peer = context.members == nullptr ? request->root : (*context.members)[request->root];
  }
  RINGD_RETURN_IF_ERROR(ParseMeta(record, request));
  SetInlineShape(descriptor, request);
  if (operation == Operation::kBarrier) return absl::OkStatus();
  request->dtype = descriptor.dtype;
  request->wire = static_cast<WireDType>(descriptor.wire);
  request->count = descriptor.count;
  if (IsReduction(operation)) {
    request->reduction = descriptor.reduction;
    request->prescale = descriptor.prescale;
    request->postscale = descriptor.postscale;
  }
  if (MovesData(operation)) return MakeData(descriptor, context, request);
  CheckMeaning(context, request);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDescriptor(const arena::Descriptor& descriptor,
                             const DescriptorContext& context) {
  if (descriptor.size != sizeof(descriptor)) return Bad("size");
  if (descriptor.version != arena::kLayoutVersion) return Bad("version");
  if (!IsKnown(descriptor.operation)) return Bad("operation");
  if (static_cast<int>(descriptor.dtype) >= kDTypeCount) return Bad("dtype");
  if (static_cast<int>(descriptor.reduction) >= kReductionCount) return Bad("reduction");
  if ((descriptor.flags & ~kKnownFlags) != 0) return Bad("flags");
  if (descriptor.slot >= arena::kSlotCount) return Bad("slot");
  if (descriptor.number != context.arena->SlotWord(descriptor.slot) + 1) return Bad("number");
  if (descriptor.serial != context.serial) {
    return Bad(absl::StrCat("serial ", descriptor.serial, " where ", context.serial, " was due"));
  }
  if (context.rank < 0) {
    return Bad(
        absl::StrCat("group ", descriptor.group, ": there is none, or this rank is not a member"));
  }
  const bool is_bucket = descriptor.operation == Operation::kPlanBucket;
  if (is_bucket ? descriptor.sequence_high != 0 : arena::SequenceOf(descriptor) > kMaxSequence) {
    return Bad("sequence");
  }
  if (descriptor.ndim > arena::kMaxDims) return Bad("ndim");
  if (!IsZero(descriptor.reserved)) return Bad("reserved bytes");
  const bool may_narrow = descriptor.operation == Operation::kAllreduce;
  if (descriptor.wire >= (may_narrow ? kWireDTypeCount : 1)) return Bad("wire");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Request>> MakeRequest(const arena::Descriptor& descriptor,
                                                     const DescriptorContext& context) {
  auto request = std::make_unique<Request>();
  request->slot = descriptor.slot;
  request->number = descriptor.number;
  request->operation = descriptor.operation;
  request->signature = descriptor.signature;
  request->group = descriptor.group;
  const bool is_bucket = descriptor.operation == Operation::kPlanBucket;
  request->is_named = (descriptor.flags & arena::kFlagNamed) != 0;
  if (descriptor.group == 0 && !is_bucket && !request->is_named) {
    request->sequence = arena::SequenceOf(descriptor);
  }
  request->tag = descriptor.tag;
  absl::StatusOr<std::vector<char>> record = CopyMeta(descriptor, *context.arena);
  if (!record.ok()) return record.status();
  absl::Status status;
  switch (descriptor.operation) {
    case Operation::kPlanRegister:
    case Operation::kPlanUnregister:
    case Operation::kPlanBucket:
      request->plan_id = static_cast<uint32_t>(descriptor.root);
      if (request->plan_id >= wire::kNamed) {
        return Bad(absl::StrCat("plan ", request->plan_id, " is not registered"));
      }
      if (descriptor.operation == Operation::kPlanRegister) {
        status = MakePlanRegister(*record, context, request.get());
      } else if (descriptor.operation == Operation::kPlanBucket) {
        request->bucket = descriptor.bucket;
        status = MakePlanBucket(context, request.get());
      } else if (!context.plans->contains(wire::ChannelId(request->group, request->plan_id))) {
        status = Bad(absl::StrCat("plan ", request->plan_id, " is not registered"));
      }
      break;
    case Operation::kGroupRegister:
    case Operation::kGroupUnregister:
      request->root = descriptor.root;
      status = ParseMeta(*record, request.get());
      if (status.ok()) status = MakeOfGroups(context, request.get());
      break;
    case Operation::kJoin:
      request->dtype = DType::kInt32;
      status = descriptor.group != 0 ? Bad("join of a group")
                                     : ResolveBuffers(arena::kNullRef, 0, descriptor.output, 1,
                                                      *context.arena, request.get());
      break;
    default:
      status = MakeOfTensor(descriptor, *record, context, request.get());
  }
  if (!status.ok()) return status;
  const bool may_have_name = MovesData(request->operation) && !IsMessage(request->operation);
  if (request->is_named && (request->name.empty() || !may_have_name)) {
    return Bad("it can't be ordered by name");
  }
  return request;
}

}  // namespace ringd::daemon
