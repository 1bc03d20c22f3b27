// Which ranks and nodes of a group have joined (the operation of that name).
#ifndef RINGD_DAEMON_ENGINE_GROUPS_JOINS_H_
#define RINGD_DAEMON_ENGINE_GROUPS_JOINS_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// A rank that has joined takes part in everything with nothing, until all ranks have joined. A node
// has joined when all of its ranks have. Thread-bound: the engine's thread.
class Joins {
 public:
  Joins(int local_count, int node_count) : ranks_(local_count), nodes_(node_count) {}

  // request: kJoin of the local rank, which is told when the join is over.
  void AddRank(int local_rank, RequestPtr request) { ranks_[local_rank] = std::move(request); }
  bool HasRank(int local_rank) const { return ranks_[local_rank] != nullptr; }
  bool HasAllRanks() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank != nullptr; });
  }
  void AddNode(int node) { nodes_[node] = true; }
  bool HasNode() const { return std::find(nodes_.begin(), nodes_.end(), true) != nodes_.end(); }
  bool HasAllNodes() const {
    return std::find(nodes_.begin(), nodes_.end(), false) == nodes_.end();
  }
  template <typename Visit>
  void VisitRequests(const Visit& visit) const {
    for (const RequestPtr& rank : ranks_) {
      if (rank != nullptr) visit(*rank);
    }
  }
  // All that have joined; from now on nobody has.
  std::vector<RequestPtr> Take() {
    std::vector<RequestPtr> requests;
    for (RequestPtr& rank : ranks_) {
      if (rank != nullptr) requests.push_back(std::move(rank));
    }
    nodes_.assign(nodes_.size(), false);
    return requests;
  }

 private:
  std::vector<RequestPtr> ranks_;  // By local rank.
  std::vector<bool> nodes_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_GROUPS_JOINS_H_
