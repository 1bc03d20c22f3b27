#include "client/c/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/request.h"
#include "client/c/signature.h"
#include "common/base/futex.h"
#include "common/base/types.h"
#include "common/reduce/wire_dtype.h"

namespace ringd::client {
namespace {

// Every tensor begins here: good for vector loads and for every dtype, the same on all ranks.
constexpr uint64_t kTensorAlignment = 16;

// In elements. Tensors that travel by blocks with a scale of their own share none.
uint64_t TensorUnit(const ringd_plan_bucket& bucket) {
  return bucket.wire != 0 ? kWireBlock
                          : kTensorAlignment / DTypeBytes(static_cast<DType>(bucket.dtype));
}
constexpr uint64_t kMaxTensors =
    1u << 20;  // Far above a model's parameters; keeps the record's numbers in 32 bits.

arena::Descriptor PlanDescriptor(Operation operation, uint32_t id) {
  arena::Descriptor descriptor{};
  descriptor.size = sizeof(descriptor);
  descriptor.version = arena::kLayoutVersion;
  descriptor.operation = operation;
  descriptor.dtype = DType::kUInt8;
  descriptor.input = arena::kNullRef;
  descriptor.output = arena::kNullRef;
  descriptor.meta = arena::kNullRef;
  descriptor.group = id >> 16;
  descriptor.root = static_cast<int32_t>(id & 0xffff);
  descriptor.prescale = 1.0;
  descriptor.postscale = 1.0;
  return descriptor;
}

int CheckBucket(const ringd_plan_bucket& bucket, uint32_t index) {
  const auto reduction = static_cast<Reduction>(bucket.reduction);
  const bool known_dtype =
      bucket.dtype < kDTypeCount && DTypeBytes(static_cast<DType>(bucket.dtype)) > 0;
  const bool known_reduction = bucket.reduction < kReductionCount &&
                               reduction != Reduction::kNone && reduction != Reduction::kAdasum;
  const bool average_of_bool =
      reduction == Reduction::kAverage && bucket.dtype == static_cast<uint32_t>(DType::kBool);
  const auto wire = static_cast<WireDType>(bucket.wire);
  if (known_dtype &&
      (bucket.wire >= kWireDTypeCount || !CanNarrow(static_cast<DType>(bucket.dtype), wire))) {
    return FailFormat(Code::kInvalidArgument, "plan: bucket %u: %s can't travel as %s", index,
                      DTypeName(static_cast<DType>(bucket.dtype)), WireDTypeName(wire));
  }
  if (known_dtype && known_reduction && !average_of_bool) return RINGD_OK;
  return FailFormat(Code::kInvalidArgument, "plan: bucket %u has an unknown dtype or reduction",
                    index);
}

}  // namespace

int Plan::Create(ArenaClient* client, uint32_t id, const ringd_plan_bucket* buckets,
                 uint32_t bucket_count, const ringd_plan_tensor* tensors, uint32_t tensor_count,
                 std::unique_ptr<Plan>* plan) {
  if (bucket_count == 0 || bucket_count > arena::kMaxPlanBuckets) {
    return FailFormat(Code::kInvalidArgument, "plan: %u buckets; there can be 1 to %u",
                      bucket_count, arena::kMaxPlanBuckets);
  }
  if (tensor_count > kMaxTensors) return Fail(Code::kInvalidArgument, "plan: too many tensors");
  std::unique_ptr<Plan> created(new Plan(client, id, bucket_count, tensor_count));
  for (uint32_t i = 0; i < bucket_count; ++i) {
    if (const int code = CheckBucket(buckets[i], i); code != RINGD_OK) return code;
    created->buckets_[i].options = buckets[i];
    if (client->info().node_count == 1) created->buckets_[i].options.wire = 0;
  }
  if (const int code = created->AddTensors(tensors); code != RINGD_OK) return code;
  if (const int code = created->AllocateBuckets(); code != RINGD_OK) return code;
  created->BeginStep();
  *plan = std::move(created);
  return RINGD_OK;
}

Plan::Plan(ArenaClient* client, uint32_t id, uint32_t bucket_count, uint32_t tensor_count)
    : client_(client),
      id_(id),
      bucket_count_(bucket_count),
      tensor_count_(tensor_count),
      buckets_(new Bucket[bucket_count]),
      tensors_(new Tensor[tensor_count]) {}

// The blocks of a plan that was not retired stay: the caller's tensors lie in them.
Plan::~Plan() = default;

int Plan::AddTensors(const ringd_plan_tensor* tensors) {
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    const ringd_plan_tensor& given = tensors[i];
    Tensor& tensor = tensors_[i];
    tensor.name = given.name == nullptr ? "" : given.name;
    const auto fail = [&](const char* why) {
      return FailFormat(Code::kInvalidArgument, "plan: tensor %u (\"%s\"): %s", i,
                        tensor.name.c_str(), why);
    };
    if (tensor.name.size() > arena::kMaxNameBytes) return fail("the name is too long");
    if (given.bucket >= bucket_count_) return fail("there is no such bucket");
    if (given.ndim > arena::kMaxDims) return fail("more than 32 dimensions");
    if (given.ndim > 0) tensor.shape.assign(given.shape, given.shape + given.ndim);
    Bucket& bucket = buckets_[given.bucket];
    uint64_t count = 1;
    for (const int64_t dim : tensor.shape) {
      if (dim < 0 || __builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count) ||
          count > uint64_t{1} << 44) {
        return fail("its shape is negative or too large");
      }
    }
    const uint64_t unit = TensorUnit(bucket.options);
    tensor.bucket = given.bucket;
    tensor.count = count;
    tensor.offset = bucket.count;
    bucket.count += (count + unit - 1) / unit * unit;
    ++bucket.tensor_count;
  }
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    if (buckets_[i].tensor_count == 0) {
      return FailFormat(Code::kInvalidArgument, "plan: bucket %u has no tensors", i);
    }
  }
  return RINGD_OK;
}

