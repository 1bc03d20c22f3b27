// Tests of the machine: two nodes, and a job on them.
#ifndef RINGD_SCHEDULER_STATE_MACHINE_FIXTURE_H_
#define RINGD_SCHEDULER_STATE_MACHINE_FIXTURE_H_

#include <string>

#include "gtest/gtest.h"
#include "scheduler/state/machine_harness.h"

namespace ringd::scheduler {

// Two nodes of two slots.
class MachineTest : public testing::Test {
 protected:
  MachineTest() {
    a_ = h_.Join("a", 2);
    b_ = h_.Join("b", 2);
  }

  // A job of 4 ranks: 0, 1 on a, 2, 3 on b; all running.
  std::string RunFour(ringd::cluster::v1::JobSpec spec = MachineHarness::Spec(4)) {
    const std::string job = *h_.Submit(spec);
    h_.Prepared(a_, job);
    h_.Prepared(b_, job);
    for (int rank = 0; rank < 4; ++rank) h_.Started(rank < 2 ? a_ : b_, job, rank);
    EXPECT_EQ(h_.State(job), ringd::cluster::v1::JOB_STATE_RUNNING);
    return job;
  }
  void ClearBoth(const std::string& job) {
    h_.Cleared(a_, job);
    h_.Cleared(b_, job);
  }

  MachineHarness h_;
  ConnectionId a_ = 0;
  ConnectionId b_ = 0;
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STATE_MACHINE_FIXTURE_H_
