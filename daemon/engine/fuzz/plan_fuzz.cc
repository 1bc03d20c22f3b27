// A plan's record, as a client lays it out in its arena.
#include "common/fuzz/fuzz.h"
#include "daemon/engine/order/plan.h"
#include "daemon/engine/testing/plan_record.h"

namespace ringd {

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<FuzzBytes> seeds;
  daemon::PlanRecord record;
  record.buckets = {daemon::MakePlanBucket(30), daemon::MakePlanBucket(0)};
  record.tensors = {
      {"layer1.weight", 0, {5, 4}, 0}, {"layer1.bias\t\n", 0, {10}, 20}, {"", 1, {0}, 0}};
  for (const uint32_t plan : {1u, 0xffffu}) {
    record.plan = plan;
    const std::vector<char> bytes = record.Bytes();
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  return seeds;
}

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using ringd::FuzzCheck;
  const std::vector<char> record(data, data + size);
  const auto plan = ringd::daemon::Plan::Parse(record);
  if (!plan.ok()) return 0;
  FuzzCheck((*plan)->id() > 0 && !(*plan)->buckets().empty(), "a plan without id or buckets");
  FuzzCheck((*plan)->canonical_text().size() < 100 * (size + 1),
            "a text far longer than its record");
  FuzzCheck((*ringd::daemon::Plan::Parse(record))->hash() == (*plan)->hash(), "two hashes");
  return 0;
}
