#include "client/cli/local/network.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/local/tool.h"
#include "client/cli/output/file_text.h"
#include "common/crypto/crypto.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr int kPlanAttempts = 200;
constexpr uint8_t kFirstOctet =
    64;  // 10.64.* to 10.191.*: away from what home and cloud networks like.
constexpr uint8_t kOctets = 128;
constexpr int kFirstHost = 2;
constexpr char kSchedulerPort[] = "7470";
constexpr char kDataPort[] = "7472";

// Time's worth of tokens: a timer that ticks at 250 Hz must not lower the rate.
constexpr double kBurstSeconds = 0.004;
constexpr int64_t kMinBurstBytes =
    32 * 1024;  // A frame offloaded by the network card's rules, half of it.
constexpr char kLatency[] = "20ms";
constexpr int64_t kMinRateBits = 8000;
constexpr char kInnerInterface[] = "eth0";

absl::Status Ip(const std::string& arguments) { return RunTool("ip " + arguments); }
absl::Status Tc(const std::string& arguments) { return RunTool("tc " + arguments); }

absl::Status CreateLink(const LocalCluster& cluster, const LocalNode& node) {
  const std::string& ns = node.netns;
  const std::string& outer = node.interface;
  RINGD_RETURN_IF_ERROR(Ip(absl::StrCat("netns add ", ns)));
  RINGD_RETURN_IF_ERROR(Ip(
      absl::StrCat("link add ", outer, " type veth peer name ", kInnerInterface, " netns ", ns)));
  RINGD_RETURN_IF_ERROR(Ip(absl::StrCat("link set ", outer, " master ", cluster.bridge, " up")));
  RINGD_RETURN_IF_ERROR(Ip(absl::StrCat("-n ", ns, " link set lo up")));
  RINGD_RETURN_IF_ERROR(
      Ip(absl::StrCat("-n ", ns, " address add ", node.address, "/24 dev ", kInnerInterface)));
  RINGD_RETURN_IF_ERROR(Ip(absl::StrCat("-n ", ns, " link set ", kInnerInterface, " up")));
  if (cluster.rate.empty()) return absl::OkStatus();
  RINGD_ASSIGN_OR_RETURN(const std::string bucket, TokenBucketArguments(cluster.rate));
  RINGD_RETURN_IF_ERROR(Tc(absl::StrCat("qdisc add dev ", outer, " root tbf ", bucket)));
  return Tc(absl::StrCat("-n ", ns, " qdisc add dev ", kInnerInterface, " root tbf ", bucket));
}

}  // namespace

absl::StatusOr<std::string> TokenBucketArguments(const std::string& rate) {
  const std::vector<std::pair<const char*, double>> units = {
      {"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}};
  for (const auto& [unit, factor] : units) {
    if (!absl::EndsWith(rate, unit)) continue;
    double number = 0;
    const std::string text = rate.substr(0, rate.size() - std::string(unit).size());
    const double bits = absl::SimpleAtod(text, &number) ? number * factor : 0;
    if (!(bits >= kMinRateBits && bits <= 1e13)) break;
    const auto burst = static_cast<int64_t>(bits / 8 * kBurstSeconds);
    return absl::StrCat("rate ", static_cast<int64_t>(bits), "bit burst ",
                        std::max(burst, kMinBurstBytes), " latency ", kLatency);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--rate '", rate, "' is no rate; write 1gbit, 100mbit or 512kbit"));
}

bool IsNetworkTaken(const std::string& routes, uint8_t x, uint8_t y) {
  const uint32_t network = 10u << 24 | uint32_t{x} << 16 | uint32_t{y} << 8;
  constexpr uint32_t kMask = 0xFFFFFF00;
  for (const absl::string_view line : absl::StrSplit(routes, '\n')) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint32_t destination = 0, mask = 0;
    // Interface Destination Gateway Flags RefCnt Use Metric Mask: little-endian hexadecimal.
    if (fields.size() < 8 || !absl::SimpleHexAtoi(fields[1], &destination) ||
        !absl::SimpleHexAtoi(fields[7], &mask) || mask == 0) {
      continue;
    }
    const uint32_t common = ntohl(mask) & kMask;
    if ((ntohl(destination) & common) == (network & common)) return true;
  }
  return false;
}

absl::Status PlanNetwork(LocalCluster* cluster) {
  if (geteuid() != 0) {
    return absl::FailedPreconditionError(
        "--netns needs root, who alone may make network namespaces; run it as root or leave "
        "--netns out");
  }
  for (const char* tool : {"ip", "tc"}) {
    if (FindTool(tool).empty()) {
      return absl::FailedPreconditionError(absl::StrCat("--netns needs the program ", tool,
                                                        "; install it (apt-get install iproute2)"));
    }
  }
  const std::string routes = ReadFileText("/proc/net/route");
  for (int attempt = 0; attempt < kPlanAttempts; ++attempt) {
    const std::string random = RandomBytes(2);
    const auto x = static_cast<uint8_t>(kFirstOctet + static_cast<uint8_t>(random[0]) % kOctets);
    const auto y = static_cast<uint8_t>(random[1]);
    if (IsNetworkTaken(routes, x, y)) continue;
    const std::string network = absl::StrCat("10.", x, ".", y, ".");
    cluster->bridge = absl::StrCat("rgd-br-", cluster->id);
    cluster->bridge_address = network + "1";
    cluster->scheduler_tcp = absl::StrCat(network, "1:", kSchedulerPort);
    for (size_t i = 0; i < cluster->nodes.size(); ++i) {
      LocalNode& node = cluster->nodes[i];
      node.netns = absl::StrCat("ringd-", cluster->id, "-", node.name);
      node.interface = absl::StrCat("rgd-", cluster->id, "-", node.name);
      node.address = absl::StrCat(network, kFirstHost + i);
      node.data_address = absl::StrCat(node.address, ":", kDataPort);
    }
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "no network of 10.64.0.0 to 10.191.255.0 is free; leave --netns out");
}

absl::Status CreateNetwork(const LocalCluster& cluster) {
  RINGD_RETURN_IF_ERROR(Ip(absl::StrCat("link add ", cluster.bridge, " type bridge")));
  RINGD_RETURN_IF_ERROR(
      Ip(absl::StrCat("address add ", cluster.bridge_address, "/24 dev ", cluster.bridge)));
  RINGD_RETURN_IF_ERROR(Ip(absl::StrCat("link set ", cluster.bridge, " up")));
  for (const LocalNode& node : cluster.nodes) RINGD_RETURN_IF_ERROR(CreateLink(cluster, node));
  return absl::OkStatus();
}

void RemoveNetwork(const LocalCluster& cluster) {
  if (!cluster.has_netns()) return;
  for (const LocalNode& node : cluster.nodes) {
    (void)Ip(absl::StrCat("link delete ", node.interface));
    (void)Ip(absl::StrCat("netns delete ", node.netns));
  }
  (void)Ip(absl::StrCat("link delete ", cluster.bridge));
}

}  // namespace ringd::cli
