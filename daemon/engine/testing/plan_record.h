// kPlanRegister records for tests.
#ifndef RINGD_DAEMON_ENGINE_TESTING_PLAN_RECORD_H_
#define RINGD_DAEMON_ENGINE_TESTING_PLAN_RECORD_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "proto/arena.h"

namespace ringd::daemon {

struct PlanRecord {
  struct Tensor {
    std::string name;
    uint32_t bucket = 0;
    std::vector<int64_t> shape;
    uint64_t offset = 0;
  };
  uint32_t plan = 1;
  std::vector<arena::PlanBucket> buckets;
  std::vector<Tensor> tensors;

  // As a client lays it out in its arena.
  std::vector<char> Bytes() const {
    arena::PlanHeader header{
        plan, static_cast<uint32_t>(buckets.size()), static_cast<uint32_t>(tensors.size()), 0, 0,
        0};
    std::vector<char> tensor_bytes, dims;
    std::string names;
    for (const Tensor& tensor : tensors) {
      arena::PlanTensor entry{};
      entry.bucket = tensor.bucket;
      entry.ndim = static_cast<uint32_t>(tensor.shape.size());
      entry.first_dim = header.dim_count;
      entry.name_offset = static_cast<uint32_t>(names.size());
      entry.name_bytes = static_cast<uint32_t>(tensor.name.size());
      entry.offset = tensor.offset;
      Append(&entry, sizeof(entry), &tensor_bytes);
      Append(tensor.shape.data(), tensor.shape.size() * sizeof(int64_t), &dims);
      header.dim_count += entry.ndim;
      names += tensor.name;
    }
    header.name_bytes = static_cast<uint32_t>(names.size());
    std::vector<char> bytes;
    Append(&header, sizeof(header), &bytes);
    Append(buckets.data(), buckets.size() * sizeof(arena::PlanBucket), &bytes);
    Append(tensor_bytes.data(), tensor_bytes.size(), &bytes);
    Append(dims.data(), dims.size(), &bytes);
    Append(names.data(), names.size(), &bytes);
    return bytes;
  }

 private:
  static void Append(const void* data, size_t bytes, std::vector<char>* out) {
    const auto* from = static_cast<const char*>(data);
    out->insert(out->end(), from, from + bytes);
  }
};

// float32, sum, in place.
inline arena::PlanBucket MakePlanBucket(uint64_t count, arena::Ref place = 0) {
  arena::PlanBucket bucket{};
  bucket.input = place;
  bucket.output = place;
  bucket.count = count;
  bucket.prescale = 1.0;
  bucket.postscale = 1.0;
  bucket.dtype = DType::kFloat32;
  bucket.reduction = Reduction::kSum;
  return bucket;
}

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_TESTING_PLAN_RECORD_H_
