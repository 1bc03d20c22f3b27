#include "daemon/collectives/rooted.h"

#include <utility>
#include <vector>

namespace ringd::daemon {

std::shared_ptr<const Collective> WithoutRoot(std::shared_ptr<const Collective> collective,
                                              int size) {
  const bool has_root = collective->root >= 0 && collective->root < size;
  const auto ranks = static_cast<size_t>(size);
  const auto root = static_cast<size_t>(collective->root);
  switch (collective->operation) {
    case Operation::kReduce: {
      if (!has_root) return collective;
      auto reduce = std::make_shared<Collective>(*collective);
      reduce->operation = Operation::kReduceScatter;
      reduce->counts.assign(ranks, 0);
      reduce->counts[root] = collective->count;
      return reduce;
    }
    case Operation::kGather:
    case Operation::kScatter: {
      if (!has_root || collective->counts.size() != ranks) return collective;
      auto moves = std::make_shared<Collective>(*collective);
      const bool gathers = collective->operation == Operation::kGather;
      moves->operation = Operation::kAlltoall;
      moves->counts.assign(ranks * ranks, 0);
      for (size_t rank = 0; rank < ranks; ++rank) {
        moves->counts[gathers ? rank * ranks + root : root * ranks + rank] =
            collective->counts[rank];
      }
      return moves;
    }
    default:
      return collective;
  }
}

}  // namespace ringd::daemon
