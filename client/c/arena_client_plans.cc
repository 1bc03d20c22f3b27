// The plans of a client, by id.
#include <memory>
#include <mutex>
#include <utility>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/plan.h"

namespace ringd::client {
namespace {

constexpr uint32_t kMaxPlanId = 0xffff;  // Of a group.

}  // namespace

int ArenaClient::RegisterPlan(uint32_t group, const ringd_plan_bucket* buckets,
                              uint32_t bucket_count, const ringd_plan_tensor* tensors,
                              uint32_t tensor_count, int64_t timeout_us, ringd_plan* plan) {
  if (const int code = CheckUsable(); code != RINGD_OK) return code;
  ringd_info info;
  if (const int code = FindGroup(group, &info); code != RINGD_OK) return code;
  std::lock_guard lock(plan_mu_);
  uint32_t& last_plan = last_plans_[group];
  std::atomic<Plan*>* const place = FindPlace(0);
  if (place == nullptr || last_plan == kMaxPlanId) {
    return FailFormat(Code::kResourceExhausted,
                      "this rank has %u plans, the limit: unregister those it no longer uses",
                      arena::kMaxPlansPerClient);
  }
  std::unique_ptr<Plan> created;
  int code = Plan::Create(this, group << 16 | (last_plan + 1), buckets, bucket_count, tensors,
                          tensor_count, &created);
  if (code != RINGD_OK) return code;
  // The number counts even if the ranks don't agree, since it does on all of them.
  ++last_plan;
  code = created->Agree(timeout_us);
  if (code != RINGD_OK) return code;
  *plan = created->id();
  place->store(created.release());
  return RINGD_OK;
}

// The place of a plan; 0: one that is free. Null: there is none.
std::atomic<Plan*>* ArenaClient::FindPlace(ringd_plan plan) {
  for (auto& place : plans_) {
    const Plan* const found = place.load();
    if (found == nullptr ? plan == 0 : found->id() == plan) return &place;
  }
  return nullptr;
}

Plan* ArenaClient::FindPlan(ringd_plan plan) {
  std::atomic<Plan*>* const place = plan == 0 ? nullptr : FindPlace(plan);
  if (place != nullptr) return place->load();
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
    FindPlace(plan)->store(nullptr);
    delete found;
  }
  return code;
}

}  // namespace ringd::client
