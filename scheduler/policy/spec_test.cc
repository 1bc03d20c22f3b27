#include "scheduler/policy/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringd::scheduler {
namespace {

using ringd::cluster::v1::JobSpec;
using testing::HasSubstr;

JobSpec Spec() {
  JobSpec spec;
  spec.add_command("/usr/bin/python3");
  return spec;
}

void AddHost(JobSpec* spec, const std::string& node, int slots) {
  auto* host = spec->add_hosts();
  host->set_node(node);
  host->set_slots(slots);
}

std::string ErrorOf(JobSpec spec) { return std::string(CheckSpec(&spec).message()); }

TEST(SpecTest, ResolveShape_NothingGiven_IsOneRank) { EXPECT_EQ(ResolveShape(Spec())->ranks, 1); }

TEST(SpecTest, ResolveShape_NodesAndRanksPerNode_Multiplies) {
  JobSpec spec = Spec();
  spec.set_nodes(3);
  spec.set_ranks_per_node(2);
  EXPECT_EQ(ResolveShape(spec)->ranks, 6);
  spec.set_ranks(5);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("-n 5 is not --nodes 3 x --ranks-per-node 2 = 6"));
}

TEST(SpecTest, ResolveShape_NodesAlone_IsOneRankEach) {
  JobSpec spec = Spec();
  spec.set_nodes(3);
  EXPECT_EQ(ResolveShape(spec)->ranks, 3);
  spec.set_ranks(2);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("-n 2 is too few for --nodes 3"));
}

TEST(SpecTest, ResolveShape_RanksNotDivisible_IsRefused) {
  JobSpec spec = Spec();
  spec.set_ranks(5);
  spec.set_ranks_per_node(2);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("-n 5 is no multiple of --ranks-per-node 2"));
}

TEST(SpecTest, ResolveShape_HugeProduct_IsRefusedWithoutOverflow) {
  JobSpec spec = Spec();
  spec.set_nodes(2147483647);
  spec.set_ranks_per_node(2147483647);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("more than the 65536"));
}

TEST(SpecTest, ResolveShape_Hosts_DropsEmptyOnesAndNamesMistakes) {
  JobSpec spec = Spec();
  spec.set_ranks(2);
  AddHost(&spec, "A", 0);
  AddHost(&spec, "B", 2);
  const auto shape = ResolveShape(spec);
  ASSERT_TRUE(shape.ok());
  ASSERT_EQ(shape->hosts.size(), 1u);
  EXPECT_EQ(shape->hosts[0].node, "B");

  JobSpec doubled = spec;
  AddHost(&doubled, "B", 1);
  EXPECT_THAT(ErrorOf(doubled), HasSubstr("names node B twice"));
  JobSpec bad = spec;
  AddHost(&bad, "C", -2);
  EXPECT_THAT(ErrorOf(bad), HasSubstr("-2 is no count of slots for node C"));
  JobSpec few = spec;
  few.set_ranks(3);
  EXPECT_THAT(ErrorOf(few), HasSubstr("--hosts gives 2 slots, 3 ranks need 3"));
}

TEST(SpecTest, CheckSpec_NoCommand_IsRefused) {
  EXPECT_THAT(ErrorOf(JobSpec()), HasSubstr("no command"));
}

TEST(SpecTest, CheckSpec_NoName_TakesTheProgramsName) {
  JobSpec spec = Spec();
  ASSERT_TRUE(CheckSpec(&spec).ok());
  EXPECT_EQ(spec.name(), "python3");
}

TEST(SpecTest, CheckSpec_NoNameAndAPythonScript_TakesTheScriptsName) {
  const auto name_of = [](const std::vector<std::string>& words) {
    JobSpec spec;
    for (const std::string& word : words) spec.add_command(word);
    EXPECT_TRUE(CheckSpec(&spec).ok());
    return spec.name();
  };
  EXPECT_EQ(name_of({"python", "-u", "src/train.py", "other.py"}), "train");
  EXPECT_EQ(name_of({"/usr/bin/python3.11", "-m", "my.train", "a.py"}), "my.train");
  EXPECT_EQ(name_of({"python", "-c", "import train.py"}), "python");
  EXPECT_EQ(name_of({"./train", "config.py"}), "train");
  EXPECT_EQ(name_of({"python", "j-3.py"}), "job");
}

TEST(SpecTest, CheckSpec_NameLikeAnId_IsRefused) {
  JobSpec spec = Spec();
  spec.set_name("j-12");
  EXPECT_THAT(ErrorOf(spec), HasSubstr("reads like a job id"));
}

TEST(SpecTest, CheckSpec_BadEnvironmentOrDirectory_IsRefusedByName) {
  JobSpec spec = Spec();
  (*spec.mutable_environment())["A=B"] = "x";
  EXPECT_THAT(ErrorOf(spec), HasSubstr("'A=B'"));
  spec = Spec();
  spec.set_working_directory("relative");
  EXPECT_THAT(ErrorOf(spec), HasSubstr("'relative'"));
}

TEST(SpecTest, CheckSpec_WhatIsNotThereYet_IsRefused) {
  JobSpec spec = Spec();
  spec.set_ranks(4);
  spec.set_min_ranks(2);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("--min 2"));
  spec = Spec();
  spec.set_gpus_per_rank(1);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("--gpus-per-rank 1"));
}

}  // namespace
}  // namespace ringd::scheduler
