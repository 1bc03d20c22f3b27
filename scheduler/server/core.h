// The state machine with its store, its streams and its waiting calls: all that lives on the state
// thread.
#ifndef RINGD_SCHEDULER_SERVER_CORE_H_
#define RINGD_SCHEDULER_SERVER_CORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"
#include "scheduler/server/gatherings.h"
#include "scheduler/server/identity.h"
#include "scheduler/server/log_relay.h"
#include "scheduler/server/streams.h"
#include "scheduler/state/machine.h"
#include "scheduler/store/store.h"

namespace ringd::scheduler {

// Feeds events to the machine and carries its actions out: writes first, in one transaction a
// batch, then replies, orders and news. Where the disk fails, nothing leaves until it works again.
//
// Life: construct, Restore, then on the state thread only. Outlives all streams.
// Thread-bound: the state thread.
class Core {
 public:
  using ReplyCallback = std::function<void(const Reply&)>;

  // All outlive this.
  Core(Machine* machine, Store* store, Identities* identities);
  ~Core();

  // Before the loop starts.
  absl::Status Restore();

  // `event`'s call id is set here; `done` is called once, when what it tells is durable.
  template <class E>
  void Call(E event, ReplyCallback done) {
    event.call = next_call_++;
    calls_[event.call] = std::move(done);
    Handle(std::move(event));
  }
  void Handle(Event event);

  // Take over streams that have just been made.
  void Join(NodeStream* stream, PeerInfo peer);
  void Watch(StreamWriter<ringd::cluster::v1::Job>* writer, const std::string& job);
  void Logs(StreamWriter<ringd::cluster::v1::LogChunk>* writer, const Caller& caller,
            const ringd::cluster::v1::LogsRequest& request);
  void Hold(HoldStream* stream, PeerInfo peer);

  // `done` is called once, unless Leave comes first. What Leave takes.
  PartId Gather(const Caller& caller, const ringd::cluster::v1::GatherRequest& request,
                ReplyCallback done);
  void Leave(PartId part);

  // Hooks of the loop.
  void Tick();
  void Flush();

  // We stop: streams that break from now on say nothing about nodes and clients.
  void Close() { closing_ = true; }

  const Machine& machine() const { return *machine_; }

 private:
  struct Connection {
    NodeStream* stream = nullptr;
    PeerInfo peer;
    bool joined = false;
  };
  struct Watcher {
    StreamWriter<ringd::cluster::v1::Job>* writer = nullptr;
    bool dirty = false;    // Something has changed since the last message.
    bool saw_end = false;  // The last message had a final state.
  };

  Now ReadClocks() const;
  void OnReport(ConnectionId id, ringd::cluster::v1::NodeReport report);
  void OnHello(ConnectionId id, const ringd::cluster::v1::NodeHello& hello);
  void Do(const Reply& reply);
  void Do(SendOrder& order);
  void Do(const CloseConnection& close);
  void CommitWrites();
  void Notify(const std::string& job);
  void Show(const std::string& job, Watcher* watcher);
  void ShowIdle();
  void Answer(std::vector<Gatherings::Outcome> outcomes);

  Machine* const machine_;
  Store* const store_;
  Identities* const identities_;
  LogRelay logs_;

  bool closing_ = false;
  std::vector<Action> actions_;
  CallId next_call_ = 1;
  std::map<CallId, ReplyCallback> calls_;
  struct WaitingPart {
    Caller caller;
    ReplyCallback done;
  };
  Gatherings gatherings_;
  PartId next_part_ = 1;
  std::map<PartId, WaitingPart> parts_;
  ConnectionId next_connection_ = 1;
  std::map<ConnectionId, Connection> connections_;
  std::map<std::string, std::map<uint64_t, Watcher>> watchers_;  // By job.
  uint64_t next_watcher_ = 1;
  std::vector<std::pair<std::string, uint64_t>>
      idle_watchers_;  // Shown at the next flush: what they see is durable.
};

// A job as Describe and Watch show it.
ringd::cluster::v1::Job ShownJob(const v1::JobRecord& record);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_SERVER_CORE_H_