int Plan::AllocateBuckets() {
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    Bucket& bucket = buckets_[i];
    const uint64_t bytes = bucket.count * DTypeBytes(static_cast<DType>(bucket.options.dtype));
    bucket.block = client_->AllocateBlock(bytes, Slab::Holder::kCaller);
    if (bucket.block == arena::kNullRef) {
      for (uint32_t j = 0; j < i; ++j) client_->memory()->Free(buckets_[j].block);
      return LastError().code;
    }
    std::memset(client_->memory()->Pointer(bucket.block), 0, bytes);
  }
  return RINGD_OK;
}

uint64_t Plan::Signature() const {
  Hasher hasher;
  hasher.Add(uint64_t{id_});
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    const Bucket& bucket = buckets_[i];
    hasher.Add(uint64_t{bucket.options.dtype} << 32 | uint64_t{bucket.options.wire} << 16 |
               bucket.options.reduction);
    hasher.Add(bucket.options.prescale);
    hasher.Add(bucket.options.postscale);
    hasher.Add(bucket.count);
  }
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    const Tensor& tensor = tensors_[i];
    hasher.Add(std::string_view(tensor.name));
    hasher.Add(uint64_t{tensor.bucket} << 32 | tensor.shape.size());
    for (const int64_t dim : tensor.shape) hasher.Add(static_cast<uint64_t>(dim));
  }
  return hasher.Finish();
}

std::vector<char> Plan::Record() const {
  arena::PlanHeader header{
      .plan = id_ & 0xffff, .bucket_count = bucket_count_, .tensor_count = tensor_count_};
  std::vector<arena::PlanBucket> buckets(bucket_count_);
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    const ringd_plan_bucket& options = buckets_[i].options;
    buckets[i] = arena::PlanBucket{.input = buckets_[i].block,
                                   .output = buckets_[i].block,
                                   .count = buckets_[i].count,
                                   .prescale = options.prescale,
                                   .postscale = options.postscale,
                                   .dtype = static_cast<DType>(options.dtype),
                                   .reduction = static_cast<Reduction>(options.reduction),
                                   .wire = static_cast<uint8_t>(options.wire)};
  }
  std::vector<arena::PlanTensor> tensors(tensor_count_);
  std::vector<int64_t> dims;
  std::string names;
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    const Tensor& tensor = tensors_[i];
    tensors[i] = arena::PlanTensor{.bucket = tensor.bucket,
                                   .ndim = static_cast<uint32_t>(tensor.shape.size()),
                                   .first_dim = static_cast<uint32_t>(dims.size()),
                                   .name_offset = static_cast<uint32_t>(names.size()),
                                   .name_bytes = static_cast<uint32_t>(tensor.name.size()),
                                   .offset = tensor.offset};
    dims.insert(dims.end(), tensor.shape.begin(), tensor.shape.end());
    names += tensor.name;
  }
  header.dim_count = static_cast<uint32_t>(dims.size());
  header.name_bytes = static_cast<uint32_t>(names.size());
  std::vector<char> record;
  const auto append = [&record](const void* data, size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    record.insert(record.end(), from, from + bytes);
  };
  append(&header, sizeof(header));
  append(buckets.data(), buckets.size() * sizeof(buckets[0]));
  append(tensors.data(), tensors.size() * sizeof(arena::PlanTensor));
  append(dims.data(), dims.size() * sizeof(int64_t));
  append(names.data(), names.size());
  return record;
}

