// Collectives from end to end: client, worker, daemon and engine as they ship.
#include <signal.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/sanitizers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/node/test_cluster.h"

namespace ringd::tests {
namespace {

using cluster::v1::Job;
using cluster::v1::JobSpec;
using testing::AllOf;
using testing::HasSubstr;

std::string CClient() { return TestCluster::Program("examples/c_client/c_client"); }
std::string CcClient() { return TestCluster::Program("examples/cc_client/cc_client"); }

void ExpectSum(TestCluster& cluster, const JobSpec& spec, const std::string& sum) {
  const std::string id = cluster.Submit(spec);
  const Job job = cluster.Wait(id);
  ASSERT_EQ(job.state(), cluster::v1::JOB_STATE_SUCCEEDED) << job.ShortDebugString();
  for (int rank = 0; rank < job.ranks(); ++rank) {
    EXPECT_THAT(cluster.Logs(id, rank), HasSubstr(absl::StrCat(": sum ", sum, " ", sum, "\n")));
  }
}

TEST(ClientTest, Allreduce_CClientsOnOneNode_AllHaveTheSum) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  ExpectSum(cluster, cluster.Shell(CClient(), 4), "10 10");  // 1 + 2 + 3 + 4.
}

TEST(ClientTest, Allreduce_ArenaGrows_AllHaveTheSum) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  ExpectSum(cluster, cluster.Shell(CClient() + " 64", 2), "3 3");
}

TEST(ClientTest, Allreduce_ProgramAttachesByItself_AllHaveTheSum) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  ExpectSum(cluster, cluster.Shell(CcClient(), 2), "3 3");
}

TEST(ClientTest, Allreduce_OneClientAfterTheOther_BothHaveTheSum) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  ExpectSum(
      cluster,
      cluster.Shell(absl::StrCat(CClient(), " >/dev/null && ", CClient(), " && ", CcClient()), 2),
      "3 3");
}

TEST(ClientTest, Allreduce_RanksOnTwoNodes_AllHaveTheSum) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  cluster.StartDaemon("b");
  JobSpec spec = cluster.Shell(CClient(), 4);
  spec.set_nodes(2);
  spec.set_ranks_per_node(2);
  ExpectSum(cluster, spec, "10 10");
}

TEST(ClientTest, Allreduce_PeerDies_SurvivorRaisesWithTheCause) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell(
      absl::StrCat("if [ $RINGD_RANK = 1 ]; then sleep 0.3; echo gone >&2; exit 7; fi; ",
                   CClient()),
      2));
  const absl::Time begin = absl::Now();
  const Job job = cluster.Wait(id);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(kSanitized ? 4 : 2));
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.exit_code(), 7);
  EXPECT_EQ(job.first_failure().rank(), 1);
  EXPECT_EQ(job.rank(0).state(), "followed");
  EXPECT_THAT(cluster.Logs(id, 0),
              AllOf(HasSubstr("rank 1"), HasSubstr("node a"), HasSubstr("code 7")));
}

TEST(ClientTest, Allreduce_PeerOnAnotherNodeDies_SurvivorRaisesWithTheCause) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  cluster.StartDaemon("b");
  JobSpec spec = cluster.Shell(
      absl::StrCat("if [ $RINGD_RANK = 1 ]; then sleep 0.3; kill -9 $$; fi; ", CClient()), 2);
  spec.set_nodes(2);
  spec.set_ranks_per_node(1);
  const std::string id = cluster.Submit(spec);
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.exit_code(), 128 + SIGKILL);
  EXPECT_EQ(job.first_failure().rank(), 1) << job.ShortDebugString();
  EXPECT_THAT(cluster.Logs(id, 0),
              AllOf(HasSubstr("rank 1"), HasSubstr("node b"), HasSubstr("SIGKILL")));
}

// Runs two ranks of which the second waits for the file `go` before it joins the first in an
// allreduce.
std::string SecondWaitsForGo(const TestCluster& cluster) {
  return absl::StrCat("if [ $RINGD_RANK = 1 ]; then while [ ! -e ", cluster.directory(),
                      "/go ]; do sleep 0.05; done; fi; ", CClient());
}

void Go(const TestCluster& cluster) {
  std::ofstream(absl::StrCat(cluster.directory(), "/go")) << "\n";
}

void RestartDaemon(TestCluster& cluster, int signal) {
  cluster.Kill(cluster.daemon("a"), signal);
  if (signal != SIGKILL) {
    EXPECT_EQ(cluster.WaitForDaemon("a").exit_code, 0);
  }
  cluster.StartDaemon("a");
  absl::SleepFor(absl::Milliseconds(500));  // The workers are back.
}

class RestartTest : public testing::TestWithParam<int> {};

TEST_P(RestartTest, DaemonRestartedBetweenClients_LaterOnesWork) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id =
      cluster.Submit(cluster.Shell(absl::StrCat(CClient(), "; while [ ! -e ", cluster.directory(),
                                                "/go ]; do sleep 0.05; done; ", CClient()),
                                   2));
  cluster.WaitForRunning(id);
  // Both first clients have come and gone.
  EXPECT_TRUE(Eventually([&] {
    const std::string said = cluster.DaemonOutput("a");
    const size_t first = said.find("client detached");
    return first != std::string::npos &&
           said.find("client detached", first + 1) != std::string::npos;
  }));
  RestartDaemon(cluster, GetParam());
  Go(cluster);
  const Job job = cluster.Wait(id);
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_SUCCEEDED)
      << job.ShortDebugString() << cluster.Logs(id, 0);
}

TEST_P(RestartTest, DaemonRestartedWhileAnOperationWaits_ItEndsAndIsNamed) {
  TestCluster cluster;
  cluster.StartDaemon("a");
  const std::string id = cluster.Submit(cluster.Shell(SecondWaitsForGo(cluster), 2));
  cluster.WaitForRunning(id);
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(cluster.DaemonOutput("a"), "client added job=j-1 rank=0"); }));
  absl::SleepFor(absl::Milliseconds(300));  // It has submitted.
  RestartDaemon(cluster, GetParam());
  Go(cluster);
  const Job job = cluster.Wait(id, absl::Seconds(10));
  EXPECT_EQ(job.state(), cluster::v1::JOB_STATE_FAILED) << job.ShortDebugString();
  EXPECT_THAT(cluster.Logs(id, 0), HasSubstr("daemon"));
}

INSTANTIATE_TEST_SUITE_P(Signals, RestartTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& info) {
                           return info.param == SIGKILL ? "Killed" : "Terminated";
                         });

}  // namespace
}  // namespace ringd::tests
