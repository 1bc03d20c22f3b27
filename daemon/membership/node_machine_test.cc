#include "daemon/membership/node_machine.h"

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/membership/node_machine_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using cluster::v1::NodeOrder;
using cluster::v1::NodeReport;
using cluster::v1::Prepare;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(NodeMachineTest, Hello_IsTheFirstReportAndWelcomePersistsTheTerm) {
  Do(event::SchedulerUp{});
  ASSERT_EQ(Reports(NodeReport::kHello).size(), 1u);
  EXPECT_EQ(Reports(NodeReport::kHello)[0].hello().name(), "a");
  EXPECT_FALSE(machine_->connected());
  Welcome(4);
  ASSERT_EQ(Only<action::PersistTerm>().size(), 1u);
  EXPECT_EQ(Only<action::PersistTerm>()[0].term, 4u);
  EXPECT_TRUE(machine_->connected());
}

TEST_F(NodeMachineTest, Welcome_OfALowerTerm_IsRefused) {
  Do(event::SchedulerUp{});
  Welcome(4);
  Do(event::SchedulerDown{});
  Do(event::SchedulerUp{});
  EXPECT_EQ(Reports(NodeReport::kHello)[0].hello().term(), 4u);
  Welcome(3);
  EXPECT_EQ(Only<action::Disconnect>().size(), 1u);
  EXPECT_FALSE(machine_->connected());
  Order(PrepareOrder(1));  // What such a scheduler orders is not done.
  EXPECT_TRUE(actions_.empty());
}

TEST_F(NodeMachineTest, Heartbeat_IsSentEachIntervalWhileConnected) {
  Connect();
  Advance(absl::ZeroDuration());
  EXPECT_EQ(Reports(NodeReport::kHeartbeat).size(), 1u);
  EXPECT_EQ(machine_->NextDeadline(), now_.monotonic + absl::Seconds(1));
  Advance(absl::Milliseconds(500));
  EXPECT_TRUE(Reports(NodeReport::kHeartbeat).empty());
  Advance(absl::Milliseconds(500));
  EXPECT_EQ(Reports(NodeReport::kHeartbeat).size(), 1u);
  Do(event::SchedulerDown{});
  EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
}

TEST_F(NodeMachineTest, Prepare_ChecksThenConnectsThenReports) {
  Connect();
  Order(PrepareOrder(2));
  EXPECT_EQ(Only<action::CheckCommand>().size(), 1u);
  EXPECT_TRUE(Only<action::PrepareRing>().empty());
  Do(event::CommandChecked{"j-1", 1, absl::OkStatus()});
  EXPECT_EQ(Only<action::PrepareRing>().size(), 1u);
  Do(event::RingPrepared{"j-1", 1, absl::OkStatus()});
  ASSERT_EQ(Reports(NodeReport::kPrepared).size(), 1u);
  EXPECT_TRUE(Reports(NodeReport::kPrepared)[0].prepared().ok());
  Start();
  EXPECT_EQ(Only<action::SpawnWorker>().size(), 2u);
  EXPECT_EQ(Only<action::OpenJob>().size(), 1u);
  EXPECT_EQ(Only<action::WriteRecord>().size(), 1u);
}

TEST_F(NodeMachineTest, Prepare_CommandIsMissing_IsBadInputThatNamesTheNodeAndJobIsCleared) {
  Connect();
  Order(PrepareOrder(2));
  Do(event::CommandChecked{"j-1", 1,
                           absl::InvalidArgumentError("no such program: pyhton (PATH=/bin)")});
  ASSERT_EQ(Reports(NodeReport::kPrepared).size(), 1u);
  const cluster::v1::Prepared prepared = Reports(NodeReport::kPrepared)[0].prepared();
  EXPECT_FALSE(prepared.ok());
  EXPECT_TRUE(prepared.bad_input());
  EXPECT_EQ(prepared.reason(), "node a: no such program: pyhton (PATH=/bin)");
  EXPECT_EQ(Reports(NodeReport::kCleared).size(), 1u);
  EXPECT_TRUE(Only<action::RemoveJob>().empty());  // The engine never heard of it.
  EXPECT_TRUE(machine_->Jobs().empty());
}

