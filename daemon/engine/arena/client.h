// One client (a process that called ringd_init) of a rank, as the engine sees it.
#ifndef RINGD_DAEMON_ENGINE_ARENA_CLIENT_H_
#define RINGD_DAEMON_ENGINE_ARENA_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/fd.h"
#include "daemon/engine/arena/arena_view.h"
#include "daemon/engine/arena/descriptor.h"
#include "daemon/engine/order/plan.h"
#include "daemon/engine/order/request.h"

namespace ringd::daemon {

// Who a client is.
struct ClientIdentity {
  int local_rank = 0;
  int rank = 0;        // In the job.
  int size = 0;        // Of the job.
  uint64_t arena = 0;  // The worker's number of it.
  uint64_t generation = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;  // What the rank's former clients have come to.
};

// Reads the submission queue and tells the slots.
//
// Life: made with segment 0; lives until Detach or the job's end, and while requests of it are
// unfinished. Ownership: owns mapping, doorbell and pidfd. Thread-bound: the engine's thread.
// An arena that a former daemon served goes on from its tail; what that one left unfinished fails
// as kUnavailable, as do buckets of plans that were registered with it. Failure: a bad descriptor
// poisons the arena; Drain returns why. After that every submission is answered with the poison's
// outcome.
class Client {
 public:
  // Gets each good request in the client's order. A status other than OK: the client has broken its
  // protocol.
  using Sink = std::function<absl::Status(std::unique_ptr<Request>)>;

  Client(const ClientIdentity& identity, std::unique_ptr<ArenaView> view, UniqueFd doorbell);

  int local_rank() const { return identity_.local_rank; }
  int rank() const { return identity_.rank; }
  uint64_t arena() const { return identity_.arena; }
  ArenaView& view() { return *view_; }
  int doorbell() const { return doorbell_.get(); }
  int pidfd() const { return pidfd_.get(); }
  int pid() const { return pid_; }
  void SetProcess(int pid, UniqueFd pidfd);
  void ForgetProcess() { pidfd_.reset(); }

  // Whether the client has published something that Drain has not read.
  bool HasWork() const { return view_->head() != tail_; }
  // Reads at most `budget` descriptors; *read counts them.  INVALID_ARGUMENT: the client has broken
  // its protocol; the caller poisons it.
  absl::Status Drain(size_t budget, const Sink& sink, size_t* read);

  // The request is over: tells its slot. A plan that was registered is usable from now on.
  void Finish(const Request& request, const Outcome& outcome);
  // Fails everything pending and later. Wakes all.
  void Poison(const Outcome& outcome);
  bool poisoned() const { return view_->poisoned(); }

  // Requests taken and not finished.
  size_t in_flight() const { return in_flight_; }
  // Grows with every request that is taken or finished.
  uint64_t activity() const { return 2 * tail_ - in_flight_; }

 private:
  absl::Status Take(const arena::Descriptor& descriptor, const Sink& sink);
  void Refuse(const arena::Descriptor& descriptor);
  // Goes on where the daemon before this one stopped: what it had taken and not finished fails.
  void Inherit();
  bool IsOfFormerDaemon(const arena::Descriptor& descriptor) const;
  void JudgeBy(uint32_t group, DescriptorContext* context) const;
  void NoteGroup(const Request& request);
  absl::Status KeepPlan(const Request& request);

  const ClientIdentity identity_;
  std::unique_ptr<ArenaView> view_;
  UniqueFd doorbell_;
  UniqueFd pidfd_;
  int pid_ = 0;
  uint64_t tail_ = 0;
  uint64_t serial_ = 1;
  size_t in_flight_ = 0;
  std::vector<bool> busy_slots_;
  // By wire::ChannelId.
  std::map<uint64_t, std::shared_ptr<const Plan>> plans_;      // Agreed on.
  std::map<uint64_t, std::shared_ptr<const Plan>> new_plans_;  // Being agreed on.
  struct Membership {
    int rank = 0;
    std::vector<int> members;
  };
  std::map<uint32_t, Membership> groups_;  // Agreed on, but for group 0.
  uint64_t plan_bytes_ = 0;
  Outcome poison_;
};

// The outcome of an operation on their memory: kPeerFailed where some of it was taken away.
Outcome WithoutLostMemory(const std::vector<std::unique_ptr<Request>>& requests,
                          const Outcome& outcome);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ARENA_CLIENT_H_
