// For tests: all nodes of a ring in one thread, over real data ports and loopback TCP.
#ifndef RINGD_DAEMON_COLLECTIVES_RING_RING_CLUSTER_H_
#define RINGD_DAEMON_COLLECTIVES_RING_RING_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/collectives/conformance.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/transport/data_port.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {

// A layout of `ranks` (count by node); nodes are called a, b, c, ...
std::vector<GroupLayout> MakeLayouts(const std::vector<int>& ranks);

// Thread-bound.
class RingCluster : public Cluster {
 public:
  explicit RingCluster(std::vector<GroupLayout> layouts, const RingTuning& tuning = {})
      : RingCluster(std::move(layouts), [tuning](int) { return tuning; }) {}
  // By node.
  RingCluster(std::vector<GroupLayout> layouts, const std::function<RingTuning(int)>& tuning_of);
  ~RingCluster() override;

  const GroupLayout& layout(int node) const override { return layouts_[node]; }
  Communicator* communicator(int node) override { return communicators_[node].get(); }
  int node_count() const { return static_cast<int>(layouts_.size()); }
  // Polls, then one Progress of each node that is still there.
  void Drive() override;
  // Only that node.
  void DriveNode(int node);
  // Runs the operation on all nodes to its end, in place: data, by rank. Returns the bytes that the
  // first node has sent for it. An error, or half a minute without an end, is a test failure.
  uint64_t RunInPlace(OperationKey key, const Collective& collective,
                      const std::vector<std::byte*>& data);
  // The node's communicator goes, its connections close.
  void Remove(int node) { communicators_[node].reset(); }
  // What the node's ring failure handler has been told.
  const std::vector<Outcome>& ring_failures(int node) const { return ring_failures_[node]; }
  EventLoop* loop() { return &loop_; }

 private:
  std::vector<GroupLayout> layouts_;
  EventLoop loop_;
  std::vector<std::unique_ptr<DataPort>> ports_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::vector<Outcome>> ring_failures_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_RING_CLUSTER_H_
