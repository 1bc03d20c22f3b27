#include "client/cli/job/job_options.h"

#include <sstream>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Surroundings Here() {
  return {.environment = {{"PATH", "/bin"}}, .working_directory = "/w", .umask = 027};
}

// Options as parsed from words split at spaces.
absl::StatusOr<JobRequest> Build(const std::string& words,
                                 std::vector<std::string> command = {"prog"}) {
  CLI::App app;
  JobOptions options;
  AddJobOptions(&app, &options);
  std::istringstream stream(words);
  std::vector<std::string> reversed;
  for (std::string word; stream >> word;) reversed.insert(reversed.begin(), word);
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return BuildJob(options, command, Here());
}

std::string ErrorOf(const std::string& words) {
  const auto request = Build(words);
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << words;
  return std::string(request.status().message());
}

TEST(BuildJob, Defaults_AreOneRankHere) {
  const auto request = Build("", {"python", "a b.py"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->spec.ranks(), 1);
  EXPECT_EQ(request->spec.working_directory(), "/w");
  EXPECT_EQ(request->spec.output_directory(), "");
  EXPECT_EQ(request->spec.umask(), 027u);
  EXPECT_EQ(request->spec.grace().seconds(), 30);
  EXPECT_FALSE(request->spec.has_deadline());
  EXPECT_FALSE(request->spec.queue());
  EXPECT_EQ(request->spec.max_restarts(), 3);
  EXPECT_THAT(request->spec.command(), ElementsAre("python", "a b.py"));
}

TEST(BuildJob, AllOptions_ArriveInTheSpec) {
  const auto request = Build(
      "-n 4 --name x --nodes 2 --ranks-per-node 2 --hosts a:2,b:2 --min 2 --max 8 --on-failure "
      "replay "
      "--max-restarts 1 --env A=1 --env B=2 --cwd sub --output-dir out --gpus-per-rank 1 "
      "--gpu-bind rank "
      "--cpus-per-rank 3 --reproducible --deadline 1500ms --stall-timeout 2m --grace 5s --queue");
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& spec = request->spec;
  EXPECT_EQ(spec.ranks(), 4);
  EXPECT_EQ(spec.name(), "x");
  EXPECT_EQ(spec.nodes(), 2);
  EXPECT_EQ(spec.ranks_per_node(), 2);
  ASSERT_EQ(spec.hosts_size(), 2);
  EXPECT_EQ(spec.hosts(1).node(), "b");
  EXPECT_EQ(spec.hosts(1).slots(), 2);
  EXPECT_EQ(spec.min_ranks(), 2);
  EXPECT_EQ(spec.max_ranks(), 8);
  EXPECT_EQ(spec.on_failure(), ringd::cluster::v1::ON_FAILURE_REPLAY);
  EXPECT_EQ(spec.max_restarts(), 1);
  EXPECT_EQ(spec.environment().at("A"), "1");
  EXPECT_EQ(spec.environment().at("B"), "2");
  EXPECT_EQ(spec.working_directory(), "/w/sub");
  EXPECT_EQ(spec.output_directory(), "/w/out");
  EXPECT_EQ(spec.gpus_per_rank(), 1);
  EXPECT_EQ(spec.cpus_per_rank(), 3);
  EXPECT_TRUE(spec.reproducible());
  EXPECT_EQ(spec.deadline().seconds(), 1);
  EXPECT_EQ(spec.deadline().nanos(), 500'000'000);
  EXPECT_EQ(spec.stall_timeout().seconds(), 120);
  EXPECT_EQ(spec.grace().seconds(), 5);
  EXPECT_TRUE(spec.queue());
}

TEST(BuildJob, RanksFromShape_WhenNotGiven) {
  EXPECT_EQ(Build("--nodes 2 --ranks-per-node 3")->spec.ranks(), 6);
  EXPECT_EQ(Build("--nodes 2")->spec.ranks(), 2);
  EXPECT_EQ(Build("--ranks-per-node 3")->spec.ranks(), 3);
}

TEST(BuildJob, BadInput_IsNamed) {
  EXPECT_THAT(ErrorOf("-n 0"), HasSubstr("-n: '0' is no whole number of at least 1"));
  EXPECT_THAT(ErrorOf("-n -3"), HasSubstr("'-3'"));
  EXPECT_THAT(ErrorOf("-n two"), HasSubstr("'two'"));
  EXPECT_THAT(ErrorOf("-n 3 --nodes 2 --ranks-per-node 2"), HasSubstr("-n 3 is not --nodes 2 x"));
  EXPECT_THAT(ErrorOf("-n 1 --nodes 2"), HasSubstr("too few"));
  EXPECT_THAT(ErrorOf("-n 3 --hosts a:1,b:1"), HasSubstr("--hosts gives 2 slots and -n is 3"));
  EXPECT_THAT(ErrorOf("--hosts a --hostfile b"), HasSubstr("give one of them"));
  EXPECT_THAT(ErrorOf("-n 2 --min 3"), HasSubstr("must not decrease"));
  EXPECT_THAT(ErrorOf("-n 2 --max 1"), HasSubstr("must not decrease"));
  EXPECT_THAT(ErrorOf("--on-failure maybe"), HasSubstr("maybe"));
  EXPECT_THAT(ErrorOf("--grace soon"), HasSubstr("--grace 'soon' is no duration"));
  EXPECT_THAT(ErrorOf("--deadline 0s"), HasSubstr("before it starts"));
  EXPECT_THAT(ErrorOf("--stall-timeout 0s"), HasSubstr("at its first wait"));
  EXPECT_THAT(ErrorOf("--gpu-bind rank"), HasSubstr("needs --gpus-per-rank"));
  EXPECT_THAT(std::string(Build("", {}).status().message()), HasSubstr("no COMMAND"));
}

TEST(BuildJob, HostsWithoutCounts_TakeAnyNumberOfRanks) {
  EXPECT_TRUE(Build("-n 9 --hosts a,b:1").ok());
}

}  // namespace
}  // namespace ringd::cli
