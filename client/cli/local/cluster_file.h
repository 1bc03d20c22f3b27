// What `ringctl local up` has made, as DIR/cluster.json remembers it.
#ifndef RINGD_CLIENT_CLI_LOCAL_CLUSTER_FILE_H_
#define RINGD_CLIENT_CLI_LOCAL_CLUSTER_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ringd::cli {

struct LocalNode {
  std::string name;
  std::string netns;         // Empty: the machine's own.
  std::string interface;     // The machine's end of its link; empty without netns.
  std::string address;       // IP.
  std::string data_address;  // host:port that other daemons dial.
};

struct LocalCluster {
  std::string directory;
  std::string
      id;         // Four hexadecimal digits: part of the names of what lives outside the directory.
  int slots = 1;  // Of each node.
  std::string rate;            // As tc takes it; empty: unlimited.
  std::string bridge;          // Empty without netns.
  std::string bridge_address;  // "10.1.2.1"; its network is a /24.
  std::string scheduler_tcp;   // host:port.
  std::vector<LocalNode> nodes;

  bool has_netns() const { return !bridge.empty(); }
  std::string SchedulerSocket() const { return directory + "/s.sock"; }
  std::string NodeDirectory(const std::string& node) const { return directory + "/" + node; }
  std::string RunDirectory(const std::string& node) const { return NodeDirectory(node) + "/r"; }
  // Of a node or of "scheduler".
  std::string PidFile(const std::string& name) const { return directory + "/" + name + ".pid"; }
  std::string LogFile(const std::string& name) const { return directory + "/" + name + ".log"; }
  std::string TlsFile(const std::string& name) const { return directory + "/tls/" + name; }

  // NOT_FOUND: lists the names there are.
  absl::StatusOr<LocalNode> FindNode(const std::string& name) const;
};

inline constexpr char kSchedulerName[] = "scheduler";
inline constexpr int kMaxLocalNodes = 200;  // Addresses of a /24, and interface names of 15 bytes.

// "a".."z", "aa".."az", "ba", ...
std::string LocalNodeNameOf(int index);

// The longest path of a socket below `directory` must fit. INVALID_ARGUMENT.
absl::Status CheckDirectoryLength(const std::string& directory);

std::string ToJsonText(const LocalCluster& cluster);
// INVALID_ARGUMENT: not what ToJsonText writes.
absl::StatusOr<LocalCluster> ParseLocalCluster(const std::string& text);

// NOT_FOUND: no cluster in the directory.
absl::StatusOr<LocalCluster> ReadLocalCluster(const std::string& directory);
absl::Status WriteLocalCluster(const LocalCluster& cluster);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_LOCAL_CLUSTER_FILE_H_
