// A bucket plan on the client's side: the buckets' memory and which tensors of the step are ready.
#ifndef RINGD_CLIENT_C_PLAN_H_
#define RINGD_CLIENT_C_PLAN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/c/ringd.h"
#include "client/c/slots.h"
#include "proto/arena.h"

namespace ringd::client {

class ArenaClient;

// Life: Lay out, Agree, then steps; Retire or the client's end.
// Ownership: its buckets are held as a caller's blocks, since the caller's tensors lie in them.
// MarkReady and Flush are thread-safe; the others need external synchronisation.
// Failure: codes of ringd.h. A bucket that failed shows in the Wait of its step.
class Plan {
 public:
  // id: the group's in the upper 16 bits, the plan's in that group below. Checks, allocates and
  // clears. `client` must outlive the plan. RINGD_INVALID_ARGUMENT,
  // RINGD_RESOURCE_EXHAUSTED.
  static int Create(ArenaClient* client, uint32_t id, const ringd_plan_bucket* buckets,
                    uint32_t bucket_count, const ringd_plan_tensor* tensors, uint32_t tensor_count,
                    std::unique_ptr<Plan>* plan);
  ~Plan();

  // COLLECTIVE. Blocks until all ranks have the same plan.
  int Agree(int64_t timeout_us);
  // COLLECTIVE. Blocks until all ranks have given the plan up. Inside a step:
  // RINGD_INVALID_ARGUMENT and not retired; otherwise retired, whatever it returns.
  int Retire(bool* retired);

  uint32_t id() const { return id_; }
  void* TensorData(uint32_t index) const;
  int MarkReady(uint32_t index);
  int Flush(uint32_t* count);
  int Wait(int64_t timeout_us);

 private:
  struct Bucket {
    ringd_plan_bucket options{};
    arena::Ref block = arena::kNullRef;
    uint64_t count = 0;  // Elements, with the padding between tensors.
    uint32_t tensor_count = 0;
    std::atomic<uint32_t> pending{0};
    std::atomic<ringd_handle> handle{0};
    std::atomic<bool> submitted{false};  // In this step, whether it could be or not.
    std::unique_ptr<ringd_error> error;  // Of this step's submission.
  };
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    uint32_t bucket = 0;
    uint64_t offset = 0;  // Elements.
    uint64_t count = 0;
    std::atomic<bool> ready{false};
  };

  Plan(ArenaClient* client, uint32_t id, uint32_t bucket_count, uint32_t tensor_count);

  int AddTensors(const ringd_plan_tensor* tensors);
  int AllocateBuckets();
  uint64_t Signature() const;
  std::vector<char> Record() const;
  int RunAgreement(Operation operation, int64_t timeout_us);
  int AwaitAgreement(Operation operation, ringd_handle handle, int64_t timeout_us);
  int SubmitBucket(uint32_t index);
  int FindMissing() const;
  void BeginStep();

  ArenaClient* const client_;
  const uint32_t id_;
  const uint32_t bucket_count_;
  const uint32_t tensor_count_;
  const std::unique_ptr<Bucket[]> buckets_;
  const std::unique_ptr<Tensor[]> tensors_;
  std::unique_ptr<ringd_error> step_error_;  // First one of the step that Wait is collecting.
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_PLAN_H_