TEST_F(NodeMachineTest, Prepare_RingFails_IsNotTheUsersMistakeAndEngineForgetsTheJob) {
  Connect();
  Order(PrepareOrder(1, 2));
  Do(event::CommandChecked{"j-1", 1, absl::OkStatus()});
  Do(event::RingPrepared{"j-1", 1, absl::InvalidArgumentError("node b does not answer")});
  EXPECT_FALSE(Reports(NodeReport::kPrepared)[0].prepared().bad_input());
  EXPECT_EQ(Only<action::RemoveJob>().size(), 1u);
  Do(event::JobRemoved{"j-1"});
  EXPECT_EQ(Reports(NodeReport::kCleared).size(), 1u);
}

TEST_F(NodeMachineTest, Prepare_OfAnotherUserOnAPrivateDaemon_IsRefused) {
  Connect();
  NodeOrder order = PrepareOrder(1);
  order.mutable_prepare()->set_uid(kTestUid + 1);
  Order(order);
  ASSERT_EQ(Reports(NodeReport::kPrepared).size(), 1u);
  EXPECT_TRUE(Reports(NodeReport::kPrepared)[0].prepared().bad_input());
}

TEST_F(NodeMachineTest, Prepare_OfMoreRanksThanANodeTakes_IsBadInput) {
  Connect();
  Order(PrepareOrder(65));
  ASSERT_EQ(Reports(NodeReport::kPrepared).size(), 1u);
  const cluster::v1::Prepared prepared = Reports(NodeReport::kPrepared)[0].prepared();
  EXPECT_TRUE(prepared.bad_input());
  EXPECT_EQ(prepared.reason(),
            "node a: job j-1 wants 65 ranks here and a node takes at most 64 of a job: "
            "use more nodes");
}

TEST_F(NodeMachineTest, Prepare_WithRubbish_IsRefused) {
  Connect();
  for (int kind = 0; kind < 6; ++kind) {
    NodeOrder order = PrepareOrder(2, 2);
    Prepare& prepare = *order.mutable_prepare();
    if (kind == 0) prepare.set_job("../etc");
    if (kind == 1) prepare.set_node_index(2);
    if (kind == 2) prepare.mutable_nodes(1)->set_first_rank(3);
    if (kind == 3) prepare.mutable_nodes(1)->set_rank_count(0);
    if (kind == 4) prepare.set_key("short");
    if (kind == 5) prepare.set_token("");
    Order(order);
    ASSERT_EQ(Reports(NodeReport::kPrepared).size(), 1u) << kind;
    EXPECT_FALSE(Reports(NodeReport::kPrepared)[0].prepared().ok()) << kind;
    EXPECT_TRUE(Only<action::CheckCommand>().empty()) << kind;
  }
}

TEST_F(NodeMachineTest, Run_AllRanksEnd_JobIsRemovedAndClearedOnlyWhenNoProcessIsLeft) {
  RunJob(2);
  Exit(0, 0);
  EXPECT_EQ(Only<action::EndRank>().size(), 1u);
  ASSERT_EQ(Only<action::OrderWorker>().size(), 1u);
  EXPECT_TRUE(Only<action::OrderWorker>()[0].order.has_acknowledge());
  ASSERT_EQ(Reports(NodeReport::kRank).size(), 1u);
  EXPECT_TRUE(Reports(NodeReport::kRank)[0].rank().exited());
  EndWorker(0);
  Exit(1, 0);
  EXPECT_TRUE(Only<action::RemoveJob>().empty());
  Do(event::WorkerEnded{"j-1", 1, WorkerPid(1), ""});
  EXPECT_EQ(Only<action::SweepRank>().size(), 1u);
  EXPECT_TRUE(Only<action::RemoveJob>().empty());
  Do(event::RankSwept{"j-1", 1});
  EXPECT_EQ(Only<action::RemoveJob>().size(), 1u);
  EXPECT_TRUE(Reports(NodeReport::kCleared).empty());
  Do(event::JobRemoved{"j-1"});
  EXPECT_EQ(Only<action::RemoveRecord>().size(), 1u);
  EXPECT_EQ(Reports(NodeReport::kCleared).size(), 1u);
  EXPECT_EQ(Reports(NodeReport::kCleared)[0].cleared().generation(), 1u);
}

