// One node in this process: a production engine, and for each rank the library's client on an arena
// as a worker makes it.
#ifndef RINGD_TESTS_QUEUE_QUEUE_NODE_H_
#define RINGD_TESTS_QUEUE_QUEUE_NODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/c/arena_client.h"
#include "client/session/arena_keeper.h"
#include "daemon/engine/engine.h"

namespace ringd {

// Job "job" of `size` ranks on node "node-a". Engine and clients work on one mapping of each arena.
// Thread-bound, but for ForEachRank's bodies, each with its own client. Aborts on failure to set
// up.
class QueueNode {
 public:
  explicit QueueNode(int size);
  ~QueueNode();

  int size() const { return static_cast<int>(ranks_.size()); }
  daemon::Engine& engine() { return *engine_; }
  client::ArenaClient& client(int rank) { return *ranks_[rank].client; }
  // Mappings that the rank's first segment has: two, of engine and client, are one.
  int CountMappings(int rank) const;

  // Runs `body` for every rank, each on a thread of its own.
  void ForEachRank(const std::function<void(int rank, client::ArenaClient& client)>& body);

  // The rank's client detaches and another one begins, with an arena of its own.
  void Reattach(int rank);

 private:
  struct Rank {
    uint64_t arena = 0;
    std::unique_ptr<session::ArenaKeeper> keeper;
    std::unique_ptr<client::ArenaClient> client;
  };

  void Attach(int rank);
  void Detach(int rank);
  int Grow(int rank, uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes);

  std::unique_ptr<daemon::Engine> engine_;
  std::vector<Rank> ranks_;
};

}  // namespace ringd

#endif  // RINGD_TESTS_QUEUE_QUEUE_NODE_H_
