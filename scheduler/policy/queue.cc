#include "scheduler/policy/queue.h"

#include "absl/strings/str_cat.h"

namespace ringd::scheduler {

std::vector<QueueDecision> PlanQueue(const std::vector<QueuedJob>& jobs, ClusterView cluster) {
  std::vector<QueueDecision> decisions;
  decisions.reserve(jobs.size());
  std::vector<size_t> blocked;
  const QueuedJob* barrier = nullptr;  // Nobody passes it any more.
  for (const QueuedJob& job : jobs) {
    QueueDecision& decision = decisions.emplace_back();
    decision.passed = job.passed;
    decision.placement = Place(job.shape, job.uid, cluster);
    if (!decision.placement.assignments.empty()) {
      if (barrier != nullptr) {
        decision.placement.assignments.clear();
        decision.placement.reason = absl::StrCat(
            "waits for ", barrier->id, ", which others have passed ", kMaxPasses, " times");
        continue;
      }
      TakeSlots(decision.placement, &cluster);
      for (size_t index : blocked) {
        if (++decisions[index].passed >= kMaxPasses && barrier == nullptr) barrier = &jobs[index];
      }
    } else if (decision.placement.possible) {
      blocked.push_back(decisions.size() - 1);
      if (barrier == nullptr && job.passed >= kMaxPasses) barrier = &job;
    }
  }
  return decisions;
}

}  // namespace ringd::scheduler