TEST_F(NodeMachineTest, Run_OnTwoNodes_RingStandsUntilStop) {
  RunJob(1, 2);
  Exit(0, 0);
  EndWorker(0);
  EXPECT_TRUE(Only<action::RemoveJob>().empty());
  Stop(0, 30, /*with_cause=*/false);
  EXPECT_EQ(Only<action::RemoveJob>().size(), 1u);
}

TEST_F(NodeMachineTest, Exit_OfAFailedRank_CarriesCauseToTheEngineAndLaterOnesFollowed) {
  RunJob(2);
  Exit(0, 3, 0, "Traceback\nValueError: x\n");
  ASSERT_EQ(Only<action::EndRank>().size(), 1u);
  EXPECT_EQ(Only<action::EndRank>()[0].cause.message,
            "rank 0 (node a) exited with code 3: ValueError: x");
  EXPECT_FALSE(Reports(NodeReport::kRank)[0].rank().followed());
  Exit(1, 1);
  EXPECT_TRUE(Reports(NodeReport::kRank)[0].rank().followed());
  EXPECT_GT(Reports(NodeReport::kRank)[0].rank().exited_us(), 0);
}

TEST_F(NodeMachineTest, Exit_BySignal_IsNamed) {
  RunJob(1);
  Exit(0, 0, SIGSEGV);
  EXPECT_EQ(Only<action::EndRank>()[0].cause.message, "rank 0 (node a) was killed by SIGSEGV");
}

TEST_F(NodeMachineTest, Exit_RepeatedAfterReconnect_IsAcknowledgedButReportedOnce) {
  RunJob(1);
  Exit(0, 3);
  Exit(0, 4);
  EXPECT_TRUE(Reports(NodeReport::kRank).empty());
  EXPECT_TRUE(Only<action::EndRank>().empty());
  ASSERT_EQ(Only<action::OrderWorker>().size(), 1u);
  EXPECT_TRUE(Only<action::OrderWorker>()[0].order.has_acknowledge());
}

TEST_F(NodeMachineTest, Stop_FailsOperationsAtOnceThenTerminatesThenKills) {
  RunJob(2);
  Exit(1, 0);
  EndWorker(1);
  Stop(/*notice_s=*/2, /*grace_s=*/10);
  ASSERT_EQ(Only<action::FailJob>().size(), 1u);
  EXPECT_EQ(Only<action::FailJob>()[0].cause.failure.rank(), 9);
  EXPECT_TRUE(Only<action::OrderWorker>().empty());
  Advance(absl::Seconds(2));
  ASSERT_EQ(Only<action::OrderWorker>().size(), 1u);  // Rank 1 has ended.
  EXPECT_EQ(Only<action::OrderWorker>()[0].rank, 0);
  EXPECT_EQ(Only<action::OrderWorker>()[0].order.terminate().grace().seconds(), 10);
  Advance(absl::Seconds(14));
  EXPECT_TRUE(Only<action::SweepRank>().empty());
  Advance(absl::Seconds(1));  // Grace and 5 s more: the worker has failed to do it.
  ASSERT_EQ(Only<action::SweepRank>().size(), 1u);
  EXPECT_EQ(Only<action::SweepRank>()[0].pid, 200);
  EXPECT_EQ(Only<action::SweepRank>()[0].worker_pid, 100);
  EXPECT_TRUE(Reports(NodeReport::kRank)[0].rank().followed());
}

