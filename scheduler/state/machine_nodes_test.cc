// Nodes that go and come back, and schedulers that are restarted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/state/machine.h"
#include "scheduler/state/machine_fixture.h"

namespace ringd::scheduler {
namespace {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.
using testing::HasSubstr;

TEST_F(MachineTest, Node_Silent_IsLostAndItsJobsFail) {
  const std::string job = RunFour();
  h_.Advance(absl::Seconds(6), {a_});
  EXPECT_EQ(h_.NodeStateOf("b"), "lost");
  EXPECT_EQ(h_.Count(a_, NodeOrder::kStop), 1);
  h_.Report(a_, h_.Exit(job, 0, 1, 0, 0, true));
  h_.Report(a_, h_.Exit(job, 1, 1, 0, 0, true));
  h_.Cleared(a_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_FAILED);
  EXPECT_EQ(h_.Shown(job).reason(), "rank 2 (node b) is gone: node lost, no heartbeat for 5s");
  EXPECT_EQ(h_.Shown(job).exit_code(), 1);
  EXPECT_EQ(h_.Shown(job).first_failure().node(), "b");
  EXPECT_EQ(h_.Shown(job).rank(2).state(), "failed");
}

TEST_F(MachineTest, Node_SchedulerItselfWasStopped_SilenceProvesNothing) {
  const std::string job = RunFour();
  h_.now.steady += absl::Seconds(20);
  h_.Apply(TickEvent{});
  EXPECT_EQ(h_.NodeStateOf("a"), "up");
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
}

TEST_F(MachineTest, Node_StreamBroken_JobWaitsAndGoesOnWhenTheDaemonIsBack) {
  const std::string job = RunFour();
  h_.Disconnect(b_);
  EXPECT_EQ(h_.NodeStateOf("b"), "away");
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  EXPECT_EQ(h_.Shown(job).reason(), "running: waiting for the daemon of node b to come back");
  h_.Advance(absl::Seconds(30), {a_});
  NodeHello hello = h_.Hello("b", 2);
  RunningJob* running = hello.add_jobs();
  running->set_job(job);
  running->set_generation(1);
  *running->add_ranks() = h_.Exit(job, 2, 0);
  *running->add_ranks() = h_.Update(job, 3, 103);
  b_ = h_.Join(hello);
  EXPECT_EQ(h_.Shown(job).reason(), "");
  EXPECT_EQ(h_.Shown(job).rank(2).state(), "exited");
  EXPECT_EQ(h_.Used("b"), 2);
}

TEST_F(MachineTest, Node_StreamBrokenForTooLong_IsLost) {
  const std::string job = RunFour();
  h_.Disconnect(b_);
  h_.Advance(absl::Seconds(61), {a_});
  EXPECT_EQ(h_.NodeStateOf("b"), "lost");
  EXPECT_THAT(h_.Shown(job).reason(), HasSubstr("did not come back within 1m"));
}

TEST_F(MachineTest, Node_BackWithoutTheJob_FailsIt) {
  const std::string job = RunFour();
  h_.Disconnect(b_);
  b_ = h_.Join("b", 2);
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  h_.Cleared(a_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_FAILED);
  EXPECT_THAT(h_.Shown(job).reason(), HasSubstr("came back without the job"));
}

TEST_F(MachineTest, Node_BackAfterItsJobFailed_MustEndItBeforeItsSlotsAreUsed) {
  const std::string job = RunFour();
  h_.Advance(absl::Seconds(6), {a_});
  h_.Cleared(a_, job);
  ASSERT_EQ(h_.State(job), JOB_STATE_FAILED);
  NodeHello hello = h_.Hello("b", 2);
  RunningJob* running = hello.add_jobs();
  running->set_job(job);
  running->set_generation(1);
  *running->add_ranks() = h_.Update(job, 2, 102);
  *running->add_ranks() = h_.Update(job, 3, 103);
  b_ = h_.Join(hello);
  EXPECT_EQ(h_.Last(b_, NodeOrder::kStop).stop().job(), job);
  EXPECT_EQ(h_.Used("b"), 2);
  const std::string next = *h_.Submit(MachineHarness::Spec(3));
  EXPECT_EQ(h_.State(next), JOB_STATE_QUEUED);
  h_.Cleared(b_, job);
  EXPECT_EQ(h_.Used("b"), 1);
  EXPECT_EQ(h_.State(next), JOB_STATE_FORMING);
  EXPECT_EQ(h_.Count(b_, NodeOrder::kForget), 1);
}

TEST_F(MachineTest, Node_LostWhileForming_JobIsPlacedElsewhere) {
  const std::string job = *h_.Submit(MachineHarness::Spec(4));
  h_.Disconnect(b_);
  h_.Cleared(a_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_QUEUED);
  const ConnectionId c = h_.Join("c", 2);
  h_.Advance(absl::Seconds(2), {a_, c});
  EXPECT_EQ(h_.State(job), JOB_STATE_FORMING);
  EXPECT_EQ(h_.Shown(job).rank(2).node(), "c");
}

TEST_F(MachineTest, Node_SecondDaemonOfOneName_IsRefusedWhileTheFirstLives) {
  NodeHello other = h_.Hello("a", 8);
  other.set_data_address("elsewhere:7472");
  const ConnectionId second = h_.Join(other);
  EXPECT_THAT(h_.Last(second, NodeOrder::kRefuse).refuse().reason(),
              HasSubstr("node a is here already"));
  EXPECT_EQ(h_.closed.back().connection, second);
  EXPECT_EQ(h_.NodeStateOf("a"), "up");
}

TEST_F(MachineTest, Node_FollowsAHigherTerm_IsNotTakenOver) {
  NodeHello hello = h_.Hello("c", 2);
  hello.set_term(h_.term + 1);
  h_.Join(hello);
  EXPECT_EQ(h_.closed.back().status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(h_.NodeStateOf("c"), "");
}

TEST_F(MachineTest, Node_BadHello_IsRefused) {
  const ConnectionId bad = h_.Join("a b", 2);
  EXPECT_THAT(h_.Last(bad, NodeOrder::kRefuse).refuse().reason(), HasSubstr("letters, digits"));
}

TEST_F(MachineTest, Restart_RunningJob_IsTakenUpAgain) {
  const std::string job = RunFour();
  h_.Restart();
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  for (const char* name : {"a", "b"}) {
    NodeHello hello = h_.Hello(name, 2);
    RunningJob* running = hello.add_jobs();
    running->set_job(job);
    running->set_generation(1);
    for (int rank = 0; rank < 2; ++rank) {
      const int number = rank + (name[0] == 'b' ? 2 : 0);
      *running->add_ranks() = h_.Update(job, number, 100 + number);
    }
    (name[0] == 'a' ? a_ : b_) = h_.Join(hello);
  }
  EXPECT_EQ(h_.Count(a_, NodeOrder::kStart), 0) << "its ranks run already";
  for (int rank = 0; rank < 4; ++rank) h_.Report(rank < 2 ? a_ : b_, h_.Exit(job, rank, 0));
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_SUCCEEDED);
}

TEST_F(MachineTest, Restart_CommittedButNotStarted_StartIsSentAgain) {
  const std::string job = *h_.Submit(MachineHarness::Spec(2));
  h_.Prepared(a_, job);
  h_.Restart();
  NodeHello hello = h_.Hello("a", 2);
  hello.add_jobs()->set_job(job);
  hello.mutable_jobs(0)->set_generation(1);
  a_ = h_.Join(hello);
  EXPECT_EQ(h_.Last(a_, NodeOrder::kStart).start().job(), job);
}

TEST_F(MachineTest, Restart_NodesDoNotComeBack_JobFailsWithTheReason) {
  const std::string job = RunFour();
  h_.Restart();
  h_.Advance(absl::Seconds(61));
  EXPECT_EQ(h_.State(job), JOB_STATE_FAILED);
  EXPECT_THAT(h_.Shown(job).reason(), HasSubstr("did not come back within 1m"));
}

TEST_F(MachineTest, Restart_FormingJob_GoesBackToTheQueue) {
  const std::string job = *h_.Submit(MachineHarness::Spec(2));
  h_.Restart();
  EXPECT_EQ(h_.State(job), JOB_STATE_QUEUED);
  NodeHello hello = h_.Hello("a", 2);
  hello.add_jobs()->set_job(job);
  hello.mutable_jobs(0)->set_generation(1);
  a_ = h_.Join(hello);
  EXPECT_EQ(h_.Count(a_, NodeOrder::kStop), 1);
  EXPECT_EQ(h_.State(job), JOB_STATE_QUEUED) << "the node still holds the old attempt";
  h_.Cleared(a_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_FORMING);
  EXPECT_EQ(h_.Generation(job), 2u);
}

TEST_F(MachineTest, Restart_NodeBackWithAFinishedJob_SlotsAreFreedWhenItHasClearedIt) {
  const std::string job = RunFour();
  h_.Advance(absl::Seconds(6), {a_});
  h_.Cleared(a_, job);
  ASSERT_EQ(h_.State(job), JOB_STATE_FAILED);
  h_.Restart();
  NodeHello hello = h_.Hello("b", 2);
  hello.add_jobs()->set_job(job);
  hello.mutable_jobs(0)->set_generation(1);
  *hello.mutable_jobs(0)->add_ranks() = h_.Update(job, 2, 102);
  b_ = h_.Join(hello);
  EXPECT_EQ(h_.Used("b"), 1);
  h_.Cleared(b_, job);
  EXPECT_EQ(h_.Used("b"), 0);
}

TEST_F(MachineTest, Restart_QueuedAndFinishedJobs_AreKept) {
  const std::string done = *h_.Submit(MachineHarness::Spec(9));
  ASSERT_TRUE(h_.Cancel(done).ok());
  const std::string queued = *h_.Submit(MachineHarness::Spec(9));
  h_.Restart();
  EXPECT_EQ(h_.State(done), JOB_STATE_CANCELLED);
  EXPECT_EQ(h_.State(queued), JOB_STATE_QUEUED);
  EXPECT_EQ(*h_.Submit(MachineHarness::Spec(9)), "j-3");
  EXPECT_EQ(h_.machine->ListJobs(false).size(), 2u);
  EXPECT_EQ(h_.machine->ListJobs(true).size(), 3u);
}

}  // namespace
}  // namespace ringd::scheduler
