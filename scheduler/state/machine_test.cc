#include "scheduler/state/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/state/machine_fixture.h"

namespace ringd::scheduler {
namespace {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.
using testing::HasSubstr;

TEST_F(MachineTest, Join_Node_IsWelcomedWithTheTerm) {
  const NodeWelcome welcome = h_.Last(a_, NodeOrder::kWelcome).welcome();
  EXPECT_EQ(welcome.term(), h_.term);
  EXPECT_EQ(welcome.heartbeat_interval().seconds(), 1);
  EXPECT_EQ(welcome.node_timeout().seconds(), 5);
}

TEST_F(MachineTest, Submit_FitsNow_FormsThenRunsThenSucceeds) {
  const std::string job = *h_.Submit(MachineHarness::Spec(4));
  EXPECT_EQ(job, "j-1");
  EXPECT_EQ(h_.State(job), JOB_STATE_FORMING);
  EXPECT_EQ(h_.Shown(job).reason(), "forming: waiting for nodes a, b");
  const Prepare prepare = h_.Last(b_, NodeOrder::kPrepare).prepare();
  EXPECT_EQ(prepare.node_index(), 1);
  EXPECT_EQ(prepare.nodes(1).first_rank(), 2);
  EXPECT_EQ(prepare.key().size(), 32u);
  EXPECT_EQ(prepare.uid(), 1000u);
  EXPECT_EQ(prepare.spec().environment().at("SECRET"), "s3cret");

  h_.Prepared(a_, job);
  EXPECT_EQ(h_.Shown(job).reason(), "forming: waiting for node b");
  EXPECT_EQ(h_.Count(a_, NodeOrder::kStart), 0);
  h_.Prepared(b_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  EXPECT_EQ(h_.Count(a_, NodeOrder::kStart), 1);
  EXPECT_EQ(h_.Shown(job).reason(), "starting: 0 of 4 ranks");

  for (int rank = 0; rank < 4; ++rank) h_.Started(rank < 2 ? a_ : b_, job, rank);
  EXPECT_EQ(h_.Shown(job).reason(), "");
  for (int rank = 0; rank < 4; ++rank) h_.Report(rank < 2 ? a_ : b_, h_.Exit(job, rank, 0));
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  h_.Cleared(a_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  h_.Cleared(b_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(h_.Shown(job).exit_code(), 0);
  EXPECT_EQ(h_.Shown(job).reason(), "all 4 ranks exited with code 0");
  EXPECT_EQ(h_.Last(a_, NodeOrder::kForget).forget().job(), job);
  EXPECT_EQ(h_.Used("a") + h_.Used("b"), 0);
  EXPECT_EQ(h_.specs.at(job).environment_size(), 0) << "secrets outlive the job";
}

TEST_F(MachineTest, Submit_WithoutQueueAndRoom_IsRefusedWithTheReason) {
  const auto refused = h_.Submit(MachineHarness::Spec(5, /*queue=*/false));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("needs 5 slots, cluster has 4"));
  EXPECT_TRUE(h_.records.empty());
  EXPECT_EQ(*h_.Submit(MachineHarness::Spec(1)), "j-1");
}

TEST_F(MachineTest, Submit_WithQueueAndTooLarge_WaitsUntilANodeJoins) {
  const std::string job = *h_.Submit(MachineHarness::Spec(5));
  EXPECT_EQ(h_.Shown(job).reason(), "queued: needs 5 slots, cluster has 4");
  h_.Join("c", 1);
  EXPECT_EQ(h_.State(job), JOB_STATE_FORMING);
}

TEST_F(MachineTest, Submit_UnknownNode_IsRefusedByName) {
  JobSpec spec = MachineHarness::Spec(1);
  spec.add_hosts()->set_node("zz");
  spec.mutable_hosts(0)->set_slots(1);
  const auto refused = h_.Submit(spec);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("unknown node zz"));
}

TEST_F(MachineTest, Submit_RepeatedRequest_AnswersWithTheSameJob) {
  const std::string job = *h_.Submit(MachineHarness::Spec(1), 1000, "r1");
  EXPECT_EQ(*h_.Submit(MachineHarness::Spec(1), 1000, "r1"), job);
  EXPECT_NE(*h_.Submit(MachineHarness::Spec(1), 1001, "r1"), job) << "another user's request";
  h_.Restart();
  EXPECT_EQ(*h_.Submit(MachineHarness::Spec(1), 1000, "r1"), job);
}

TEST_F(MachineTest, Queue_JobEnds_NextOneStarts) {
  const std::string first = RunFour();
  const std::string second = *h_.Submit(MachineHarness::Spec(2));
  EXPECT_EQ(h_.Shown(second).reason(), "queued: needs 2 slots, 0 of 4 are free");
  for (int rank = 0; rank < 4; ++rank) h_.Report(rank < 2 ? a_ : b_, h_.Exit(first, rank, 0));
  EXPECT_EQ(h_.State(second), JOB_STATE_QUEUED);
  h_.Cleared(a_, first);
  EXPECT_EQ(h_.State(second), JOB_STATE_FORMING);
}

TEST_F(MachineTest, RankFails_Running_StopsAllAndNamesTheFirst) {
  const std::string job = RunFour();
  RankUpdate update = h_.Exit(job, 1, 3, 0, 1000);
  update.set_stderr_tail("Traceback\nValueError: x\n\n");
  h_.Report(a_, update);
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  const Stop stop = h_.Last(b_, NodeOrder::kStop).stop();
  EXPECT_EQ(stop.cause().rank(), 1);
  EXPECT_EQ(stop.cause().node(), "a");
  EXPECT_EQ(stop.notice().seconds(), 2);
  EXPECT_EQ(stop.grace().seconds(), 30);
  h_.Report(a_, h_.Exit(job, 0, 1, 0, 1100, /*followed=*/true));
  h_.Report(b_, h_.Exit(job, 2, 0, 15, 1200, true));
  h_.Report(b_, h_.Exit(job, 3, 0));
  ClearBoth(job);
  const Job& shown = h_.Shown(job);
  EXPECT_EQ(shown.state(), JOB_STATE_FAILED);
  EXPECT_EQ(shown.exit_code(), 3);
  EXPECT_EQ(shown.reason(), "rank 1 (node a) exited with code 3: ValueError: x");
  EXPECT_EQ(shown.first_failure().stderr_tail(), "Traceback\nValueError: x\n\n");
  EXPECT_EQ(shown.rank(0).state(), "followed");
  EXPECT_EQ(shown.rank(1).state(), "failed");
  EXPECT_EQ(shown.rank(2).state(), "followed");
  EXPECT_EQ(shown.rank(3).state(), "exited");
  EXPECT_FALSE(shown.refused());
}

TEST_F(MachineTest, RankFails_BySignal_ExitCodeIs128AndSignal) {
  const std::string job = RunFour();
  h_.Report(b_, h_.Exit(job, 2, 0, 9));
  ClearBoth(job);
  EXPECT_EQ(h_.Shown(job).exit_code(), 137);
  EXPECT_EQ(h_.Shown(job).reason(), "rank 2 (node b) was killed by SIGKILL");
}

TEST_F(MachineTest, RankFails_EarlierOneReportedLater_WinsByTime) {
  const std::string job = RunFour();
  h_.Report(a_, h_.Exit(job, 0, 1, 0, 2000));
  h_.Report(b_, h_.Exit(job, 3, 7, 0, 1000));
  EXPECT_EQ(h_.Shown(job).first_failure().rank(), 3);
  EXPECT_EQ(h_.Shown(job).exit_code(), 7);
  EXPECT_EQ(h_.Shown(job).rank(0).state(), "followed");
  EXPECT_EQ(h_.Shown(job).rank(3).state(), "failed");
  h_.Report(b_, h_.Exit(job, 2, 9, 0, 1500));
  ClearBoth(job);
  EXPECT_EQ(h_.Shown(job).exit_code(), 7);
}

TEST_F(MachineTest, RankFails_FollowerReportedFirst_CauseIsWaitedFor) {
  const std::string job = RunFour();
  h_.Report(a_, h_.Exit(job, 0, 1, 0, 2000, /*followed=*/true));
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  h_.Advance(absl::Milliseconds(500), {a_, b_});
  h_.Report(b_, h_.Exit(job, 2, 0, 9, 2500));  // A clock ahead of the other's doesn't matter.
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  EXPECT_EQ(h_.Shown(job).first_failure().rank(), 2);
  EXPECT_EQ(h_.Shown(job).exit_code(), 137);
  EXPECT_EQ(h_.Shown(job).rank(0).state(), "followed");
}

TEST_F(MachineTest, RankFails_OnlyFollowersReport_FirstOfThemIsTheCause) {
  const std::string job = RunFour();
  h_.Report(a_, h_.Exit(job, 0, 5, 0, 2000, /*followed=*/true));
  h_.Advance(absl::Seconds(2), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  EXPECT_EQ(h_.Shown(job).exit_code(), 5);
}

TEST_F(MachineTest, RankReports_Repeated_CountOnce) {
  const std::string job = RunFour();
  for (int i = 0; i < 3; ++i) {
    h_.Started(a_, job, 0);
    h_.Report(a_, h_.Exit(job, 0, 0));
  }
  h_.Report(a_, h_.Exit(job, 0, 3));  // Known to have ended well.
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  EXPECT_EQ(h_.Shown(job).rank(0).exit_code(), 0);
}

TEST_F(MachineTest, RankReports_ForeignRankOrGeneration_AreIgnored) {
  const std::string job = RunFour();
  h_.Report(b_, h_.Exit(job, 0, 1));  // Rank 0 is on a.
  RankUpdate old = h_.Exit(job, 0, 1);
  old.set_generation(99);
  h_.Report(a_, old);
  RankUpdate none = h_.Exit(job, 0, 1);
  none.set_rank(4);
  h_.Report(a_, none);
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
}

TEST_F(MachineTest, Cancel_Queued_EndsAtOnce) {
  const std::string job = *h_.Submit(MachineHarness::Spec(9));
  EXPECT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(h_.State(job), JOB_STATE_CANCELLED);
  EXPECT_EQ(h_.Shown(job).exit_code(), 143);
  EXPECT_EQ(h_.Shown(job).reason(), "cancelled by user1000");
  EXPECT_TRUE(h_.Cancel(job).ok()) << "again";
}

TEST_F(MachineTest, Cancel_Forming_StopsAndEndsWhenCleared) {
  const std::string job = *h_.Submit(MachineHarness::Spec(4));
  h_.Prepared(a_, job);
  EXPECT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  h_.Prepared(b_, job);  // Crossed our Stop.
  EXPECT_EQ(h_.Count(a_, NodeOrder::kStart), 0);
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_CANCELLED);
}

TEST_F(MachineTest, Cancel_Running_RanksAreRemovedNotFailed) {
  JobSpec spec = MachineHarness::Spec(4);
  spec.mutable_grace()->set_seconds(7);
  const std::string job = RunFour(spec);
  EXPECT_TRUE(h_.Cancel(job).ok());
  const Stop stop = h_.Last(a_, NodeOrder::kStop).stop();
  EXPECT_FALSE(stop.has_cause());
  EXPECT_EQ(stop.notice().seconds(), 0);
  EXPECT_EQ(stop.grace().seconds(), 7);
  EXPECT_THAT(h_.Shown(job).reason(), HasSubstr("waiting for nodes a, b"));
  for (int rank = 0; rank < 4; ++rank) h_.Report(rank < 2 ? a_ : b_, h_.Exit(job, rank, 0, 15));
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_CANCELLED);
  EXPECT_EQ(h_.Shown(job).exit_code(), 143);
  EXPECT_EQ(h_.Shown(job).rank(0).state(), "removed");
  EXPECT_FALSE(h_.Shown(job).has_first_failure());
}

TEST_F(MachineTest, CancelAndSignal_OfOthersJobs_AreDenied) {
  const std::string job = RunFour();
  EXPECT_EQ(h_.Cancel(job, 1001).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(h_.Signal(job, 10, 1001).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(h_.Hold(job, 1001).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(h_.Cancel("j-99").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(h_.Signal(job, 10, 0).ok());
  EXPECT_EQ(h_.Last(b_, NodeOrder::kSignal).signal().signal(), 10);
  EXPECT_EQ(h_.Signal(job, 99).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MachineTest, Resolve_Name_MeansTheOneActiveJob) {
  JobSpec spec = MachineHarness::Spec(1);
  spec.set_name("resnet");
  const std::string first = *h_.Submit(spec);
  EXPECT_EQ(*h_.machine->Resolve("resnet"), first);
  h_.Submit(spec).IgnoreError();
  EXPECT_EQ(h_.machine->Resolve("resnet").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(h_.machine->Resolve("j-9").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MachineTest, Deadline_Passed_FailsWith124) {
  JobSpec spec = MachineHarness::Spec(4);
  spec.mutable_deadline()->set_seconds(10);
  const std::string job = RunFour(spec);
  h_.Advance(absl::Seconds(9), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  h_.Advance(absl::Seconds(2), {a_, b_});
  for (int rank = 0; rank < 4; ++rank) h_.Report(rank < 2 ? a_ : b_, h_.Exit(job, rank, 0, 15));
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_FAILED);
  EXPECT_EQ(h_.Shown(job).exit_code(), 124);
  EXPECT_EQ(h_.Shown(job).reason(), "its deadline of 10s has passed");
}

TEST_F(MachineTest, Stall_IsShown_ByTheNodeThatMissesARank_UntilItIsOver) {
  const std::string job = RunFour(MachineHarness::Spec(4));
  h_.Stalled(a_, job, "waits for node b", 10, /*names_rank=*/false);
  EXPECT_EQ(h_.Shown(job).reason(), "stalled: waits for node b");
  h_.Stalled(b_, job, "rank 3 has not called", 10, /*names_rank=*/true);
  EXPECT_EQ(h_.Shown(job).stall(), "rank 3 has not called");
  EXPECT_EQ(h_.Shown(job).reason(), "stalled: rank 3 has not called");
  h_.Stalled(b_, job, "", 0, false);
  h_.Stalled(a_, job, "", 0, false);
  EXPECT_EQ(h_.Shown(job).stall(), "");
  EXPECT_EQ(h_.Shown(job).reason(), "");
  h_.Advance(absl::Hours(1), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
}

TEST_F(MachineTest, StallTimeout_CountsFromTheFirstNodesStall_WhateverOthersReportLater) {
  JobSpec spec = MachineHarness::Spec(4);
  spec.mutable_stall_timeout()->set_seconds(60);
  const std::string job = RunFour(spec);
  h_.Stalled(a_, job, "waits for node b", 10, /*names_rank=*/false);
  h_.Advance(absl::Seconds(40), {a_, b_});
  h_.Stalled(b_, job, "rank 3 has not called", 10, /*names_rank=*/true);
  h_.Advance(absl::Seconds(9), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  h_.Advance(absl::Seconds(2), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
}

TEST_F(MachineTest, Stall_OfANodeWhoseStreamBroke_IsNotShownUntilItTellsItAgain) {
  const std::string job = RunFour(MachineHarness::Spec(4));
  h_.Stalled(b_, job, "rank 3 has not called", 10, /*names_rank=*/true);
  h_.Apply(NodeDisconnectedEvent{b_});
  EXPECT_EQ(h_.Shown(job).stall(), "");
}

TEST_F(MachineTest, StallTimeout_Passed_FailsWith124_AndSaysForWhom) {
  JobSpec spec = MachineHarness::Spec(4);
  spec.mutable_stall_timeout()->set_seconds(20);
  const std::string job = RunFour(spec);
  h_.Stalled(b_, job, "rank 3 has not called", 10, /*names_rank=*/true);
  h_.Advance(absl::Seconds(9), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  h_.Stalled(b_, job, "", 0, false);
  h_.Advance(absl::Seconds(9), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  h_.Stalled(b_, job, "rank 2 has not called", 10, /*names_rank=*/true);
  h_.Advance(absl::Seconds(11), {a_, b_});
  for (int rank = 0; rank < 4; ++rank) h_.Report(rank < 2 ? a_ : b_, h_.Exit(job, rank, 0, 15));
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_FAILED);
  EXPECT_EQ(h_.Shown(job).exit_code(), 124);
  EXPECT_EQ(h_.Shown(job).reason(),
            "it has stalled for its --stall-timeout of 20s: rank 2 has not called");
  EXPECT_EQ(h_.Shown(job).stall(), "");
}

TEST_F(MachineTest, Prepare_BadInput_RefusesTheJob) {
  const std::string job = *h_.Submit(MachineHarness::Spec(4));
  h_.Prepared(a_, job);
  h_.Prepared(b_, job, false, "node b: no such program: pyhton", /*bad_input=*/true);
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_FAILED);
  EXPECT_TRUE(h_.Shown(job).refused());
  EXPECT_EQ(h_.Shown(job).exit_code(), 2);
  EXPECT_EQ(h_.Shown(job).reason(), "node b: no such program: pyhton");
}

TEST_F(MachineTest, Prepare_Fails_FormsAgainUnderANewGeneration) {
  const std::string job = *h_.Submit(MachineHarness::Spec(4));
  h_.Prepared(a_, job, false, "node a: can't reach b:7472");
  EXPECT_EQ(h_.Count(b_, NodeOrder::kStop), 1);
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_QUEUED);
  h_.Cleared(a_, job);  // The answer to our Stop: an old one.
  h_.Advance(absl::Seconds(2), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_FORMING);
  EXPECT_EQ(h_.Generation(job), 2u);
  h_.Prepared(a_, job);
  h_.Prepared(b_, job);
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
}

TEST_F(MachineTest, Prepare_FailsAlways_GivesUp) {
  const std::string job = *h_.Submit(MachineHarness::Spec(4));
  for (int attempt = 0; attempt < kMaxFormAttempts; ++attempt) {
    h_.Advance(absl::Seconds(6), {a_, b_});
    ASSERT_EQ(h_.State(job), JOB_STATE_FORMING) << attempt;
    h_.Prepared(a_, job, false, "node a: can't reach b:7472");
    ClearBoth(job);
  }
  EXPECT_EQ(h_.State(job), JOB_STATE_FAILED);
  EXPECT_EQ(h_.Shown(job).reason(),
            "its ring could not be formed in 5 attempts: node a: can't reach b:7472");
}

TEST_F(MachineTest, Prepare_NoAnswer_FormsAgain) {
  const std::string job = *h_.Submit(MachineHarness::Spec(4));
  h_.Prepared(a_, job);
  h_.Advance(absl::Seconds(31), {a_, b_});
  EXPECT_THAT(h_.Shown(job).reason(), HasSubstr("node b did not prepare the ring within 30s"));
  EXPECT_EQ(h_.Count(b_, NodeOrder::kStop), 1);
}

TEST_F(MachineTest, Hold_Lost_CancelsAfterItsLease) {
  JobSpec spec = MachineHarness::Spec(4);
  spec.set_foreground(true);
  const std::string job = RunFour(spec);
  ASSERT_TRUE(h_.Hold(job).ok());
  h_.Advance(absl::Seconds(20), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  h_.Apply(HoldLostEvent{job});
  h_.Advance(absl::Seconds(9), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_RUNNING);
  h_.Advance(absl::Seconds(2), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_FINISHING);
  ClearBoth(job);
  EXPECT_EQ(h_.State(job), JOB_STATE_CANCELLED);
}

TEST_F(MachineTest, Hold_NeverTaken_CancelsAForegroundJob) {
  JobSpec spec = MachineHarness::Spec(9);
  spec.set_foreground(true);
  const std::string job = *h_.Submit(spec);
  h_.Advance(absl::Seconds(11), {a_, b_});
  EXPECT_EQ(h_.State(job), JOB_STATE_CANCELLED);
}

TEST(EmbeddedMachineTest, Submit_BeforeTheDaemonHasJoined_WaitsForIt) {
  Machine::Options options;
  options.embedded = true;
  MachineHarness h(options);
  const std::string fits = *h.Submit(MachineHarness::Spec(2, /*queue=*/false));
  const std::string large = *h.Submit(MachineHarness::Spec(5, /*queue=*/false));
  const ConnectionId a = h.Join("a", 2);
  EXPECT_EQ(h.State(fits), JOB_STATE_FORMING);
  EXPECT_EQ(h.State(large), JOB_STATE_FAILED);
  EXPECT_TRUE(h.Shown(large).refused());
  EXPECT_EQ(h.Shown(large).reason(), "needs 5 slots, cluster has 2");
  EXPECT_TRUE(h.Last(a, NodeOrder::kPrepare).prepare().embedded());
}

TEST(EmbeddedMachineTest, HoldLost_CancelsAtOnceAndDaemonsEndIsTheJobsEnd) {
  Machine::Options options;
  options.embedded = true;
  MachineHarness h(options);
  const ConnectionId a = h.Join("a", 2);
  JobSpec spec = MachineHarness::Spec(1);
  spec.set_foreground(true);
  const std::string held = *h.Submit(spec);
  const std::string other = *h.Submit(MachineHarness::Spec(1));
  h.Prepared(a, held);
  h.Prepared(a, other);
  ASSERT_TRUE(h.Hold(held).ok());
  h.Apply(HoldLostEvent{held});
  EXPECT_EQ(h.State(held), JOB_STATE_FINISHING);
  h.Disconnect(a);
  EXPECT_EQ(h.State(held), JOB_STATE_CANCELLED);
  EXPECT_EQ(h.State(other), JOB_STATE_FAILED);
  EXPECT_THAT(h.Shown(other).reason(), HasSubstr("its daemon is gone"));
}

}  // namespace
}  // namespace ringd::scheduler
