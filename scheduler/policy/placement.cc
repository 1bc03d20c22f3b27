#include "scheduler/policy/placement.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace ringd::scheduler {
namespace {

// Longer lists of nodes are cut in sentences.
constexpr size_t kMaxNodesInSentence = 8;

struct Candidate {
  size_t node = 0;
  size_t order = 0;  // Of filling.
  int free = 0;
  int slots = 0;
};

using Room = int Candidate::*;

std::unordered_map<std::string, size_t> IndexByName(const ClusterView& cluster) {
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < cluster.nodes.size(); ++i) index[cluster.nodes[i].name] = i;
  return index;
}

std::vector<Candidate> FindCandidates(const Shape& shape, uint32_t uid,
                                      const ClusterView& cluster) {
  std::vector<Candidate> candidates;
  auto add = [&](size_t i, int limit) {
    const NodeSlots& node = cluster.nodes[i];
    if (!node.Serves(uid)) return;
    if (limit < 0) limit = node.slots;
    candidates.push_back(
        {i, candidates.size(), std::min(node.free, limit), std::min(node.slots, limit)});
  };
  if (shape.hosts.empty()) {
    candidates.reserve(cluster.nodes.size());
    for (size_t i = 0; i < cluster.nodes.size(); ++i) add(i, -1);
    return candidates;
  }
  const auto index = IndexByName(cluster);
  for (const Shape::Host& host : shape.hosts) {
    if (auto it = index.find(host.node); it != index.end()) add(it->second, host.slots);
  }
  return candidates;
}

std::vector<Assignment> FitPerNode(const Shape& shape, const std::vector<Candidate>& candidates,
                                   Room room) {
  const size_t nodes = static_cast<size_t>(shape.ranks / shape.ranks_per_node);
  std::vector<Assignment> result;
  for (const Candidate& candidate : candidates) {
    if (result.size() == nodes) break;
    if (candidate.*room >= shape.ranks_per_node)
      result.push_back({candidate.node, shape.ranks_per_node});
  }
  if (result.size() < nodes) result.clear();
  return result;
}

// Exactly shape.nodes nodes: an even split where the first ones with room allow it, else over those
// with most room.
std::vector<Assignment> FitNodes(const Shape& shape, const std::vector<Candidate>& candidates,
                                 Room room) {
  const size_t nodes = static_cast<size_t>(shape.nodes);
  std::vector<Assignment> result;
  for (const Candidate& candidate : candidates) {
    if (result.size() == nodes) break;
    const int share = shape.ranks / shape.nodes +
                      (static_cast<int>(result.size()) < shape.ranks % shape.nodes ? 1 : 0);
    if (candidate.*room >= share) result.push_back({candidate.node, share});
  }
  if (result.size() == nodes) return result;

  std::vector<Candidate> roomy;
  for (const Candidate& candidate : candidates) {
    if (candidate.*room > 0) roomy.push_back(candidate);
  }
  if (roomy.size() < nodes) return {};
  std::stable_sort(roomy.begin(), roomy.end(),
                   [room](const Candidate& a, const Candidate& b) { return a.*room > b.*room; });
  roomy.resize(nodes);
  std::sort(roomy.begin(), roomy.end(),
            [](const Candidate& a, const Candidate& b) { return a.order < b.order; });
  result.clear();
  int left = shape.ranks;
  for (size_t i = 0; i < nodes; ++i) {
    const int others = static_cast<int>(nodes - i - 1);  // Each of them gets one rank at least.
    const int ranks = std::min(roomy[i].*room, left - others);
    result.push_back({roomy[i].node, ranks});
    left -= ranks;
  }
  if (left > 0) result.clear();
  return result;
}

std::vector<Assignment> FitAny(const Shape& shape, const std::vector<Candidate>& candidates,
                               Room room) {
  if (shape.hosts.empty()) {
    for (const Candidate& candidate : candidates) {
      if (candidate.*room >= shape.ranks) return {{candidate.node, shape.ranks}};
    }
  }
  std::vector<Assignment> result;
  int left = shape.ranks;
  for (const Candidate& candidate : candidates) {
    if (left == 0) break;
    const int ranks = std::min(candidate.*room, left);
    if (ranks == 0) continue;
    result.push_back({candidate.node, ranks});
    left -= ranks;
  }
  if (left > 0) result.clear();
  return result;
}

std::vector<Assignment> Fit(const Shape& shape, const std::vector<Candidate>& candidates,
                            Room room) {
  if (shape.ranks_per_node > 0) return FitPerNode(shape, candidates, room);
  if (shape.nodes > 0) return FitNodes(shape, candidates, room);
  return FitAny(shape, candidates, room);
}

