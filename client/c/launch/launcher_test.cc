#include "client/c/launch/launcher.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>

#include "client/c/error.h"
#include "gtest/gtest.h"

namespace ringd::client {
namespace {

using Environment = std::map<std::string, std::string>;

int Find(const Environment& environment, Launch* launch) {
  return FindLaunch(
      [&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      launch);
}

Environment Torchrun() {
  return {{"TORCHELASTIC_RUN_ID", "none"},
          {"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "node-a"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"GROUP_RANK", "1"},
          {"GROUP_WORLD_SIZE", "2"}};
}

Environment Srun() {
  return {{"SLURM_JOB_ID", "17"},        {"SLURM_STEP_ID", "2"},
          {"SLURM_PROCID", "5"},         {"SLURM_STEP_NUM_TASKS", "7"},
          {"SLURM_LOCALID", "1"},        {"SLURM_NODEID", "2"},
          {"SLURM_STEP_NUM_NODES", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
}

Environment Mpirun() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", "77"}};
}

TEST(FindLaunch, NoVariables_NoLauncher) {
  Launch launch;
  EXPECT_EQ(Find({{"RANK", "0"}, {"SLURM_JOB_ID", "17"}, {"SLURM_PROCID", "0"}}, &launch),
            RINGD_OK);
  EXPECT_EQ(launch.launcher, "");
}

TEST(FindLaunch, Torchrun_PlaceAndNameAreItsOwn) {
  Launch launch;
  ASSERT_EQ(Find(Torchrun(), &launch), RINGD_OK);
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.job, "torchrun-none-node-a-29500-0");
  EXPECT_EQ(launch.place, (attach::Place{3, 4, 1, 2}));
  EXPECT_EQ(launch.node, 1);
  EXPECT_EQ(launch.nodes, 2);
}

TEST(FindLaunch, Srun_LocalSizeIsThatOfItsNode) {
  Launch launch;
  Environment environment = Srun();
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.job, "srun-17-2");
  EXPECT_EQ(launch.node, 2);
  EXPECT_EQ(launch.place, (attach::Place{5, 7, 1, 2}));
  environment["SLURM_NODEID"] = "3";
  environment["SLURM_PROCID"] = "6";
  environment["SLURM_LOCALID"] = "0";
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.place, (attach::Place{6, 7, 0, 1}));
}

TEST(FindLaunch, SeveralLaunchers_TheInnermostCounts) {
  Launch launch;
  Environment all = Srun();
  all.merge(Mpirun());
  ASSERT_EQ(Find(all, &launch), RINGD_OK);
  EXPECT_EQ(launch.job, "mpirun-77");
  all.merge(Torchrun());
  ASSERT_EQ(Find(all, &launch), RINGD_OK);
  EXPECT_EQ(launch.launcher, "torchrun");
}

TEST(FindLaunch, MissingVariable_IsNamed) {
  Launch launch;
  for (const Environment& whole : {Torchrun(), Srun(), Mpirun()}) {
    ASSERT_EQ(Find(whole, &launch), RINGD_OK);
    const std::string launcher = launch.launcher;
    for (const auto& [name, value] : whole) {
      const bool is_sign = name == "TORCHELASTIC_RUN_ID" || name == "OMPI_COMM_WORLD_RANK" ||
                           name == "SLURM_STEP_NUM_TASKS";
      if (is_sign || name == "SLURM_NODEID") continue;
      Environment partial = whole;
      partial.erase(name);
      EXPECT_EQ(Find(partial, &launch), RINGD_INVALID_ARGUMENT) << name;
      const std::string text = LastError().message;
      EXPECT_NE(text.find(name + " is not set"), std::string::npos) << text;
      EXPECT_NE(text.find(launcher), std::string::npos) << text;
      EXPECT_NE(text.find("ringctl run"), std::string::npos) << text;
    }
  }
}

TEST(FindLaunch, RubbishOrContradiction_IsAnErrorThatShowsIt) {
  Launch launch;
  for (const std::string rubbish : {"", "x", "1x", "-", "99999999999"}) {
    Environment environment = Torchrun();
    environment["LOCAL_RANK"] = rubbish;
    EXPECT_EQ(Find(environment, &launch), RINGD_INVALID_ARGUMENT);
    EXPECT_NE(std::string(LastError().message).find("LOCAL_RANK is '" + rubbish + "'"),
              std::string::npos);
  }
  for (const std::string list : {"2(x", "(x2)", "2(xq)", ",", "2(x2)"}) {
    Environment environment = Srun();
    environment["SLURM_STEP_TASKS_PER_NODE"] = list;
    EXPECT_EQ(Find(environment, &launch), RINGD_INVALID_ARGUMENT) << list;
  }
  Environment environment = Torchrun();
  environment["RANK"] = "4";
  EXPECT_EQ(Find(environment, &launch), RINGD_INVALID_ARGUMENT);
  EXPECT_NE(std::string(LastError().message).find("rank 4 of 4"), std::string::npos);
}

TEST(FindLaunch, NodesAreReadWhereThereAreSeveral) {
  Launch launch;
  Environment environment = Torchrun();
  environment["GROUP_RANK"] = "2";
  EXPECT_EQ(Find(environment, &launch), RINGD_INVALID_ARGUMENT);
  environment["WORLD_SIZE"] = environment["LOCAL_WORLD_SIZE"] = "4";
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.nodes, 1);
  environment = Mpirun();
  environment["OMPI_COMM_WORLD_SIZE"] = "5";
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.nodes, 0);
}

