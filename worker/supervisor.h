// The life of one rank, from its start to the acknowledged report of its end.
#ifndef RINGD_WORKER_SUPERVISOR_H_
#define RINGD_WORKER_SUPERVISOR_H_

#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/fd.h"
#include "proto/node.pb.h"
#include "worker/client_server.h"
#include "worker/daemon_line.h"
#include "worker/logs/log_pump.h"
#include "worker/mailbox.h"
#include "worker/process/oom.h"
#include "worker/setup.h"

namespace ringd::worker {

// Signals that Run waits for. REQUIRES: blocked in every thread, from before the first one is
// started.
sigset_t SupervisedSignals();

// Attaching -> Running -> Sweeping (the rank's process has ended, what it left behind is ended) ->
// Reporting (until the daemon acknowledges) -> Done.
//
// Thread-bound: the main thread. Output, clients and the daemon's line have threads of their own.
class Supervisor {
 public:
  Supervisor(const node::v1::WorkerSpec& spec, PreparedRank rank);

  // Blocks until the worker may go. Returns its exit code: 0 if the rank's end was acknowledged.
  int Run();

 private:
  enum class State { kAttaching, kRunning, kSweeping, kReporting, kDone };

  void PollOnce();
  void HandleSignals();
  void HandleEvents();
  void HandleTimers();

  void OnAttached(const node::v1::AttachResponse& session);
  void OnOrder(const node::v1::WorkerOrder& order);
  void OnGivenUp(const absl::Status& status);

  void StartRank(const node::v1::AttachResponse& session);
  void Terminate(absl::Duration grace, const std::string& reason);
  void SendSignal(int signal);
  void Reap();
  void OnRankEnded(int wait_status, const rusage& usage);
  void FinishRank();
  bool EndedByOom() const;
  std::string ExitReason() const;
  void Report();

  const node::v1::WorkerSpec spec_;
  PreparedRank rank_;
  const OomWatch oom_;
  const UniqueFd signals_;
  Mailbox<LineEvent> events_;
  std::unique_ptr<LogPump> logs_;
  std::unique_ptr<DaemonLine> line_;
  std::unique_ptr<ClientServer> clients_;

  State state_ = State::kAttaching;
  bool line_gone_ = false;
  bool acknowledged_ = false;
  bool reaped_early_ = false;  // The process ended before it was started.
  bool killed_by_us_ = false;
  int64_t kill_at_us_;             // Of everything below the worker; again and again from then on.
  int64_t give_up_at_us_;          // Sweeping: what can't be killed is left behind. Reporting: no
                                   // acknowledgement came.
  node::v1::WorkerReport report_;  // Exited or failed, once known.
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_SUPERVISOR_H_
