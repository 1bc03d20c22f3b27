#include "client/cli/local/cluster_file.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "client/cli/output/file_text.h"
#include "nlohmann/json.hpp"

namespace ringd::cli {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxSocketPath = 107;
// Below DIR: a worker's socket on a node with a name of two letters.
constexpr char kLongestSocket[] = "/zz/r/w/j-1000000-65535.sock";
constexpr int kJsonIndent = 2;
constexpr mode_t kMode = 0600;

// The string at `key`, or "" (and *ok = false) if there is none.
std::string Text(const ordered_json& json, const char* key, bool* ok) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_string()) {
    *ok = false;
    return "";
  }
  return it->get<std::string>();
}

}  // namespace

std::string LocalNodeNameOf(int index) {
  constexpr int kLetters = 26;
  const std::string last(1, static_cast<char>('a' + index % kLetters));
  return index < kLetters ? last : LocalNodeNameOf(index / kLetters - 1) + last;
}

absl::Status CheckDirectoryLength(const std::string& directory) {
  const size_t limit = kMaxSocketPath - sizeof(kLongestSocket);
  if (directory.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--dir ", directory, " is too long for the sockets in it: ", limit,
                   " bytes at most; choose a shorter one, such as /tmp/ringd-local"));
}

absl::StatusOr<LocalNode> LocalCluster::FindNode(const std::string& name) const {
  std::string names;
  for (const LocalNode& node : nodes) {
    if (node.name == name) return node;
    absl::StrAppend(&names, names.empty() ? "" : ", ", node.name);
  }
  return absl::NotFoundError(
      absl::StrCat("the cluster in ", directory, " has no node ", name, "; its nodes are ", names));
}

std::string ToJsonText(const LocalCluster& cluster) {
  ordered_json nodes = ordered_json::array();
  for (const LocalNode& node : cluster.nodes) {
    nodes.push_back({{"name", node.name},
                     {"netns", node.netns},
                     {"interface", node.interface},
                     {"address", node.address},
                     {"data_address", node.data_address},
                     {"run_directory", cluster.RunDirectory(node.name)},
                     {"log", cluster.LogFile(node.name)}});
  }
  const ordered_json json = {{"directory", cluster.directory},
                             {"id", cluster.id},
                             {"slots", cluster.slots},
                             {"rate", cluster.rate},
                             {"bridge", cluster.bridge},
                             {"bridge_address", cluster.bridge_address},
                             {"scheduler", "unix:" + cluster.SchedulerSocket()},
                             {"scheduler_tcp", cluster.scheduler_tcp},
                             {"nodes", nodes}};
  return json.dump(kJsonIndent, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<LocalCluster> ParseLocalCluster(const std::string& text) {
  const ordered_json json = ordered_json::parse(text, nullptr, false);
  const auto bad = absl::InvalidArgumentError("is no description of a local cluster");
  if (!json.is_object() || !json.contains("nodes") || !json["nodes"].is_array()) return bad;
  if (!json.contains("slots") || !json["slots"].is_number_integer()) return bad;
  bool ok = true;
  LocalCluster cluster;
  cluster.directory = Text(json, "directory", &ok);
  cluster.id = Text(json, "id", &ok);
  cluster.slots = json["slots"].get<int>();
  cluster.rate = Text(json, "rate", &ok);
  cluster.bridge = Text(json, "bridge", &ok);
  cluster.bridge_address = Text(json, "bridge_address", &ok);
  cluster.scheduler_tcp = Text(json, "scheduler_tcp", &ok);
  for (const ordered_json& entry : json["nodes"]) {
    if (!entry.is_object()) return bad;
    cluster.nodes.push_back({.name = Text(entry, "name", &ok),
                             .netns = Text(entry, "netns", &ok),
                             .interface = Text(entry, "interface", &ok),
                             .address = Text(entry, "address", &ok),
                             .data_address = Text(entry, "data_address", &ok)});
  }
  if (!ok) return bad;
  return cluster;
}

absl::StatusOr<LocalCluster> ReadLocalCluster(const std::string& directory) {
  const std::string path = directory + "/cluster.json";
  if (access(path.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(
        "no cluster in ", directory, " (--dir names another); 'ringctl local up' makes one"));
  }
  absl::StatusOr<LocalCluster> cluster = ParseLocalCluster(ReadFileText(path));
  if (!cluster.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " ", cluster.status().message()));
  }
  cluster->directory = directory;
  return cluster;
}

absl::Status WriteLocalCluster(const LocalCluster& cluster) {
  return WriteFileText(cluster.directory + "/cluster.json", ToJsonText(cluster), kMode);
}

}  // namespace ringd::cli