std::string WhyNoCandidates(const Shape& shape, uint32_t uid, const ClusterView& cluster) {
  const std::string needs = absl::StrCat("needs ", Counted(shape.ranks, "slot"), ", ");
  if (cluster.nodes.empty()) return needs + "no node has joined yet";
  if (!shape.hosts.empty()) {
    for (const NodeSlots& node : cluster.nodes) {
      if (node.name == shape.hosts.front().node && !node.up) {
        return absl::StrCat("node ", node.name, " is ", node.note);
      }
    }
  }
  for (const NodeSlots& node : cluster.nodes) {
    if (!node.up) continue;
    if (node.shared && uid == 0)
      return needs + "shared nodes run no jobs of root: submit as another user";
    return absl::StrCat(needs, "node ", node.name, " serves uid ", node.uid, " only");
  }
  return needs + "no node is up";
}

std::string WhyNot(const Shape& shape, const std::vector<Candidate>& candidates, Room room,
                   const ClusterView& cluster) {
  int64_t free = 0;
  int64_t slots = 0;
  for (const Candidate& candidate : candidates) {
    free += candidate.free;
    slots += candidate.slots;
  }
  const std::string where = shape.hosts.empty() ? "cluster has " : "the given hosts have ";
  if (slots < shape.ranks) {
    for (const Shape::Host& host : shape.hosts) {
      for (const NodeSlots& node : cluster.nodes) {
        if (node.name == host.node && !node.up)
          return absl::StrCat("node ", node.name, " is ", node.note);
      }
    }
    return absl::StrCat("needs ", Counted(shape.ranks, "slot"), ", ", where, slots);
  }
  if (shape.ranks_per_node > 0 || shape.nodes > 0) {
    const int per_node = std::max(shape.ranks_per_node, 1);
    const auto fitting = std::count_if(candidates.begin(), candidates.end(),
                                       [&](const Candidate& c) { return c.*room >= per_node; });
    const int nodes = shape.ranks_per_node > 0 ? shape.ranks / shape.ranks_per_node : shape.nodes;
    if (fitting < nodes) {
      return absl::StrCat("needs ", Counted(nodes, "node"), " with ", Counted(per_node, "slot"),
                          room == &Candidate::free ? " free, " : ", ", where, fitting);
    }
  }
  return absl::StrCat("needs ", Counted(shape.ranks, "slot"), ", ", free, " of ", slots,
                      " are free", room == &Candidate::slots ? " but on too many nodes" : "");
}

std::string Where(const std::vector<Assignment>& assignments, const ClusterView& cluster) {
  std::string text = absl::StrCat(Counted(static_cast<int>(assignments.size()), "node"), ":");
  for (size_t i = 0; i < assignments.size(); ++i) {
    if (i == kMaxNodesInSentence) return text + " ...";
    absl::StrAppend(&text, " ", cluster.nodes[assignments[i].node].name, ":", assignments[i].ranks);
  }
  return text;
}

}  // namespace

absl::Status CheckHosts(const Shape& shape, const ClusterView& cluster) {
  const auto index = IndexByName(cluster);
  for (const Shape::Host& host : shape.hosts) {
    const auto it = index.find(host.node);
    if (it == index.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown node ", host.node, " in --hosts (`ringctl nodes` lists those there are)"));
    }
    const NodeSlots& node = cluster.nodes[it->second];
    if (node.up && host.slots > node.slots) {
      return absl::InvalidArgumentError(absl::StrCat("--hosts asks for ",
                                                     Counted(host.slots, "slot"), " of node ",
                                                     host.node, ", which has ", node.slots));
    }
  }
  return absl::OkStatus();
}

Placement Place(const Shape& shape, uint32_t uid, const ClusterView& cluster) {
  Placement placement;
  const std::vector<Candidate> candidates = FindCandidates(shape, uid, cluster);
  if (candidates.empty()) {
    placement.reason = WhyNoCandidates(shape, uid, cluster);
    return placement;
  }
  placement.assignments = Fit(shape, candidates, &Candidate::free);
  if (!placement.assignments.empty()) {
    placement.possible = true;
    placement.reason = Where(placement.assignments, cluster);
    return placement;
  }
  placement.possible = !Fit(shape, candidates, &Candidate::slots).empty();
  placement.reason =
      WhyNot(shape, candidates, placement.possible ? &Candidate::free : &Candidate::slots, cluster);
  return placement;
}

std::vector<ringd::cluster::v1::GenerationNode> FormRing(const Placement& placement,
                                                         const ClusterView& cluster) {
  std::vector<ringd::cluster::v1::GenerationNode> ring;
  int first_rank = 0;
  for (const Assignment& assignment : placement.assignments) {
    ringd::cluster::v1::GenerationNode& node = ring.emplace_back();
    node.set_name(cluster.nodes[assignment.node].name);
    node.set_data_address(cluster.nodes[assignment.node].data_address);
    node.set_first_rank(first_rank);
    node.set_rank_count(assignment.ranks);
    first_rank += assignment.ranks;
  }
  return ring;
}

void TakeSlots(const Placement& placement, ClusterView* cluster) {
  for (const Assignment& assignment : placement.assignments) {
    cluster->nodes[assignment.node].free -= assignment.ranks;
  }
}

}  // namespace ringd::scheduler
