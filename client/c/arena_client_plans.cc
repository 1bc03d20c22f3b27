// The plans of a client, by id.
#include <memory>
#include <mutex>
#include <utility>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/plan.h"

namespace ringd::client {

int ArenaClient::RegisterPlan(const ringd_plan_bucket* buckets, uint32_t bucket_count,
                              const ringd_plan_tensor* tensors, uint32_t tensor_count,
                              int64_t timeout_us, ringd_plan* plan) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  std::lock_guard lock(plan_mu_);
  auto& place = plans_[last_plan_ % arena::kMaxPlansPerClient];
  if (place.load() != nullptr) {
    return FailFormat(Code::kResourceExhausted,
                      "this rank has %u plans, the limit: unregister those it no longer uses",
                      arena::kMaxPlansPerClient);
  }
  std::unique_ptr<Plan> created;
  int code =
      Plan::Create(this, last_plan_ + 1, buckets, bucket_count, tensors, tensor_count, &created);
  if (code != RINGD_OK) return code;
  // The number counts even if the ranks don't agree, since it does on all of them.
  ++last_plan_;
  code = created->Agree(timeout_us);
  if (code != RINGD_OK) return code;
  *plan = created->id();
  place.store(created.release());
  return RINGD_OK;
}

Plan* ArenaClient::FindPlan(ringd_plan plan) {
  Plan* const found = plan == 0 ? nullptr : plans_[(plan - 1) % arena::kMaxPlansPerClient].load();
  if (found != nullptr && found->id() == plan) return found;
  Fail(Code::kInvalidArgument, "no such plan");
  return nullptr;
}

int ArenaClient::UnregisterPlan(ringd_plan plan) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  std::lock_guard lock(plan_mu_);
  Plan* const found = FindPlan(plan);
  if (found == nullptr) return LastError().code;
  bool retired = false;
  const int code = found->Retire(&retired);
  if (retired) {
    plans_[(plan - 1) % arena::kMaxPlansPerClient].store(nullptr);
    delete found;
  }
  return code;
}

}  // namespace ringd::client
