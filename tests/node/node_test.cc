// A node's daemon with a real scheduler, real workers and shell scripts as ranks.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/node/test_cluster.h"

namespace ringd::tests {
namespace {

using cluster::v1::Job;
using cluster::v1::JobSpec;
using testing::AllOf;
using testing::HasSubstr;

TEST(NodeTest, Run_AllRanksExitZero_JobSucceedsAndLogsAreThere) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(
      cluster.Shell("echo rank $RINGD_RANK of $RINGD_SIZE on $RINGD_LOCAL_RANK; echo oops >&2", 3));
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_SUCCEEDED) << job.ShortDebugString();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(cluster.Logs(id, rank),
                AllOf(HasSubstr(absl::StrCat("rank ", rank, " of 3 on ", rank, "\n")),
                      HasSubstr("oops\n")));
  }
}

TEST(NodeTest, Run_RanksOnTwoNodes_JobSucceeds) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  cluster.StartDaemon("b");
  JobSpec spec = cluster.Shell("echo $RINGD_NODE_RANK/$RINGD_NODE_COUNT", 4);
  spec.set_nodes(2);
  spec.set_ranks_per_node(2);
  const std::string id = cluster.Submit(spec);
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_SUCCEEDED) << job.ShortDebugString();
  EXPECT_EQ(cluster.Logs(id, 3), "1/2\n");
}

TEST(NodeTest, Run_RankFails_JobFailsWithItsCodeAndOthersAreEnded) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(
      cluster.Shell("if [ $RINGD_RANK = 1 ]; then echo broken >&2; exit 3; fi; sleep 60", 3));
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_EQ(job.first_failure().rank(), 1);
  EXPECT_EQ(job.first_failure().node(), "a");
  EXPECT_THAT(job.first_failure().stderr_tail(), HasSubstr("broken"));
  EXPECT_EQ(job.rank(0).state(), "followed") << job.ShortDebugString();
}

TEST(NodeTest, Prepare_NoSuchProgram_IsRefusedWithinASecondByNodeAndName) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  JobSpec spec = cluster.Shell("", 1);
  spec.clear_command();
  spec.add_command("pyhton");
  const absl::Time begin = absl::Now();
  const Job job = cluster.Wait(cluster.Submit(spec));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_FAILED);
  EXPECT_TRUE(job.refused());
  EXPECT_THAT(job.reason(), AllOf(HasSubstr("node a: "), HasSubstr("pyhton")));
}

TEST(NodeTest, Worker_KilledByNine_ItsRankIsEndedAndTheJobFails) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell("sleep 61 & sleep 61", 2));
  const Job running = cluster.WaitForRunning(id);
  const pid_t pid = running.rank(1).pid();
  kill(running.rank(1).worker_pid(), SIGKILL);
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.first_failure().rank(), 1);
  EXPECT_THAT(job.rank(1).reason(), HasSubstr("ringd-worker"));
  EXPECT_FALSE(Lives(pid));
}

TEST(NodeTest, Cancel_RankIgnoresTerm_IsKilledAfterItsGrace) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id =
      cluster.Submit(cluster.Shell("trap '' TERM; while :; do sleep 0.1; done", 2));
  const Job running = cluster.WaitForRunning(id);
  grpc::ClientContext context;
  cluster::v1::CancelRequest request;
  request.set_job(id);
  cluster::v1::JobResponse response;
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(cluster.stub().Cancel(&context, request, &response).ok());
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_CANCELLED);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(900));  // Its grace is 1 s.
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_FALSE(Lives(running.rank(0).pid()));
}

TEST(NodeTest, Signal_ReachesTheRanksProcess) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(
      cluster.Shell("trap 'echo got it; exit 0' USR1; while :; do sleep 0.05; done", 2));
  cluster.WaitForRunning(id);
  absl::SleepFor(absl::Milliseconds(300));  // The shell has set its trap.
  grpc::ClientContext context;
  cluster::v1::SignalRequest request;
  request.set_job(id);
  request.set_signal(SIGUSR1);
  cluster::v1::JobResponse response;
  ASSERT_TRUE(cluster.stub().Signal(&context, request, &response).ok());
  EXPECT_EQ(cluster.Wait(id).state(), cluster::v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(cluster.Logs(id, 1), HasSubstr("got it"));
}

// A rank that goes on until the file `go` is there.
std::string UntilGo(const TestCluster& cluster) {
  return absl::StrCat("while [ ! -e ", cluster.directory(),
                      "/go ]; do sleep 0.05; done; echo done");
}

