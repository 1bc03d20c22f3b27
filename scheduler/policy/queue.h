// Which queued jobs start now: first come, first served, with bounded backfill.
#ifndef RINGD_SCHEDULER_POLICY_QUEUE_H_
#define RINGD_SCHEDULER_POLICY_QUEUE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/policy/placement.h"
#include "scheduler/policy/spec.h"

namespace ringd::scheduler {

// How many later jobs may start before one that is blocked: enough to keep nodes busy, few enough
// that a large job waits for the end of the running ones only.
inline constexpr int kMaxPasses = 16;

struct QueuedJob {
  std::string id;
  Shape shape;
  uint32_t uid = 0;
  int passed = 0;  // Later jobs that have started before it.
};

struct QueueDecision {
  Placement placement;  // assignments empty: it waits, and placement.reason says why.
  int passed = 0;       // New count.
};

// Jobs in order of arrival. One that fits starts. One that doesn't but would on idle nodes is
// blocked, and later ones may pass it (backfill) until it has been passed kMaxPasses times; then
// nobody starts before it. One that the cluster is too small for holds nobody up.
std::vector<QueueDecision> PlanQueue(const std::vector<QueuedJob>& jobs, ClusterView cluster);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_POLICY_QUEUE_H_
