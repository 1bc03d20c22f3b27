// A job that ringctl stands for: held, shown, interrupted, reported.
#ifndef RINGD_CLIENT_CLI_RUN_FOREGROUND_JOB_H_
#define RINGD_CLIENT_CLI_RUN_FOREGROUND_JOB_H_

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/cli/output/rank_output.h"
#include "client/cli/run/cluster_client.h"
#include "client/cli/run/interrupts.h"

namespace ringd::cli {

// Life: construct, Run once.
// Thread-bound: the constructing thread.
class ForegroundJob {
 public:
  struct Options {
    int ranks = 1;
    bool verbose = false;  // Say each change of state.
    bool hold = true;      // False: only watch (`wait`, `logs -f` of somebody else's job).
    bool show_output = true;
    RankOutput::Taker take_output;  // Gets the ranks' standard output; empty: ringctl's own does.
    absl::Duration patience;        // How long to look for a scheduler that has gone.
    std::function<absl::Status()>
        check_health;  // Asked while the scheduler doesn't answer; error: no use to try again.
  };
  // client, interrupts outlive this. interrupts may be null.
  ForegroundJob(ClusterClient* client, Interrupts* interrupts, Options options);
  ~ForegroundJob();

  // Blocks until the job has ended and its output is written; writes the report of a failure to
  // standard error. The exit code of ringctl: the job's, 128 + signal after an interrupt, 141 when
  // nobody reads the output any more. UNAVAILABLE: the scheduler went and didn't come back.
  absl::StatusOr<int> Run(const std::string& job);

 private:
  void Interrupt(int count);
  void HoldLoop();
  void LogsLoop();
  absl::Status WatchLoop();
  // False: give up.
  bool PauseBeforeRetry(absl::Time since);
  void OnChange(const ringd::cluster::v1::Job& job);
  void OutputLost();
  void AwaitOutput();
  int ExitCode() const;

  ClusterClient* const client_;
  Interrupts* const interrupts_;
  const Options options_;
  std::string job_id_;
  ringd::cluster::v1::Job job_;  // As last seen by the watch.
  RankOutput output_;
  CallGroup watch_calls_;
  CallGroup logs_calls_;
  CallGroup hold_calls_;
  absl::Notification watch_done_;
  absl::Notification logs_done_;
  std::atomic<bool> output_lost_ = false;
  std::atomic<bool> gave_up_ = false;  // The user wants no more waiting.
  std::thread hold_thread_;
  std::thread logs_thread_;
};

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_FOREGROUND_JOB_H_
