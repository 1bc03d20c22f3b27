// The engine's insides, for engine.cc and for tests that bring their own communicator.
#ifndef RINGD_DAEMON_ENGINE_ENGINE_IMPL_H_
#define RINGD_DAEMON_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/sync/mutex.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/job.h"
#include "daemon/transport/data_port.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {

// Engine with its makers as arguments.
class EngineImpl : public Engine {
 public:
  struct Options {
    // Null: no rings; jobs of several nodes are refused. Called once, before the thread runs; used
    // on it.
    std::function<absl::StatusOr<std::unique_ptr<DataPort>>(EventLoop*)> make_data_port;
    std::string data_host;  // Of data_address().
    // sockets: of the generation's ring, taken over; {-1, -1} on one node. ring_failed: called on
    // the engine's thread, inside Progress. Null: this engine has no communicator for such a
    // layout. A job's ring measures, its groups' use the costs.
    std::function<std::unique_ptr<Communicator>(const JobGeneration&, RingSockets, EventLoop*,
                                                RingFailure ring_failed, RingTuning)>
        make_communicator;
  };

  // UNAVAILABLE: the data port can't listen.
  static absl::StatusOr<std::unique_ptr<EngineImpl>> Create(Options options);
  ~EngineImpl() override;

  std::string data_address() const override { return data_address_; }
  void PrepareJob(const JobGeneration& generation, std::function<void(absl::Status)> done) override;
  void RemoveJob(const std::string& job, const Outcome& outcome,
                 std::function<void()> done) override;
  absl::StatusOr<int> AddClient(const std::string& job, int rank, uint64_t arena,
                                ArenaSegment segment) override;
  absl::StatusOr<int> ShareSegment(const std::string& job) override;
  absl::Status AddSegment(const std::string& job, int rank, uint64_t arena, uint32_t index,
                          ArenaSegment segment) override;
  absl::Status SetClientProcess(const std::string& job, int rank, uint64_t arena, int pid,
                                int pidfd) override;
  void RemoveClient(const std::string& job, int rank, uint64_t arena) override;
  void RankEnded(const std::string& job, int rank, const Outcome& outcome) override;
  void FailJob(const std::string& job, const Outcome& outcome) override;
  void SetEvents(Events events) override;
  void Stop() override;

  // Times that the thread found work only because the backstop timer woke it: 0, or a wake-up was
  // lost.
  uint64_t backstops() const { return backstops_.load(std::memory_order_relaxed); }

 private:
  explicit EngineImpl(Options options);

  // Runs `message` on the engine's thread. False: the engine has stopped; it won't run.
  bool Post(std::function<void()> message);
  // Runs it there and waits. UNAVAILABLE: the engine has stopped.
  absl::Status Call(std::function<absl::Status()> message);
  bool RunMessages();

  void Run();
  bool Work();
  bool DrainJobs();
  void Idle();
  void Sleep();
  void CountIfLost();
  void Finish();
  void CheckJobs(int64_t now_us);
  bool HasWork();
  void SetSleeping(bool sleeping);

  void Prepare(const JobGeneration& generation, std::function<void(absl::Status)> done);
  void OnRing(const JobGeneration& generation, absl::StatusOr<RingSockets> sockets);
  absl::Status BeginJob(const JobGeneration& generation, RingSockets sockets);
  void OnRingFailed(const std::string& job, const Outcome& outcome);
  // Job::Events::open_communicator.
  void OpenCommunicator(const JobGeneration& generation, const RingTuning& tuning, uint32_t group,
                        const GroupLayout& layout, const std::vector<int>& nodes,
                        Messages::Opened opened);
  void OnRingWanted(const RingRequest& request);
  void CloseRings(const std::string& job);
  void Remove(const std::string& job, const Outcome& outcome, std::function<void()> done);
  void ReapRemoved();
  void UpdateRings();
  Job* FindJob(const std::string& job);

  struct Leaving {
    std::unique_ptr<Job> job;
    std::function<void()> done;
  };

  const Options options_;
  const uint64_t incarnation_;
  std::string data_address_;
  std::thread thread_;
  EventLoop loop_;

  std::atomic<bool> has_messages_{false};
  std::atomic<uint64_t> backstops_{0};
  Mutex mu_;
  std::vector<std::function<void()>> messages_ ABSL_GUARDED_BY(mu_);
  bool accepting_ ABSL_GUARDED_BY(mu_) = true;

  // The engine's thread.
  std::unique_ptr<DataPort> data_port_;
  Events events_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  struct Preparing {
    uint64_t generation = 0;
    std::function<void(absl::Status)> done;
  };
  std::map<std::string, Preparing> preparing_;  // Jobs whose ring is being made.
  // Rings of groups that are being made: job, generation, group, peer (DataPort::CloseRing).
  using GroupRing = std::tuple<std::string, uint64_t, uint16_t, int>;
  std::set<GroupRing> opening_;
  std::vector<Leaving> leaving_;
  bool stopping_ = false;
  bool may_pause_ = false;  // More than one CPU: a short spin costs nobody.
  bool has_rings_ = false;  // Some job has peers: their sockets are looked at in every round.
  int64_t last_work_us_ = 0;
  int64_t next_check_us_ = 0;
  uint64_t faults_seen_ = 0;
  uint32_t rounds_ = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ENGINE_IMPL_H_
