// A bucket plan as a client registered it, read from hostile memory.
#ifndef RINGD_DAEMON_ENGINE_ORDER_PLAN_H_
#define RINGD_DAEMON_ENGINE_ORDER_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/arena.h"

namespace ringd::daemon {

// "float32[10, 3]"; "float32[]" for a scalar.
std::string TensorSignature(DType dtype, absl::Span<const int64_t> shape);

// Immutable once parsed. Its buckets' Refs are not yet checked against an arena.
class Plan {
 public:
  // record: the daemon's own copy of a kPlanRegister meta record (arena::PlanHeader and what
  // follows). INVALID_ARGUMENT: sizes that don't add up, numbers out of range, tensors outside
  // their bucket; names the field.
  static absl::StatusOr<std::shared_ptr<const Plan>> Parse(absl::Span<const char> record);

  uint32_t id() const { return id_; }
  const std::vector<arena::PlanBucket>& buckets() const { return buckets_; }
  // What all ranks must agree on (no Refs), as daemon/collectives/mismatch.h describes it.
  const std::string& canonical_text() const { return text_; }
  // Hash of the text, the same on every node.
  uint64_t hash() const { return hash_; }

 private:
  Plan() = default;

  uint32_t id_ = 0;
  std::vector<arena::PlanBucket> buckets_;
  std::string text_;
  uint64_t hash_ = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_PLAN_H_
