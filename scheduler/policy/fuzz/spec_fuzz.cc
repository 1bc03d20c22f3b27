// A job as a user submits it, any message of that type.
#include "common/fuzz/fuzz.h"
#include "scheduler/policy/spec.h"

namespace ringd {

using cluster::v1::JobSpec;

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<JobSpec> specs(3);
  specs[0].add_command("/usr/bin/python3");
  specs[0].add_command("-u");
  specs[0].add_command("src/train.py");
  (*specs[0].mutable_environment())["NAME"] = "value";
  specs[0].set_ranks(4);
  specs[0].set_nodes(2);
  specs[0].set_ranks_per_node(2);
  specs[0].set_working_directory("/home/user");
  specs[1] = specs[0];
  auto* const host = specs[1].add_hosts();
  host->set_node("node-a");
  host->set_slots(4);
  specs[1].add_hosts()->set_node("node-b");
  specs[1].mutable_grace()->set_seconds(5);
  specs[1].mutable_deadline()->set_seconds(3600);
  specs[1].set_name("train");
  specs[2].set_ranks(-1);
  specs[2].set_nodes(65536);
  specs[2].add_command("");
  std::vector<FuzzBytes> seeds;
  for (const JobSpec& spec : specs) {
    const std::string bytes = spec.SerializeAsString();
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  return seeds;
}

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringd;
  cluster::v1::JobSpec spec;
  if (!spec.ParseFromArray(data, static_cast<int>(size))) return 0;
  if (!scheduler::CheckSpec(&spec).ok()) return 0;
  FuzzCheck(!spec.name().empty() && spec.name().size() <= scheduler::kMaxNameBytes, "no name");
  cluster::v1::JobSpec again = spec;
  FuzzCheck(scheduler::CheckSpec(&again).ok(), "a checked spec that is refused");
  const auto shape = scheduler::ResolveShape(spec);
  FuzzCheck(shape.ok(), "a checked spec without a shape");
  FuzzCheck(shape->ranks >= 1 && shape->ranks <= scheduler::kMaxRanks, "ranks");
  FuzzCheck(shape->nodes >= 0 && shape->nodes <= shape->ranks, "nodes");
  FuzzCheck(shape->ranks_per_node == 0 || shape->ranks % shape->ranks_per_node == 0, "per node");
  return 0;
}