TEST_F(NodeMachineTest, Stop_WithoutNotice_TerminatesAtOnce) {
  RunJob(1);
  Stop(0, 1, /*with_cause=*/false);
  EXPECT_EQ(Only<action::FailJob>()[0].cause.kind, Cause::Kind::kInterrupted);
  EXPECT_TRUE(Only<action::OrderWorker>()[0].order.has_terminate());
}

TEST_F(NodeMachineTest, Stop_SecondOneWithLessGrace_BringsTheEndNearer) {
  RunJob(1);
  Stop(0, 100);
  EXPECT_EQ(Only<action::OrderWorker>()[0].order.terminate().grace().seconds(), 100);
  Stop(0, 1);
  ASSERT_EQ(Only<action::OrderWorker>().size(), 1u);
  EXPECT_EQ(Only<action::OrderWorker>()[0].order.terminate().grace().seconds(), 1);
  Advance(absl::Seconds(6));
  EXPECT_EQ(Only<action::SweepRank>().size(), 1u);
}

TEST_F(NodeMachineTest, Stop_WhileWorkerIsAway_IsOrderedWhenItIsBack) {
  RunJob(1);
  Do(event::WorkerDetached{"j-1", 0, 1});
  Stop(0, 5);
  EXPECT_TRUE(Only<action::OrderWorker>().empty());
  Do(event::WorkerAttached{"j-1", 0, 2, WorkerPid(0), 77});
  ASSERT_EQ(Only<action::OrderWorker>().size(), 1u);
  EXPECT_TRUE(Only<action::OrderWorker>()[0].order.has_terminate());
}

TEST_F(NodeMachineTest, Stop_OfAPreparedOrUnknownJob_IsClearedWithoutAProcess) {
  PrepareJob(2);
  Stop(2, 10);
  EXPECT_EQ(Only<action::RemoveJob>().size(), 1u);
  Do(event::JobRemoved{"j-1"});
  EXPECT_EQ(Reports(NodeReport::kCleared).size(), 1u);
  Start();  // Too late.
  EXPECT_TRUE(actions_.empty());
  NodeOrder order;
  order.mutable_stop()->set_job("j-9");
  Order(order);
  ASSERT_EQ(Reports(NodeReport::kCleared).size(), 1u);
  EXPECT_EQ(Reports(NodeReport::kCleared)[0].cleared().job(), "j-9");
}

TEST_F(NodeMachineTest, Worker_Dies_ItsRankIsLostAndSwept) {
  RunJob(2);
  Do(event::WorkerEnded{"j-1", 0, WorkerPid(0), "was killed by signal 9"});
  ASSERT_EQ(Only<action::SweepRank>().size(), 1u);
  EXPECT_EQ(Only<action::SweepRank>()[0].pid, 200);
  EXPECT_EQ(Only<action::SweepRank>()[0].worker_pid, 0);
  const cluster::v1::RankUpdate update = Reports(NodeReport::kRank)[0].rank();
  EXPECT_EQ(update.signal(), SIGKILL);
  EXPECT_THAT(update.reason(), AllOf(HasSubstr("pid 100"), HasSubstr("was killed by signal 9")));
  EXPECT_EQ(Only<action::EndRank>().size(), 1u);
}

TEST_F(NodeMachineTest, Worker_DoesNotAttach_IsSweptInTheEnd) {
  PrepareJob(1);
  Start();
  Do(event::WorkerSpawned{"j-1", 0, WorkerPid(0), 77, "/log"});
  Advance(kAttachTimeout - absl::Milliseconds(1));
  EXPECT_TRUE(Only<action::SweepRank>().empty());
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(Only<action::SweepRank>().size(), 1u);
  EXPECT_THAT(Reports(NodeReport::kRank)[0].rank().reason(), HasSubstr("did not attach"));
}

