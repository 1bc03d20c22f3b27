// NodeMachine: the life of a rank.
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/process/exit_text.h"
#include "daemon/membership/node_machine.h"

namespace ringd::daemon {
namespace {

bool Failed(const cluster::v1::RankUpdate& update) {
  return update.start_failed() ||
         (update.exited() && (update.exit_code() != 0 || update.signal() != 0));
}

// What a worker says is a user's process's word: bounded before it travels on.
constexpr size_t kMaxTailBytes = 4096;
constexpr size_t kMaxReasonBytes = 1024;
constexpr int kStartFailedCode = 127;  // As shells say it.

std::string Bounded(const std::string& text, size_t bytes) {
  return text.size() <= bytes ? text : text.substr(text.size() - bytes);
}

}  // namespace

std::string NodeMachine::ExitSentence(const cluster::v1::RankUpdate& update) const {
  return RankEndSentence({.rank = update.rank(),
                          .node = options_.hello.name(),
                          .exit_code = update.exit_code(),
                          .signal = update.signal(),
                          .start_failed = update.start_failed(),
                          .reason = update.reason(),
                          .stderr_tail = update.stderr_tail()});
}

Cause NodeMachine::EndCause(const cluster::v1::RankUpdate& update) const {
  Cause cause;
  cause.kind = Cause::Kind::kPeerFailed;
  // Of a rank that has finished the engine knows more: after how many operations, and which one
  // waits.
  const bool finished = update.exit_code() == 0 && update.signal() == 0 && !update.start_failed();
  if (!finished) cause.message = ExitSentence(update);
  cause.failure.set_rank(update.rank());
  cause.failure.set_node(options_.hello.name());
  cause.failure.set_exit_code(update.exit_code());
  cause.failure.set_signal(update.signal());
  cause.failure.set_stderr_tail(update.stderr_tail());
  cause.failure.set_reason(update.reason());
  return cause;
}

void NodeMachine::StartRank(Job& job, Rank& rank) {
  rank.state = Rank::State::kSpawned;
  rank.deadline = now_.monotonic + kAttachTimeout;
  actions_.push_back(action::SpawnWorker{job.order, rank.last.rank()});
}

void NodeMachine::On(const event::WorkerSpawned& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr) return;
  rank->last.set_worker_pid(event.pid);
  rank->last.set_log_path(event.log_path);
  rank->worker_start_time = event.start_time;
  Write(*job);
  SendRank(*rank);
}

void NodeMachine::On(const event::SpawnFailed& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr || rank->state == Rank::State::kEnded) return;
  rank->last.set_start_failed(true);
  rank->last.set_exit_code(kStartFailedCode);
  rank->last.set_reason(event.reason);
  EndRank(*job, *rank);
  MarkGone(*job, *rank);
}

void NodeMachine::On(const event::WorkerAttached& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr) return;
  rank->line = event.line;
  if (rank->state != Rank::State::kEnded) rank->deadline = absl::InfiniteFuture();
  if (rank->last.worker_pid() != event.pid) {
    rank->last.set_worker_pid(event.pid);
    rank->worker_start_time = event.start_time;
    Write(*job);
    actions_.push_back(action::WatchWorker{event.job, event.rank, event.pid, event.start_time});
  }
  node::v1::WorkerOrder order;
  if (rank->state == Rank::State::kEnded) {
    order.mutable_acknowledge();
    OrderRank(*job, *rank, std::move(order));
  } else if (job->terminated) {
    *order.mutable_terminate()->mutable_grace() = job->stop.grace();
    order.mutable_terminate()->set_reason(job->stopping ? StopCause(*job).message : job->trouble);
    OrderRank(*job, *rank, std::move(order));
  }
}

void NodeMachine::On(const event::WorkerDetached& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr || rank->line != event.line) return;
  rank->line = 0;
  if (rank->state != Rank::State::kEnded)
    rank->deadline = now_.monotonic + options_.reattach_timeout;
}

void NodeMachine::On(const event::WorkerReported& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr) return;
  if (rank->state != Rank::State::kEnded) {
    if (event.report.has_started()) {
      rank->state = Rank::State::kRunning;
      rank->last.set_pid(event.report.started().pid());
      Write(*job);
      return SendRank(*rank);
    }
    if (event.report.has_exited()) {
      const node::v1::RankExited& exited = event.report.exited();
      rank->last.set_exited(true);
      rank->last.set_exit_code(exited.signal() == 0 ? exited.exit_code() : 0);
      rank->last.set_signal(exited.signal());
      rank->last.set_stderr_tail(Bounded(exited.stderr_tail(), kMaxTailBytes));
      rank->last.set_reason(Bounded(exited.reason(), kMaxReasonBytes));
      EndRank(*job, *rank);
    } else if (event.report.has_failed()) {
      rank->last.set_start_failed(true);
      rank->last.set_exit_code(kStartFailedCode);
      rank->last.set_reason(Bounded(event.report.failed().reason(), kMaxReasonBytes));
      EndRank(*job, *rank);
    }
  }
  if (event.report.has_exited() || event.report.has_failed()) {
    node::v1::WorkerOrder order;
    order.mutable_acknowledge();
    OrderRank(*job, *rank, std::move(order));
  }
}

void NodeMachine::EndRank(Job& job, Rank& rank) {
  rank.state = Rank::State::kEnded;
  rank.deadline = now_.monotonic + kWorkerExitTimeout;
  rank.last.set_exited_us(now_.wall_us);
  const bool failed = Failed(rank.last);
  if (failed) {
    rank.last.set_followed(job.failed);
    if (rank.last.reason().empty())
      rank.last.set_reason(!job.trouble.empty() ? job.trouble : rank.blame);
    job.failed = true;
  }
  const Cause cause = EndCause(rank.last);
  LogText(failed ? action::Log::Level::kWarning : action::Log::Level::kInfo,
          absl::StrCat("rank ended job=", job.name(), " rank=", rank.last.rank(),
                       " how=", failed ? cause.message : "finished"));
  actions_.push_back(action::EndRank{job.name(), rank.last.rank(), cause});
  Write(job);
  SendRank(rank);
}