int Plan::RunAgreement(Operation operation, int64_t timeout_us) {
  Prepared prepared;
  prepared.descriptor = PlanDescriptor(operation, id_);
  prepared.descriptor.signature = Signature();
  if (operation == Operation::kPlanRegister) {
    const std::vector<char> record = Record();
    if (record.size() > arena::kMaxMetaBytes) {
      return Fail(Code::kResourceExhausted, "plan: names and shapes are longer than 64 MB");
    }
    const arena::Ref block = client_->AllocateBlock(record.size(), Slab::Holder::kOperation);
    if (block == arena::kNullRef) return LastError().code;
    std::memcpy(client_->memory()->Pointer(block), record.data(), record.size());
    prepared.holdings.meta_block = block;
    prepared.descriptor.meta = block;
    prepared.descriptor.meta_bytes = static_cast<uint32_t>(record.size());
  }
  ringd_handle handle = 0;
  const int code = client_->SubmitPrepared(&prepared, 1, &handle);
  if (code == RINGD_OK) return AwaitAgreement(operation, handle, timeout_us);
  if (prepared.holdings.meta_block != arena::kNullRef) {
    client_->memory()->Release(prepared.holdings.meta_block);
  }
  return code;
}

int Plan::AwaitAgreement(Operation operation, ringd_handle handle, int64_t timeout_us) {
  int code = client_->Wait(handle, timeout_us);
  // Giving up has no second try: a signal's handler runs when it returns.
  while (code == RINGD_INTERRUPTED && operation == Operation::kPlanUnregister) {
    code = client_->Wait(handle, timeout_us);
  }
  return code;
}

int Plan::Agree(int64_t timeout_us) {
  const int code = RunAgreement(Operation::kPlanRegister, timeout_us);
  if (code == RINGD_OK) return code;
  const bool over = code != RINGD_INTERRUPTED && code != RINGD_DEADLINE_EXCEEDED;
  for (uint32_t i = 0; over && i < bucket_count_; ++i) client_->memory()->Free(buckets_[i].block);
  return code;
}

int Plan::Retire(bool* retired) {
  *retired = false;
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    if (buckets_[i].pending.load() != buckets_[i].tensor_count) {
      return Fail(Code::kInvalidArgument, "plan: can't be unregistered inside a step: wait for it");
    }
  }
  *retired = true;
  const int code = RunAgreement(Operation::kPlanUnregister, -1);
  for (uint32_t i = 0; i < bucket_count_; ++i) client_->memory()->Free(buckets_[i].block);
  return code;
}

void* Plan::TensorData(uint32_t index) const {
  if (index >= tensor_count_) {
    Fail(Code::kInvalidArgument, "plan: no such tensor");
    return nullptr;
  }
  const Tensor& tensor = tensors_[index];
  const Bucket& bucket = buckets_[tensor.bucket];
  return client_->memory()->Pointer(bucket.block) +
         tensor.offset * DTypeBytes(static_cast<DType>(bucket.options.dtype));
}