TEST_F(NodeMachineTest, Worker_ComesBackInTime_GoesOn) {
  RunJob(1);
  Do(event::WorkerDetached{"j-1", 0, 1});
  Advance(absl::Seconds(59));
  Do(event::WorkerAttached{"j-1", 0, 2, WorkerPid(0), 77});
  Do(event::WorkerDetached{"j-1", 0, 1});  // The old stream's end comes late: it no longer counts.
  Advance(absl::Seconds(120));
  EXPECT_TRUE(Only<action::SweepRank>().empty());
}

TEST_F(NodeMachineTest, Spawn_Fails_RankIsReportedAsNotStarted) {
  PrepareJob(1);
  Start();
  Do(event::SpawnFailed{"j-1", 0, "no memory"});
  const cluster::v1::RankUpdate update = Reports(NodeReport::kRank)[0].rank();
  EXPECT_TRUE(update.start_failed());
  EXPECT_EQ(update.reason(), "no memory");
  EXPECT_EQ(Only<action::RemoveJob>().size(), 1u);
}

TEST_F(NodeMachineTest, Client_Failed_ItsRanksFailureSaysWhy) {
  RunJob(1);
  Do(event::ClientFailed{"j-1", 0, "descriptor 7 points outside the arena"});
  Exit(0, 1);
  EXPECT_THAT(Reports(NodeReport::kRank)[0].rank().reason(),
              HasSubstr("descriptor 7 points outside the arena"));
}

TEST_F(NodeMachineTest, Stall_IsPassedOn) {
  RunJob(1);
  Do(event::Stalled{"j-1", "rank 1 has not called", 10'000'000, true});
  const cluster::v1::Stalled stalled = Reports(NodeReport::kStalled)[0].stalled();
  EXPECT_EQ(stalled.report(), "rank 1 has not called");
  EXPECT_EQ(stalled.age_us(), 10'000'000);
  EXPECT_TRUE(stalled.names_rank());
}

TEST_F(NodeMachineTest, Stall_IsToldAgainAfterAReconnect_WithItsAgeOfThen_UntilItIsOver) {
  RunJob(1);
  Do(event::Stalled{"j-1", "rank 1 has not called", 10'000'000, true});
  Do(event::SchedulerDown{});
  Advance(absl::Seconds(5));
  Do(event::SchedulerUp{});
  Welcome();
  ASSERT_EQ(Reports(NodeReport::kStalled).size(), 1u);
  EXPECT_EQ(Reports(NodeReport::kStalled)[0].stalled().age_us(), 15'000'000);
  Do(event::SchedulerDown{});
  Do(event::Stalled{"j-1", "", 0, false});
  Do(event::SchedulerUp{});
  Welcome();
  EXPECT_TRUE(Reports(NodeReport::kStalled).empty());
}

TEST_F(NodeMachineTest, Ring_FailsWhileRunning_OperationsFailAndRanksSayWhy) {
  RunJob(1, 2);
  Do(event::RingFailed{"j-1", absl::UnavailableError("the link to node b broke")});
  ASSERT_EQ(Only<action::FailJob>().size(), 1u);
  EXPECT_EQ(Only<action::FailJob>()[0].cause.kind, Cause::Kind::kUnavailable);
  Exit(0, 1);
  EXPECT_THAT(Reports(NodeReport::kRank)[0].rank().reason(), HasSubstr("the link to node b broke"));
}

TEST_F(NodeMachineTest, Signal_ReachesRunningRanksOnly) {
  RunJob(3);
  Exit(1, 0);
  NodeOrder order;
  order.mutable_signal()->set_job("j-1");
  order.mutable_signal()->set_signal(SIGUSR1);
  Order(order);
  ASSERT_EQ(Only<action::OrderWorker>().size(), 2u);
  EXPECT_EQ(Only<action::OrderWorker>()[0].order.signal().signal(), SIGUSR1);
}

