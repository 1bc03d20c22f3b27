#include "client/cli/run/foreground_job.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/output/report.h"
#include "common/process/exit_text.h"
#include "common/status/macros.h"

namespace ringd::cli {

using namespace ringd::cluster::v1;  // NOLINT: one proto package's names, in a .cc.

namespace {

constexpr absl::Duration kRetryPause = absl::Milliseconds(200);
// Output that a job had written when it ended is here by then.
constexpr absl::Duration kOutputTimeout = absl::Seconds(10);
// Between the second interrupt and giving up on the job.
constexpr absl::Duration kKillTimeout = absl::Seconds(3);
// Who waits for less need not be told.
constexpr absl::Duration kMinPatience = absl::Seconds(5);
constexpr int kSignalBase = 128;

void Say(const std::string& text) {
  WriteFully(STDERR_FILENO, absl::StrCat("ringctl: ", text, "\n"));
}

}  // namespace

ForegroundJob::ForegroundJob(ClusterClient* client, Interrupts* interrupts, Options options)
    : client_(client),
      interrupts_(interrupts),
      options_(std::move(options)),
      output_(STDOUT_FILENO, STDERR_FILENO, options_.ranks > 1, options_.take_output) {}

ForegroundJob::~ForegroundJob() {
  if (interrupts_ != nullptr) interrupts_->SetHandler(nullptr);
  for (CallGroup* calls : {&watch_calls_, &logs_calls_, &hold_calls_}) calls->Cancel();
  for (std::thread* thread : {&hold_thread_, &logs_thread_}) {
    if (thread->joinable()) thread->join();
  }
}

absl::StatusOr<int> ForegroundJob::Run(const std::string& job) {
  job_id_ = job;
  job_.set_id(job);
  if (options_.hold) hold_thread_ = std::thread([this] { HoldLoop(); });
  if (options_.show_output) logs_thread_ = std::thread([this] { LogsLoop(); });
  if (interrupts_ != nullptr) interrupts_->SetHandler([this](int count) { Interrupt(count); });
  const absl::Status watched = WatchLoop();
  watch_done_.Notify();
  AwaitOutput();
  if (!watched.ok() && !gave_up_ && !output_lost_) return watched;
  if (IsFinal(job_.state())) WriteFully(STDERR_FILENO, FailureReport(job_));
  return ExitCode();
}

int ForegroundJob::ExitCode() const {
  if (job_.state() == JOB_STATE_SUCCEEDED) return 0;
  if (output_lost_) return kSignalBase + SIGPIPE;
  const int signal = interrupts_ == nullptr ? 0 : interrupts_->first_signal();
  if (signal != 0) return kSignalBase + signal;
  return ExitCodeOf(job_);
}

void ForegroundJob::Interrupt(int count) {
  const std::string name = SignalName(interrupts_->first_signal());
  if (count == 1) {
    Say(absl::StrCat(name, ": ending job ", job_id_, "; once more kills it"));
    if (const auto job = client_->Cancel(job_id_, absl::StrCat("ringctl run received ", name));
        !job.ok()) {
      Say(absl::StrCat("can't cancel: ", job.status().message()));
    }
  } else if (count == 2) {
    Say("killing it");
    (void)client_->Signal(job_id_, SIGKILL);
    if (watch_done_.WaitForNotificationWithTimeout(kKillTimeout)) return;
    gave_up_ = true;
    watch_calls_.Cancel();
    logs_calls_.Cancel();
  } else {
    gave_up_ = true;
    watch_calls_.Cancel();
    logs_calls_.Cancel();
  }
}

void ForegroundJob::HoldLoop() {
  const auto over = [this] { return hold_calls_.cancelled(); };
  while (!over()) {
    const absl::Status status = client_->Hold(job_id_, &hold_calls_);
    if (status.ok() || absl::IsNotFound(status)) return;
    for (absl::Duration slept; slept < kRetryPause && !over(); slept += kRetryPause / 10) {
      absl::SleepFor(kRetryPause / 10);
    }
  }
}

bool ForegroundJob::PauseBeforeRetry(absl::Time since) {
  if (absl::Now() - since > options_.patience) return false;
  if (options_.check_health && !options_.check_health().ok()) return false;
  absl::SleepFor(kRetryPause);
  return true;
}

void ForegroundJob::LogsLoop() {
  LogsRequest request;
  request.set_job(job_id_);
  request.set_rank(-1);
  request.set_follow(true);
  absl::Time answered = absl::Now();
  while (!logs_calls_.cancelled()) {
    const absl::Status status = client_->Logs(request, &logs_calls_, [&](const LogChunk& chunk) {
      answered = absl::Now();
      if (output_.Write(chunk)) return true;
      OutputLost();
      return false;
    });
    if (!absl::IsUnavailable(status) || !PauseBeforeRetry(answered)) {
      const bool expected = status.ok() || logs_calls_.cancelled() || absl::IsUnavailable(status);
      if (!expected) Say(absl::StrCat("no output: ", status.message()));
      break;
    }
    output_.Restart();
  }
  output_.Finish();
  logs_done_.Notify();
}

void ForegroundJob::OutputLost() {
  output_lost_ = true;
  (void)client_->Cancel(job_id_, "nobody reads the output of ringctl run any more");
}

void ForegroundJob::OnChange(const Job& job) {
  const bool changed = job.state() != job_.state() || job.reason() != job_.reason();
  const bool waits = job.state() == JOB_STATE_QUEUED && !job.reason().empty();
  if (changed && (options_.verbose || (waits && options_.hold))) {
    Say(absl::StrCat("job ", job.id(), " ", StateSentence(job)));
  } else if (job.stall() != job_.stall() && job.state() == JOB_STATE_RUNNING) {
    Say(job.stall().empty() ? "the stall is over" : absl::StrCat("stalled: ", job.stall()));
  }
  job_ = job;
}

absl::Status ForegroundJob::WatchLoop() {
  absl::Time answered = absl::Now();
  bool told = false;
  while (true) {
    const absl::Status status = client_->Watch(job_id_, &watch_calls_, [&](const Job& job) {
      answered = absl::Now();
      if (told) Say("the scheduler is back");
      told = false;
      OnChange(job);
      return true;
    });
    if (IsFinal(job_.state())) return absl::OkStatus();
    if (watch_calls_.cancelled()) return absl::CancelledError("given up");
    if (!status.ok() && !absl::IsUnavailable(status)) return status;
    if (options_.check_health) RINGD_RETURN_IF_ERROR(options_.check_health());
    if (!told && !status.ok() && options_.patience > kMinPatience) {
      Say(absl::StrCat("lost the scheduler at ", client_->address(), "; looking for it"));
      told = true;
    }
    if (!PauseBeforeRetry(answered)) {
      return status.ok() ? absl::UnavailableError("the scheduler went away") : status;
    }
  }
}

void ForegroundJob::AwaitOutput() {
  if (!logs_thread_.joinable()) return;
  const bool has_output = IsFinal(job_.state()) && !job_.refused() && !output_lost_;
  if (!has_output || !logs_done_.WaitForNotificationWithTimeout(kOutputTimeout))
    logs_calls_.Cancel();
  logs_thread_.join();
}

}  // namespace ringd::cli
