// A generation of a job on this node: its communicator, its order book and its clients.
#ifndef RINGD_DAEMON_ENGINE_JOB_H_
#define RINGD_DAEMON_ENGINE_JOB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/arena/client.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/order/order_book.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {

// Carries out what the order book says, on the communicator and in the arenas.
//
// Life: made with a communicator; Poll until Remove was called and removed() is true; then
// destroyed. Thread-bound: the engine's thread. The events are called on it; they must not destroy
// the job.
class Job {
 public:
  struct Events {
    std::function<void(int rank, std::string reason)> client_failed;
    std::function<void(int rank, int pid)> client_died;
    std::function<void(Stall stall)> stalled;
  };

  Job(const JobGeneration& generation, std::unique_ptr<Communicator> communicator, EventLoop* loop,
      uint64_t incarnation, Events events);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return generation_.job; }
  uint64_t generation() const { return generation_.generation; }
  bool has_ring() const { return generation_.layout.node_count() > 1; }

  // As Engine's calls of the same names.
  absl::StatusOr<int> AddClient(int rank, uint64_t arena, ArenaSegment segment);
  absl::Status AddSegment(int rank, uint64_t arena, uint32_t index, ArenaSegment segment);
  absl::Status SetClientProcess(int rank, uint64_t arena, int pid, UniqueFd pidfd);
  void RemoveClient(int rank, uint64_t arena);
  void RankEnded(int rank, const Outcome& outcome);
  void Fail(const Outcome& outcome);
  // Fails what the communicator has not begun, and everything later.
  void FailPending(const Outcome& outcome);

  // Fails everything, poisons the arenas, and refuses what comes later.
  void Remove(const Outcome& outcome);
  // Remove was called and no buffer is in use any more.
  bool removed() const { return removing_ && started_.empty(); }

  // One round of work: queues, communicator. Returns whether anything was done.
  bool Poll();
  // Tells the clients whether to ring the doorbell.
  void SetSleeping(bool sleeping);
  bool HasWork() const;
  // Poisons the clients whose memory was missing (SigbusGuard).
  void CheckMemory();
  // Reports who waits for whom.
  void CheckStalls(int64_t now_us);

 private:
  struct Started {
    std::vector<RequestPtr> requests;
    int64_t since_us = 0;
  };
  struct KeyLess {
    bool operator()(OperationKey a, OperationKey b) const {
      return a.channel != b.channel ? a.channel < b.channel : a.sequence < b.sequence;
    }
  };
  struct Rank {
    std::unique_ptr<Client> client;  // Attached, or null.
    bool ended = false;
  };

  Client* FindClient(int rank, uint64_t arena);
  absl::StatusOr<int> LocalRank(int rank) const;
  bool DrainClient(Client* client);
  absl::Status SubmitOf(Client* client, RequestPtr request);
  void OnClientDied(Client* client);
  void Detach(int local_rank);
  void FailClient(Client* client, const std::string& reason);
  void CutOff(int local_rank, const Outcome& outcome);

  void Perform();
  void PerformOne(Action* action);
  void StartOperation(Action* action);
  void OnDone(OperationKey key, const Outcome& outcome);
  void AgreeOnPlan(const Request& request, const Outcome& outcome);
  void FreeDetached();
  std::string StallReport(const Waiting& waiting, int64_t now_us) const;

  const JobGeneration generation_;
  const uint64_t incarnation_;
  EventLoop* const loop_;
  const Events events_;
  std::unique_ptr<Communicator> communicator_;
  OrderBook book_;
  std::vector<Rank> ranks_;                        // By local rank.
  std::vector<std::unique_ptr<Client>> detached_;  // With requests unfinished.
  std::map<OperationKey, Started, KeyLess> started_;
  Actions actions_;  // To be carried out by Perform.
  bool performing_ = false;
  bool removing_ = false;
  int64_t next_stall_us_ = 0;  // Age of the oldest operation at the next report.
  OperationKey stalled_;       // Of the last report; sequence 0: that stall is over.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_JOB_H_
