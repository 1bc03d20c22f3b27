#include "worker/environment.h"

#include "gtest/gtest.h"

namespace ringd::worker {
namespace {

node::v1::WorkerSpec MakeSpec() {
  node::v1::WorkerSpec spec;
  spec.set_job("j-1");
  spec.set_node("node-b");
  spec.set_worker_socket("/run/ringd/w/j-1-5.sock");
  spec.mutable_layout()->set_rank(5);
  spec.mutable_layout()->set_size(8);
  spec.mutable_layout()->set_local_rank(1);
  spec.mutable_layout()->set_local_size(4);
  spec.mutable_layout()->set_node_rank(1);
  spec.mutable_layout()->set_node_count(2);
  spec.set_master_address("10.0.0.1");
  spec.set_master_port(29500);
  spec.set_slots_used(4);
  (*spec.mutable_environment())["PATH"] = "/usr/bin";
  return spec;
}

TEST(RankEnvironment, TellsWhoTheRankIs) {
  const auto variables = RankEnvironment(MakeSpec(), {.usable_cpus = 16});
  const std::map<std::string, std::string> expected = {
      {"PATH", "/usr/bin"},
      {"RINGD_RANK", "5"},
      {"RINGD_SIZE", "8"},
      {"RINGD_LOCAL_RANK", "1"},
      {"RINGD_LOCAL_SIZE", "4"},
      {"RINGD_NODE_RANK", "1"},
      {"RINGD_NODE_COUNT", "2"},
      {"RINGD_JOB", "j-1"},
      {"RINGD_SOCKET", "/run/ringd/w/j-1-5.sock"},
      {"RANK", "5"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29500"},
      {"HOROVOD_RANK", "5"},
      {"HOROVOD_SIZE", "8"},
      {"HOROVOD_LOCAL_RANK", "1"},
      {"HOROVOD_LOCAL_SIZE", "4"},
      {"HOROVOD_CROSS_RANK", "1"},
      {"HOROVOD_CROSS_SIZE", "2"},
      {"HOROVOD_HOSTNAME", "node-b"},
      {"HOROVOD_CONTROLLER", "gloo"},
      {"HOROVOD_CPU_OPERATIONS", "gloo"},
      {"PYTHONUNBUFFERED", "1"},
      {"OMP_NUM_THREADS", "4"},
  };
  EXPECT_EQ(variables, expected);
}

TEST(RankEnvironment, UserSetsThreadsAndBuffering_Kept) {
  node::v1::WorkerSpec spec = MakeSpec();
  (*spec.mutable_environment())["OMP_NUM_THREADS"] = "3";
  (*spec.mutable_environment())["PYTHONUNBUFFERED"] = "";
  const auto variables = RankEnvironment(spec, {.usable_cpus = 16});
  EXPECT_EQ(variables.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(variables.at("PYTHONUNBUFFERED"), "");
}

TEST(RankEnvironment, UserSetsIdentity_Overruled) {
  node::v1::WorkerSpec spec = MakeSpec();
  (*spec.mutable_environment())["RANK"] = "77";
  (*spec.mutable_environment())["RINGD_SOCKET"] = "/elsewhere";
  const auto variables = RankEnvironment(spec, {.usable_cpus = 16});
  EXPECT_EQ(variables.at("RANK"), "5");
  EXPECT_EQ(variables.at("RINGD_SOCKET"), "/run/ringd/w/j-1-5.sock");
}

TEST(RankEnvironment, LauncherAroundRingd_IsNotSeen) {
  node::v1::WorkerSpec spec = MakeSpec();
  for (const char* const name : {"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID",
                                 "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"}) {
    (*spec.mutable_environment())[name] = "1";
  }
  const auto variables = RankEnvironment(spec, {.usable_cpus = 16});
  EXPECT_EQ(variables.count("TORCHELASTIC_RUN_ID"), 0u);
  EXPECT_EQ(variables.count("OMPI_COMM_WORLD_RANK"), 0u);
  EXPECT_EQ(variables.count("MPI_LOCALRANKID"), 0u);
  EXPECT_EQ(variables.count("SLURM_STEP_NUM_TASKS"), 0u);
  EXPECT_EQ(variables.at("SLURM_JOB_ID"), "1");
}

TEST(RankEnvironment, MoreRanksThanCpus_OneThread) {
  EXPECT_EQ(RankEnvironment(MakeSpec(), {.usable_cpus = 2}).at("OMP_NUM_THREADS"), "1");
}

TEST(RankEnvironment, CpusPerRank_AsManyThreads) {
  node::v1::WorkerSpec spec = MakeSpec();
  spec.set_cpus_per_rank(3);
  EXPECT_EQ(RankEnvironment(spec, {.usable_cpus = 16}).at("OMP_NUM_THREADS"), "3");
}

TEST(RankEnvironment, BoundToCpus_AsManyThreads) {
  node::v1::WorkerSpec spec = MakeSpec();
  spec.set_bind_cpus("0-2,8");
  EXPECT_EQ(RankEnvironment(spec, {.usable_cpus = 16}).at("OMP_NUM_THREADS"), "4");
}

TEST(RankEnvironment, SwitchedUser_HomeAndNamesUnlessSet) {
  node::v1::WorkerSpec spec = MakeSpec();
  spec.set_switch_user(true);
  spec.set_user("ada");
  (*spec.mutable_environment())["USER"] = "other";
  const auto variables = RankEnvironment(spec, {.usable_cpus = 1, .home_directory = "/home/ada"});
  EXPECT_EQ(variables.at("HOME"), "/home/ada");
  EXPECT_EQ(variables.at("LOGNAME"), "ada");
  EXPECT_EQ(variables.at("USER"), "other");
}

TEST(EnvironmentStrings, SortedByName) {
  EXPECT_EQ(EnvironmentStrings({{"B", "2"}, {"A", "1=1"}}),
            (std::vector<std::string>{"A=1=1", "B=2"}));
}

TEST(ParseCpuList, RangesAndSingles) {
  EXPECT_EQ(*ParseCpuList("8,0-2,1"), (std::vector<int>{0, 1, 2, 8}));
  EXPECT_TRUE(ParseCpuList("")->empty());
}

TEST(ParseCpuList, Rubbish_Refused) {
  for (const char* text : {"a", "1-", "-1", "3-1", "1,,2", "4096", "0-99999", "1 2"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
}

}  // namespace
}  // namespace ringd::worker