TEST_F(NodeMachineTest, Reconnect_TellsAllThatHappenedMeanwhile) {
  RunJob(2);
  Do(event::SchedulerDown{});
  Exit(0, 3);
  EXPECT_TRUE(Only<action::SendReport>().empty());
  Do(event::SchedulerUp{});
  const cluster::v1::NodeHello hello = Reports(NodeReport::kHello)[0].hello();
  ASSERT_EQ(hello.jobs_size(), 1);
  ASSERT_EQ(hello.jobs(0).ranks_size(), 2);
  EXPECT_EQ(hello.jobs(0).ranks(0).exit_code(), 3);
  EXPECT_EQ(hello.jobs(0).ranks(1).pid(), 201);
  Exit(1, 0);  // Between hello and welcome.
  Welcome();
  EXPECT_EQ(Reports(NodeReport::kRank).size(), 2u);
}

TEST_F(NodeMachineTest, Forget_DropsTheRecordOfAClearedJobOnly) {
  RunJob(1);
  NodeOrder forget;
  forget.mutable_forget()->set_job("j-1");
  Order(forget);
  Do(event::SchedulerUp{});
  EXPECT_EQ(Reports(NodeReport::kHello)[0].hello().jobs_size(), 1);
  Welcome();
  Exit(0, 0);
  EndWorker(0);
  Do(event::JobRemoved{"j-1"});
  Order(forget);
  Do(event::SchedulerUp{});
  EXPECT_EQ(Reports(NodeReport::kHello)[0].hello().jobs_size(), 0);
}

// The record that a machine has written last about a running job.
v1::JobRecord LastRecord(const Actions& actions) {
  v1::JobRecord record;
  for (const Action& action : actions) {
    if (const auto* write = std::get_if<action::WriteRecord>(&action); write != nullptr)
      record = write->record;
  }
  return record;
}

TEST_F(NodeMachineTest, Restored_OnOneNode_WorkersMayComeBackAndGoOn) {
  RunJob(2);
  Exit(0, 0);
  const v1::JobRecord record = LastRecord(actions_);
  Restart();
  Do(event::Restored{record});
  EXPECT_EQ(Only<action::OpenJob>().size(), 1u);
  EXPECT_EQ(Only<action::PrepareRing>().size(), 1u);
  ASSERT_EQ(Only<action::WatchWorker>().size(), 2u);
  EXPECT_EQ(Only<action::WatchWorker>()[1].pid, WorkerPid(1));
  EXPECT_EQ(Only<action::WatchWorker>()[1].start_time, 77u);
  EXPECT_EQ(Only<action::EndRank>().size(), 1u);  // The engine hears of rank 0 again.
  Do(event::RingPrepared{"j-1", 1, absl::OkStatus()});
  Do(event::WorkerAttached{"j-1", 1, 1, WorkerPid(1), 77});
  Advance(absl::Seconds(61));
  Connect();
  Exit(1, 6);
  EXPECT_EQ(Reports(NodeReport::kRank)[0].rank().exit_code(), 6);
}

TEST_F(NodeMachineTest, Restored_WorkerDoesNotComeBack_RankIsSwept) {
  RunJob(1);
  Exit(0, 0);
  v1::JobRecord record = LastRecord(actions_);
  record.mutable_ranks(0)->mutable_last()->set_exited(false);
  Restart();
  Do(event::Restored{record});
  Advance(absl::Seconds(60));
  EXPECT_EQ(Only<action::SweepRank>().size(), 1u);
}

TEST_F(NodeMachineTest, Restored_NoProcessIsLeft_JobIsRemoved) {
  RunJob(1);
  Exit(0, 0);
  v1::JobRecord record = LastRecord(actions_);
  record.mutable_ranks(0)->set_gone(true);
  Restart();
  Do(event::Restored{record});
  EXPECT_EQ(Only<action::RemoveJob>().size(), 1u);
}