TEST(AttachSocketName, FitsAnAddressAndKeepsJobsApart) {
  const std::string name(300, 'x');
  EXPECT_EQ(attach::AttachSocketName(7, "j", 3), std::string("\0ringd/attach/7/3/j", 19));
  EXPECT_LE(attach::AttachSocketName(7, name + "a", 0).size(), 107u);
  EXPECT_NE(attach::AttachSocketName(7, name + "a", 0), attach::AttachSocketName(7, name + "b", 0));
}

TEST(FindLaunch, SeveralNodesOfMpirun_NodeIsUnknownAndMasterSaysWhereTheyMeet) {
  Environment environment = Mpirun();
  environment["OMPI_COMM_WORLD_SIZE"] = "4";
  Launch launch;
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.node, -1);
  EXPECT_EQ(launch.meeting_port, 0);
  environment["MASTER_ADDR"] = "node-a";
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.meeting_port, 0);
  environment["MASTER_PORT"] = "29500";
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.meeting_host, "node-a");
  EXPECT_EQ(launch.meeting_port, 29501);
  for (const char* const port : {"0", "65535", "70000", "x", ""}) {
    environment["MASTER_PORT"] = port;
    EXPECT_EQ(Find(environment, &launch), RINGD_INVALID_ARGUMENT) << port;
  }
}

TEST(FindLaunch, SeveralNodesOfSrun_TheyMeetAtItsFirst) {
  Environment environment = Srun();
  Launch launch;
  int32_t port = 0;
  for (const auto& [list, first] : {std::pair("n[01-03,7],m1", "n01"),
                                    {"n[3,5]", "n3"},
                                    {"a-1,a-2", "a-1"},
                                    {"alone", "alone"},
                                    {"r1n[7-9]", "r1n7"}}) {
    environment["SLURM_STEP_NODELIST"] = list;
    ASSERT_EQ(Find(environment, &launch), RINGD_OK);
    EXPECT_EQ(launch.meeting_host, first);
    port = launch.meeting_port;
    EXPECT_TRUE(port >= 20000 && port < 32000) << port;
  }
  environment["SLURM_STEP_ID"] = "3";
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_NE(launch.meeting_port, port);
  environment["MASTER_ADDR"] = "other";
  environment["MASTER_PORT"] = "1234";
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.meeting_host, "other");
  EXPECT_EQ(launch.meeting_port, 1235);
}

TEST(FindLaunch, SrunAndTorchrun_TorchrunWinsUnlessItsRankCalledSrun) {
  Environment environment = Torchrun();
  environment.merge(Srun());
  // This process was started with no variable of torchrun.
  environment["SLURM_TASK_PID"] = std::to_string(getpid());
  Launch launch;
  ASSERT_EQ(Find(environment, &launch), RINGD_OK);
  EXPECT_EQ(launch.launcher, "torchrun");
  const pid_t child = fork();
  if (child == 0) {
    char* const argv[] = {const_cast<char*>("sleep"), const_cast<char*>("60"), nullptr};
    char* const variables[] = {const_cast<char*>("TORCHELASTIC_RUN_ID=none"), nullptr};
    execve("/bin/sleep", argv, variables);
    _exit(1);
  }
  environment["SLURM_TASK_PID"] = std::to_string(child);
  for (int i = 0; i < 1000 && launch.launcher != "srun"; ++i) {  // Until it has called execve.
    ASSERT_EQ(Find(environment, &launch), RINGD_OK);
    usleep(10'000);
  }
  EXPECT_EQ(launch.launcher, "srun");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ringd::client