void NodeMachine::LoseRank(Job& job, Rank& rank, const std::string& reason) {
  if (rank.state == Rank::State::kEnded) return;
  rank.last.set_exited(true);
  rank.last.set_exit_code(0);
  rank.last.set_signal(SIGKILL);  // That is what the sweep sends.
  rank.last.set_reason(reason);
  EndRank(job, rank);
}

void NodeMachine::On(const event::WorkerEnded& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr || rank->last.worker_pid() != event.pid || rank->worker_ended) return;
  rank->worker_ended = true;
  rank->line = 0;
  LoseRank(*job, *rank,
           absl::StrCat("its ringd-worker (pid ", event.pid, ") ",
                        event.how.empty() ? "is gone" : event.how, "; the rank was ended with it"));
  Sweep(*job, *rank);
}

void NodeMachine::Sweep(Job& job, Rank& rank) {
  if (rank.sweeping || rank.gone) return;
  rank.sweeping = true;
  rank.deadline = absl::InfiniteFuture();
  actions_.push_back(action::SweepRank{job.order, rank.last.rank(), rank.last.pid(),
                                       rank.worker_ended ? 0 : rank.last.worker_pid()});
}

void NodeMachine::On(const event::RankSwept& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr || !rank->sweeping || rank->gone) return;
  MarkGone(*job, *rank);
}

void NodeMachine::MarkGone(Job& job, Rank& rank) {
  rank.gone = true;
  rank.sweeping = false;
  rank.deadline = absl::InfiniteFuture();
  Write(job);
  RemoveIfOver(job);
}

void NodeMachine::On(const event::ClientFailed& event) {
  Job* job = nullptr;
  Rank* rank = Find(event.job, event.rank, &job);
  if (rank == nullptr) return;
  if (rank->blame.empty()) rank->blame = absl::StrCat("its client was dropped: ", event.reason);
  LogText(action::Log::Level::kWarning, absl::StrCat("client failed job=", event.job, " rank=",
                                                     event.rank, " reason=", event.reason));
}

void NodeMachine::On(const event::Stalled& event) {
  Job* job = Find(event.job);
  if (job == nullptr || job->phase != Phase::kRunning) return;
  job->stall = {event.report, event.names_rank, now_.monotonic - absl::Microseconds(event.age_us)};
  SendStall(*job);
}

void NodeMachine::SendStall(const Job& job) {
  cluster::v1::NodeReport report;
  cluster::v1::Stalled& stalled = *report.mutable_stalled();
  stalled.set_job(job.name());
  stalled.set_generation(job.order->generation());
  stalled.set_report(job.stall.report);
  stalled.set_age_us(absl::ToInt64Microseconds(now_.monotonic - job.stall.since));
  stalled.set_names_rank(job.stall.names_rank);
  Say(std::move(report));
}

void NodeMachine::OrderRank(const Job& job, const Rank& rank, node::v1::WorkerOrder order) {
  if (rank.line == 0) return;
  actions_.push_back(action::OrderWorker{job.name(), rank.last.rank(), std::move(order)});
}

void NodeMachine::TerminateRanks(Job& job) {
  node::v1::WorkerOrder order;
  *order.mutable_terminate()->mutable_grace() = job.stop.grace();
  order.mutable_terminate()->set_reason(job.stopping ? StopCause(job).message : job.trouble);
  for (const auto& [number, rank] : job.ranks) {
    if (rank.state != Rank::State::kEnded) OrderRank(job, rank, order);
  }
}

void NodeMachine::TickJob(Job& job) {
  if (job.phase != Phase::kRunning) return;
  if (!job.terminated && now_.monotonic >= job.terminate_at) {
    job.terminated = true;
    if (!job.stopping && !job.stop.has_grace()) {
      const google::protobuf::Duration& grace = job.order->spec().grace();
      *job.stop.mutable_grace() = grace;
      if (!job.order->spec().has_grace()) {
        job.stop.mutable_grace()->set_seconds(absl::ToInt64Seconds(kDefaultGrace));
      }
    }
    if (job.kill_at == absl::InfiniteFuture()) {
      job.kill_at = now_.monotonic + absl::Seconds(job.stop.grace().seconds()) + kKillMargin;
    }
    TerminateRanks(job);
  }
  const bool kill = !job.killed && now_.monotonic >= job.kill_at;
  if (kill) job.killed = true;
  // Ranks may go, and the job with them, on the way.
  for (auto& [number, rank] : job.ranks) {
    if (kill && !rank.gone) {
      LoseRank(job, rank,
               absl::StrCat("it was still there when its time to end was over",
                            job.stop.reason().empty() ? "" : " (", job.stop.reason(),
                            job.stop.reason().empty() ? "" : ")"));
      Sweep(job, rank);
    } else {
      TickRank(job, rank);
    }
  }
}

void NodeMachine::TickRank(Job& job, Rank& rank) {
  if (now_.monotonic < rank.deadline) return;
  rank.deadline = absl::InfiniteFuture();
  if (rank.state == Rank::State::kSpawned) {
    LoseRank(job, rank, "its ringd-worker did not attach in time");
  } else if (rank.state == Rank::State::kRunning) {
    LoseRank(job, rank, "its ringd-worker lost its connection and did not come back in time");
  }
  Sweep(job, rank);
}

}  // namespace ringd::daemon