TEST_F(NodeMachineTest, Restored_OnTwoNodes_RanksAreToldToEndWithTheReason) {
  RunJob(1, 2);
  Exit(0, 0);
  v1::JobRecord record = LastRecord(actions_);
  record.mutable_ranks(0)->mutable_last()->set_exited(false);
  Restart();
  Do(event::Restored{record});
  EXPECT_TRUE(Only<action::PrepareRing>().empty());
  Advance(absl::ZeroDuration());
  Do(event::WorkerAttached{"j-1", 0, 1, WorkerPid(0), 77});
  ASSERT_EQ(Only<action::OrderWorker>().size(), 1u);
  EXPECT_THAT(Only<action::OrderWorker>()[0].order.terminate().reason(), HasSubstr("restarted"));
  Connect();
  Exit(0, 0, SIGTERM);
  EXPECT_THAT(Reports(NodeReport::kRank)[0].rank().reason(), HasSubstr("restarted"));
}

TEST_F(NodeMachineTest, ShuttingDown_WithoutGrace_SweepsAllAndFinishes) {
  RunJob(2);
  Do(event::ShuttingDown{absl::ZeroDuration(), "ringctl is gone"});
  EXPECT_EQ(Only<action::SweepRank>().size(), 2u);
  EXPECT_TRUE(Only<action::Finished>().empty());
  Do(event::RankSwept{"j-1", 0});
  Do(event::RankSwept{"j-1", 1});
  Do(event::JobRemoved{"j-1"});
  EXPECT_EQ(Only<action::Finished>().size(), 1u);
}

TEST_F(NodeMachineTest, ShuttingDown_WithGrace_TerminatesThenKills) {
  RunJob(1);
  Do(event::ShuttingDown{absl::Seconds(2), "the daemon was told to end"});
  ASSERT_EQ(Only<action::OrderWorker>().size(), 1u);
  EXPECT_EQ(Only<action::OrderWorker>()[0].order.terminate().grace().seconds(), 2);
  Advance(absl::Seconds(2));
  EXPECT_EQ(Only<action::SweepRank>().size(), 1u);
}

class EmbeddedNodeMachineTest : public NodeMachineTest {
 protected:
  EmbeddedNodeMachineTest() : NodeMachineTest(Embedded()) {}
  static NodeMachineOptions Embedded() {
    NodeMachineOptions options = Options();
    options.embedded = true;
    return options;
  }
};

TEST_F(EmbeddedNodeMachineTest, SchedulerGone_DaemonExits) {
  Do(event::SchedulerDown{});  // Before the first welcome: it may still come up.
  EXPECT_TRUE(Only<action::Exit>().empty());
  Connect();
  Do(event::SchedulerDown{});
  EXPECT_EQ(Only<action::Exit>().size(), 1u);
}

class SharedNodeMachineTest : public NodeMachineTest {
 protected:
  SharedNodeMachineTest() : NodeMachineTest(Shared()) {}
  static NodeMachineOptions Shared() {
    NodeMachineOptions options = Options();
    options.hello.set_shared(true);
    options.hello.set_uid(0);
    return options;
  }
};

TEST_F(SharedNodeMachineTest, Prepare_OfRootOrASystemUser_IsRefused) {
  Connect();
  for (const uint32_t uid : {0u, 999u}) {
    NodeOrder order = PrepareOrder(1);
    order.mutable_prepare()->set_uid(uid);
    Order(order);
    ASSERT_EQ(Reports(NodeReport::kPrepared).size(), 1u);
    EXPECT_THAT(Reports(NodeReport::kPrepared)[0].prepared().reason(), HasSubstr("min_uid 1000"));
  }
  Order(PrepareOrder(1));
  EXPECT_EQ(Only<action::CheckCommand>().size(), 1u);
}

TEST(IsSafeNameTest, AcceptsPlainNamesOnly) {
  EXPECT_TRUE(IsSafeName("j-1"));
  EXPECT_TRUE(IsSafeName("node_a.example"));
  for (const char* name : {"", ".", "..", ".x", "a/b", "a b", "a\n", "\xc3\xa4"})
    EXPECT_FALSE(IsSafeName(name));
  EXPECT_FALSE(IsSafeName(std::string(65, 'a')));
}

}  // namespace
}  // namespace ringd::daemon
