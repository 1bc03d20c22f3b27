// Messages (send, recv) of a job's ranks on this node.
#ifndef RINGD_DAEMON_ENGINE_GROUPS_MESSAGES_H_
#define RINGD_DAEMON_ENGINE_GROUPS_MESSAGES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/deadlock/detector.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// The k-th send of one rank to another in a group with one tag meets the k-th recv there; nothing
// else orders messages. A message is over when it has been received: neither end is buffered.
//
// Between ranks of the node both requests meet here. Between nodes both ends count alike, and the
// pair of nodes has a communicator of its own, with one channel for each (group, from, to, tag); it
// is opened when the first message is submitted on either node.
//
// Life: Submit and Poll until FailAll was called and idle() is true. Ownership: clients outlive
// their requests. Thread-bound: the engine's thread.
// Failure: of messages: their clients are told. One that can't come any more, since its sender or
// receiver has ended, fails with that rank's outcome; messages submitted before the end are
// delivered.
class Messages {
 public:
  using Opened = std::function<void(absl::StatusOr<std::unique_ptr<Communicator>>)>;
  struct Host {
    // The communicator of messages inside the node.
    std::function<std::unique_ptr<Communicator>()> make_local;
    // That of this node and another; `layout`: one rank on each of the two.
    std::function<void(int node, const GroupLayout& layout, Opened opened)> open_pair;
  };

  // layout: the job's.
  Messages(const GroupLayout& layout, Host host);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // local_rank: of the job. REQUIRES: request->peer is another rank of the job.
  void Submit(int local_rank, RequestPtr request);
  // Another node wants the pair's communicator.
  void Open(int node);
  // The rank won't submit any more.
  void EndRank(int local_rank, const Outcome& outcome);
  // Everything pending and later.
  void FailAll(const Outcome& outcome);

  bool Poll();
  bool idle() const;

  // For the detection of deadlocks. Whether all that there is waits for a rank that has not called;
  // what is carried out, and connections that are being made, don't.
  bool IsStuck() const;
  void Visit(const RequestVisitor& visit) const;
  // The channels between nodes in which something waits, and one of them; null: not of this node.
  std::set<ChannelKey> Pending() const;
  std::optional<ChannelState> StateOf(const ChannelKey& channel) const;
  // What waits fails, on all nodes alike. Between nodes: in that channel, whose messages up to
  // `newest` are over.
  void WithdrawLocal(const Outcome& outcome);
  void Withdraw(const ChannelKey& channel, uint64_t newest, const Outcome& outcome);
  // "message (rank 0: recv float32[10] from rank 1) has waited 10 s: ...": the oldest that has
  // waited since before `before_us`, and since when.
  std::optional<std::pair<int64_t, std::string>> FindStall(int64_t before_us, int64_t now_us) const;

 private:
  struct Waiting {
    RequestPtr request;
    int64_t since_us = 0;
  };
  // Between two ranks of this node. One of the queues is empty.
  struct Lane {
    std::deque<Waiting> sends, recvs;
  };
  using LaneKey = std::tuple<uint32_t, int, int, uint32_t>;  // Group, from, to (local), tag.
  struct Started {
    std::vector<RequestPtr> requests;
    int64_t since_us = 0;
    int node = -1;     // The other one; -1: inside the node.
    OperationKey key;  // With it.
  };
  // With another node.
  struct Pair {
    std::unique_ptr<Communicator> communicator;
    bool opening = false;
    std::deque<std::pair<OperationKey, Waiting>> queued;  // While it is being opened.
    std::map<uint64_t, uint64_t> sequences;               // Of the last message of each channel.
    std::map<int, Outcome> ended;                         // Ranks there, by local rank.
    std::set<uint64_t> cut;                               // Channels that end with a message.
  };

  void SubmitLocal(const LaneKey& key, RequestPtr request);
  void Meet(RequestPtr send, RequestPtr recv);
  void SubmitRemote(int node, int local_rank, RequestPtr request);
  void StartRemote(int node, OperationKey key, Waiting waiting);
  void OnOpened(int node, absl::StatusOr<std::unique_ptr<Communicator>> communicator);
  void OnPeerFailure(int node, OperationKey key, bool from, const Outcome& outcome);
  void TellEnded(int node, int local_rank, const Outcome& outcome);
  uint64_t Begin(std::vector<RequestPtr> requests);
  void Finish(uint64_t id, const Outcome& outcome);
  static void Tell(const RequestPtr& request, const Outcome& outcome);

  int NodeOf(int rank) const;
  ChannelKey ChannelWith(int node, uint64_t id) const;
  // The other node of the channel; -1: it isn't one of this node's.
  int OtherNode(const ChannelKey& channel) const;
  bool IsFirst(int node) const { return layout_.node_index < node; }

  const GroupLayout layout_;
  const Host host_;
  std::map<LaneKey, Lane> lanes_;
  std::map<int, Pair> pairs_;            // By node.
  std::map<uint64_t, Started> started_;  // With a communicator.
  uint64_t last_id_ = 0;
  std::map<int, Outcome> ended_;  // By local rank.
  std::optional<Outcome> failed_;
  std::unique_ptr<Communicator> local_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_GROUPS_MESSAGES_H_