void Go(const TestCluster& cluster) {
  std::ofstream(absl::StrCat(cluster.directory(), "/go")) << "\n";
}

TEST(NodeTest, Daemon_KilledAndRestarted_JobGoesOn) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell(UntilGo(cluster), 2));
  const Job before = cluster.WaitForRunning(id);
  cluster.Kill(cluster.daemon("a"), SIGKILL);
  EXPECT_TRUE(Lives(before.rank(0).pid()));
  cluster.StartDaemon("a");
  Go(cluster);
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_SUCCEEDED) << job.ShortDebugString();
  EXPECT_EQ(job.rank(0).pid(), before.rank(0).pid());
  EXPECT_EQ(cluster.Logs(id, 0), "done\n");
}

TEST(NodeTest, Daemon_RankEndsWhileItIsAway_EndIsReportedAfterwards) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell(UntilGo(cluster) + "; exit 5", 1));
  const Job before = cluster.WaitForRunning(id);
  kill(cluster.daemon("a").pid, SIGTERM);
  EXPECT_EQ(cluster.WaitForDaemon("a").exit_code, 0);
  EXPECT_TRUE(Lives(before.rank(0).pid()));
  Go(cluster);
  EXPECT_TRUE(Eventually([&] { return !Lives(before.rank(0).pid()); }));
  cluster.StartDaemon("a");
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.exit_code(), 5) << job.ShortDebugString();
}

TEST(NodeTest, Scheduler_KilledAndRestarted_JobGoesOn) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell(UntilGo(cluster), 2));
  const Job before = cluster.WaitForRunning(id);
  cluster.Kill(cluster.scheduler(), SIGKILL);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_TRUE(Lives(before.rank(0).pid()));
  Go(cluster);
  cluster.StartScheduler();
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_SUCCEEDED) << job.ShortDebugString();
}

TEST(NodeTest, Embedded_LifelineCloses_AllEndAtOnce) {
  TestCluster cluster(/*embedded=*/true);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  cluster.StartDaemon("a", {"--lifeline-fd", absl::StrCat(ends[0])});
  close(ends[0]);
  const std::string id =
      cluster.Submit(cluster.Shell("trap '' TERM; sleep 62 & sleep 62; sleep 62", 2));
  const Job running = cluster.WaitForRunning(id);
  const absl::Time begin = absl::Now();
  close(ends[1]);
  EXPECT_EQ(cluster.WaitForDaemon("a").exit_code, 0);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
  for (const cluster::v1::Rank& rank : running.rank()) {
    EXPECT_FALSE(Lives(rank.pid()));
    EXPECT_FALSE(Lives(rank.worker_pid()));
  }
}

TEST(NodeTest, Embedded_DaemonKilledByNine_RanksEnd) {
  TestCluster cluster(/*embedded=*/true);
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell("sleep 63", 2));
  const Job running = cluster.WaitForRunning(id);
  cluster.Kill(cluster.daemon("a"), SIGKILL);
  EXPECT_TRUE(Eventually([&] {
    return !Lives(running.rank(0).pid()) && !Lives(running.rank(1).pid()) &&
           !Lives(running.rank(0).worker_pid());
  }));
}

TEST(NodeTest, Embedded_SchedulerDies_DaemonEndsWithItsRanks) {
  TestCluster cluster(/*embedded=*/true);
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell("sleep 64", 1));
  const Job running = cluster.WaitForRunning(id);
  cluster.Kill(cluster.scheduler(), SIGKILL);
  EXPECT_EQ(cluster.WaitForDaemon("a").exit_code, 1);
  EXPECT_FALSE(Lives(running.rank(0).pid()));
}

TEST(NodeTest, Start_RunDirectoryIsTaken_ExitsTwoAndNamesTheHolder) {
  TestCluster cluster;
  const pid_t holder = cluster.StartDaemon("a").pid;
  cluster.StartDaemon("b", {"--run-directory", absl::StrCat(cluster.directory(), "/a")},
                      /*wait=*/false);
  EXPECT_EQ(cluster.WaitForDaemon("b").exit_code, 2);
  EXPECT_THAT(cluster.DaemonOutput("b"),
              AllOf(HasSubstr(absl::StrCat("pid ", holder)), HasSubstr("/a/lock")));
}

}  // namespace
}  // namespace ringd::tests
