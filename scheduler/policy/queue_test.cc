#include "scheduler/policy/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ringd::scheduler {
namespace {

constexpr uint32_t kUser = 1000;

QueuedJob Job(int number, int ranks, int passed = 0) {
  QueuedJob job;
  job.id = absl::StrCat("j-", number);
  job.shape.ranks = ranks;
  job.uid = kUser;
  job.passed = passed;
  return job;
}

ClusterView OneNode(int slots, int free) {
  ClusterView view;
  NodeSlots& node = view.nodes.emplace_back();
  node.name = "a";
  node.slots = slots;
  node.free = free;
  return view;
}

bool Starts(const QueueDecision& decision) { return !decision.placement.assignments.empty(); }

TEST(QueueTest, PlanQueue_AllFit_StartInOrder) {
  const auto decisions = PlanQueue({Job(1, 2), Job(2, 2), Job(3, 1)}, OneNode(4, 4));
  EXPECT_TRUE(Starts(decisions[0]));
  EXPECT_TRUE(Starts(decisions[1]));
  EXPECT_FALSE(Starts(decisions[2]));
  EXPECT_EQ(decisions[2].placement.reason, "needs 1 slot, 0 of 4 are free");
}

TEST(QueueTest, PlanQueue_LargeJobBlocked_SmallOnePassesAndIsCounted) {
  const auto decisions = PlanQueue({Job(1, 4, 3), Job(2, 1)}, OneNode(4, 2));
  EXPECT_FALSE(Starts(decisions[0]));
  EXPECT_TRUE(Starts(decisions[1]));
  EXPECT_EQ(decisions[0].passed, 4);
}

TEST(QueueTest, PlanQueue_PassedOftenEnough_HoldsLaterOnesUp) {
  const auto decisions =
      PlanQueue({Job(1, 4, kMaxPasses - 1), Job(2, 1), Job(3, 1)}, OneNode(4, 2));
  EXPECT_TRUE(Starts(decisions[1]));
  EXPECT_EQ(decisions[0].passed, kMaxPasses);
  EXPECT_FALSE(Starts(decisions[2]));
  EXPECT_EQ(decisions[2].placement.reason, "waits for j-1, which others have passed 16 times");
}

TEST(QueueTest, PlanQueue_JobTooLargeForTheCluster_HoldsNobodyUp) {
  const auto decisions = PlanQueue({Job(1, 9, kMaxPasses), Job(2, 1)}, OneNode(4, 4));
  EXPECT_FALSE(Starts(decisions[0]));
  EXPECT_TRUE(Starts(decisions[1]));
  EXPECT_EQ(decisions[0].passed, kMaxPasses);
}

}  // namespace
}  // namespace ringd::scheduler
