// Runs a NodeMachine: feeds it what happens, carries out what it decides.
#ifndef RINGD_DAEMON_MEMBERSHIP_NODE_DRIVER_H_
#define RINGD_DAEMON_MEMBERSHIP_NODE_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/sync/mutex.h"
#include "daemon/engine/engine.h"
#include "daemon/logs/log_reader.h"
#include "daemon/membership/node_machine.h"
#include "daemon/membership/record_store.h"
#include "daemon/membership/scheduler_link.h"
#include "daemon/membership/task_pool.h"
#include "daemon/ranks/process_watcher.h"
#include "daemon/ranks/rank_spawner.h"
#include "daemon/session/arena_server.h"
#include "daemon/session/session_table.h"
#include "daemon/session/worker_observer.h"

namespace ringd::daemon {

// All outlive the driver's Stop. link may be null: a daemon without a scheduler.
struct NodeDriverParts {
  Engine* engine = nullptr;
  SessionTable* table = nullptr;
  ArenaServer* arenas = nullptr;
  const RankSpawner* spawner = nullptr;
  ProcessWatcher* watcher = nullptr;
  const RecordStore* records = nullptr;
};

// Owns the membership thread with its mailbox, and through it the machine.
//
// Life: constructor; Restore (before the server listens); Start, which connects the scheduler;
// Stop. Thread-safe after Start. Failure: `exit` is called (on the membership thread) when the
// daemon has to go, with why.
class NodeDriver : public WorkerObserver {
 public:
  struct Options {
    NodeMachineOptions machine;
    SchedulerLinkOptions scheduler;  // Empty address: none.
    LogReaderOptions logs;
    absl::Duration connect_timeout = absl::InfiniteDuration();  // Embedded: of the first welcome.
  };

  NodeDriver(Options options, NodeDriverParts parts, std::function<void(std::string reason)> exit);
  ~NodeDriver() override;

  // Takes over the jobs that the daemon before us left. Returns how many.
  int Restore();
  void Start();
  // Ends all ranks: TERM, after `grace` KILL (zero: KILL at once). Blocks until nothing is left or
  // `timeout` has passed; false: something may be left.
  bool EndRanks(absl::Duration grace, const std::string& reason, absl::Duration timeout);
  // The job's operations fail on this node: ranks that end by that say so. Thread-safe from Restore
  // on.
  void FailJob(const std::string& job, const std::string& reason);
  // Ends the thread; ranks that run go on.
  void Stop();

  bool scheduler_connected() const { return connected_.load(); }
  std::vector<std::string> Jobs();

  void OnWorkerAttached(const std::string& job, int rank, uint64_t line, pid_t pid) override;
  void OnWorkerReport(const std::string& job, int rank, node::v1::WorkerReport report) override;
  void OnWorkerDetached(const std::string& job, int rank, uint64_t line) override;

 private:
  void Run();
  void Post(Event event);
  void SetEngineEvents();
  void StartLink();
  void HandleAll(Event event);
  void FlushRecords();

  void Do(action::SendReport& action);
  void Do(const action::Disconnect& action);
  void Do(const action::PersistTerm& action);
  void Do(const action::CheckCommand& action);
  void Do(const action::PrepareRing& action);
  void Do(const action::OpenJob& action);
  void Do(const action::CloseJob& action);
  void Do(const action::SpawnWorker& action);
  void Do(action::OrderWorker& action);
  void Do(const action::WatchWorker& action);
  void Do(const action::SweepRank& action);
  void Do(const action::EndRank& action);
  void Do(const action::FailJob& action);
  void Do(const action::RemoveJob& action);
  void Do(action::WriteRecord& action);
  void Do(const action::RemoveRecord& action);
  void Do(const action::Log& action);
  void Do(const action::Exit& action);
  void Do(const action::Finished& action);

  const Options options_;
  const NodeDriverParts parts_;
  const std::function<void(std::string)> exit_;
  std::atomic<bool> connected_{false};

  // Of the membership thread (before Start: of the thread that calls Restore).
  NodeMachine machine_;
  std::deque<Event> answers_;  // Of actions that were carried out at once: come before the mailbox.
  std::map<std::string, v1::JobRecord>
      dirty_;  // Records to be written once the mailbox's batch is done.

  Mutex mu_;
  CondVar changed_;
  std::deque<Event> mailbox_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::string> jobs_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
  // Their threads post to the mailbox. The link answers to the log reader and the other way round:
  // Stop ends the link's thread, then the reader.
  std::unique_ptr<SchedulerLink> link_;
  std::unique_ptr<LogReader> logs_;
  std::unique_ptr<TaskPool> tasks_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MEMBERSHIP_NODE_DRIVER_H_
