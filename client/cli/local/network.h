// Network namespaces, links and a bridge for the nodes of a local cluster, by `ip` and `tc`.
#ifndef RINGD_CLIENT_CLI_LOCAL_NETWORK_H_
#define RINGD_CLIENT_CLI_LOCAL_NETWORK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/local/cluster_file.h"

namespace ringd::cli {

// Names of bridge, namespaces and interfaces, and addresses in a free network, for cluster->nodes
// by their order. FAILED_PRECONDITION: not root, `ip` or `tc` is missing, or no network 10.x.y.0/24
// is free.
absl::Status PlanNetwork(LocalCluster* cluster);

// Makes what PlanNetwork has named. FAILED_PRECONDITION: what a tool said. What was made stays:
// RemoveNetwork.
absl::Status CreateNetwork(const LocalCluster& cluster);

// Removes all of it; what is gone already is no error.
void RemoveNetwork(const LocalCluster& cluster);

// "1gbit", "100mbit": the arguments of `tc qdisc add ... tbf`. INVALID_ARGUMENT: no rate, or under
// 8 kbit.
absl::StatusOr<std::string> TokenBucketArguments(const std::string& rate);

// Whether a network of /proc/net/route (its text) overlaps 10.x.y.0/24; default routes don't count.
bool IsNetworkTaken(const std::string& routes, uint8_t x, uint8_t y);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_LOCAL_NETWORK_H_