int Plan::MarkReady(uint32_t index) {
  if (index >= tensor_count_) return Fail(Code::kInvalidArgument, "plan: no such tensor");
  Tensor& tensor = tensors_[index];
  if (tensor.ready.exchange(true)) {
    return FailFormat(Code::kInvalidArgument,
                      "plan: tensor %u (\"%s\") is ready for the second time in this step", index,
                      tensor.name.c_str());
  }
  if (buckets_[tensor.bucket].pending.fetch_sub(1) != 1) return RINGD_OK;
  return SubmitBucket(tensor.bucket);
}

int Plan::SubmitBucket(uint32_t index) {
  Bucket& bucket = buckets_[index];
  Prepared prepared;
  arena::Descriptor& descriptor = prepared.descriptor;
  descriptor = PlanDescriptor(Operation::kPlanBucket, id_);
  descriptor.bucket = index;
  descriptor.dtype = static_cast<DType>(bucket.options.dtype);
  descriptor.reduction = static_cast<Reduction>(bucket.options.reduction);
  descriptor.prescale = bucket.options.prescale;
  descriptor.postscale = bucket.options.postscale;
  descriptor.count = bucket.count;
  descriptor.input = bucket.block;
  descriptor.output = bucket.block;
  descriptor.ndim = 1;
  descriptor.dims[0] = static_cast<uint32_t>(std::min<uint64_t>(bucket.count, UINT32_MAX));
  Hasher hasher;
  hasher.Add(uint64_t{id_} << 32 | index);
  hasher.Add(bucket.count);
  descriptor.signature = hasher.Finish();
  ringd_handle handle = 0;
  const int code = client_->SubmitPrepared(&prepared, 1, &handle);
  if (code != RINGD_OK) bucket.error = std::make_unique<ringd_error>(LastError());
  bucket.handle.store(handle);
  bucket.submitted.store(true);
  return code;
}

int Plan::Flush(uint32_t* count) {
  uint32_t flushed = 0;
  int result = RINGD_OK;
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    const Tensor& tensor = tensors_[i];
    if (tensor.ready.load()) continue;
    const auto dtype = static_cast<DType>(buckets_[tensor.bucket].options.dtype);
    std::memset(TensorData(i), 0, tensor.count * DTypeBytes(dtype));
    const int code = MarkReady(i);
    if (result == RINGD_OK) result = code;
    ++flushed;
  }
  if (count != nullptr) *count = flushed;
  return result;
}

int Plan::FindMissing() const {
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    if (tensors_[i].ready.load()) continue;
    return FailFormat(Code::kInvalidArgument,
                      "plan: tensor %u (\"%s\") is not ready: call ringd_plan_flush for parameters "
                      "that this step does not use",
                      i, tensors_[i].name.c_str());
  }
  return Fail(Code::kInvalidArgument, "plan: another thread is still marking tensors ready");
}

int Plan::Wait(int64_t timeout_us) {
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    if (buckets_[i].submitted.load()) continue;
    if (const int code = client_->CheckUsable(); code != RINGD_OK) return code;
    return FindMissing();
  }
  const int64_t start_us = MonotonicMicros();
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    Bucket& bucket = buckets_[i];
    int code = RINGD_OK;
    if (bucket.error != nullptr) {
      code = FailWith(*bucket.error);
    } else if (bucket.handle.load() != 0) {
      const int64_t spent_us = timeout_us < 0 ? 0 : MonotonicMicros() - start_us;
      const int64_t left_us = timeout_us < 0 ? -1 : std::max<int64_t>(0, timeout_us - spent_us);
      code = client_->Wait(bucket.handle.load(), left_us);
      if (code == RINGD_INTERRUPTED || code == RINGD_DEADLINE_EXCEEDED) return code;
    }
    bucket.handle.store(0);
    bucket.error.reset();
    if (code != RINGD_OK && step_error_ == nullptr) {
      step_error_ = std::make_unique<ringd_error>(LastError());
    }
  }
  BeginStep();
  const std::unique_ptr<ringd_error> error = std::move(step_error_);
  return error == nullptr ? RINGD_OK : FailWith(*error);
}

void Plan::BeginStep() {
  for (uint32_t i = 0; i < bucket_count_; ++i) {
    buckets_[i].pending.store(buckets_[i].tensor_count);
    buckets_[i].submitted.store(false);
  }
  for (uint32_t i = 0; i < tensor_count_; ++i) tensors_[i].ready.store(false);
}

}  // namespace ringd::client
