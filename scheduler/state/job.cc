// A job from its first report to its end: ranks, failures, stop.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/state/machine.h"
#include "scheduler/state/text.h"
#include "scheduler/state/times.h"

namespace ringd::scheduler {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.

namespace {

bool Ended(const Rank& rank) { return rank.state() != "pending" && rank.state() != "running"; }

}  // namespace

void Machine::OnPrepared(Node* node, const Prepared& report) {
  Job* job = Find(report.job());
  if (job == nullptr || job->State() != JOB_STATE_FORMING || job->Stopping() ||
      report.generation() != job->record.job().generation() ||
      !IsPlacedOn(*job, node->record.name())) {
    return;  // Of an attempt that is over.
  }
  if (!report.ok()) {
    const std::string reason = Truncated(report.reason(), kMaxReasonBytes);
    if (!report.bad_input()) return FormAgain(job, reason);
    job->record.mutable_job()->set_refused(true);
    return BeginStop(job, JOB_STATE_FAILED, 2, reason);
  }
  job->prepared.insert(node->record.name());
  if (static_cast<int>(job->prepared.size()) == job->record.nodes_size()) return Commit(job);
  RefreshReason(job);
  Changed(*job);
}

void Machine::OnRank(Node* node, const RankUpdate& update) {
  Job* job = Find(update.job());
  if (job == nullptr || (job->State() != JOB_STATE_RUNNING && job->State() != JOB_STATE_FINISHING))
    return;
  ringd::cluster::v1::Job& shown = *job->record.mutable_job();
  if (update.generation() != shown.generation() || update.rank() < 0 ||
      update.rank() >= shown.rank_size())
    return;
  Rank* rank = shown.mutable_rank(update.rank());
  if (rank->node() != node->record.name() || Ended(*rank))
    return;  // Not its rank, or known already.
  if (update.pid() != 0) {
    job->started += rank->pid() == 0;
    rank->set_pid(update.pid());
    if (rank->state() == "pending") rank->set_state("running");
  }
  if (update.worker_pid() != 0) rank->set_worker_pid(update.worker_pid());
  if (!update.log_path().empty()) rank->set_log_path(Truncated(update.log_path(), kMaxReasonBytes));
  if (update.exited() || update.start_failed()) OnRankEnd(job, rank, *node, update);
  if (job->State() == JOB_STATE_RUNNING) RefreshReason(job);
  Persist(*job);
  Changed(*job);
}

void Machine::OnRankEnd(Job* job, Rank* rank, const Node& node, const RankUpdate& update) {
  ringd::cluster::v1::Job& shown = *job->record.mutable_job();
  rank->set_exit_code(update.exit_code());
  rank->set_signal(update.signal());
  rank->set_reason(Truncated(update.reason(), kMaxReasonBytes));
  ++job->ended;
  const bool failed = ExitCodeOf(update) != 0;
  if (!failed) {
    rank->set_state("exited");
  } else if (job->State() == JOB_STATE_FINISHING && !shown.has_first_failure()) {
    rank->set_state("removed");  // It was asked to leave.
  } else {
    OnFailure(job, rank, node, update);
  }
  if (job->State() != JOB_STATE_RUNNING || job->ended < shown.rank_size()) return;
  if (!shown.has_first_failure()) {
    return BeginStop(job, JOB_STATE_SUCCEEDED, 0,
                     shown.rank_size() == 1
                         ? "its rank exited with code 0"
                         : absl::StrCat("all ", shown.rank_size(), " ranks exited with code 0"));
  }
  BeginStop(job, JOB_STATE_FAILED, shown.exit_code(), shown.first_failure().reason());
}

void Machine::OnFailure(Job* job, Rank* rank, const Node& node, const RankUpdate& update) {
  ringd::cluster::v1::Job& shown = *job->record.mutable_job();
  const std::string& name = node.record.name();
  rank->set_state("followed");
  if (!shown.has_first_failure()) {
    SetFirstFailure(job, update, name, /*provisional=*/update.followed());
    if (update.followed()) {
      job->cause_end =
          now_.steady + options_.cause_wait;  // What it followed has not been reported yet.
    } else {
      BeginStop(job, JOB_STATE_FAILED, shown.exit_code(), shown.first_failure().reason());
    }
    return;
  }
  if (update.followed() || job->record.next_state() == JOB_STATE_SUCCEEDED) return;
  const int64_t known_us = job->record.first_failure_us();
  const bool earlier = update.exited_us() > 0 && known_us > 0 && update.exited_us() < known_us;
  if (!job->record.first_failure_provisional() && !earlier) return;
  SetFirstFailure(job, update, name, /*provisional=*/false);
  if (job->State() == JOB_STATE_RUNNING) {
    BeginStop(job, JOB_STATE_FAILED, shown.exit_code(), shown.first_failure().reason());
  } else {
    job->record.set_stop_reason(shown.first_failure().reason());
    RefreshReason(job);
  }
}

void Machine::SetFirstFailure(Job* job, const RankUpdate& update, const std::string& node,
                              bool provisional) {
  ringd::cluster::v1::Job& shown = *job->record.mutable_job();
  if (shown.has_first_failure() && shown.first_failure().rank() < shown.rank_size()) {
    shown.mutable_rank(shown.first_failure().rank())->set_state("followed");
  }
  FirstFailure& first = *shown.mutable_first_failure();
  first.set_rank(update.rank());
  first.set_node(node);
  first.set_exit_code(update.exit_code());
  first.set_signal(update.signal());
  first.set_stderr_tail(Truncated(update.stderr_tail(), kMaxTailBytes));
  first.set_reason(FailureSentence(update, node));
  shown.mutable_rank(update.rank())->set_state("failed");
  shown.set_exit_code(ExitCodeOf(update));
  job->record.set_first_failure_us(update.exited_us());
  job->record.set_first_failure_provisional(provisional);
}

void Machine::OnStalled(Node* node, const Stalled& report) {
  Job* job = Find(report.job());
  if (job == nullptr || job->State() != JOB_STATE_RUNNING ||
      report.generation() != job->record.job().generation() ||
      !IsPlacedOn(*job, node->record.name())) {
    return;
  }
  if (report.report().empty()) {
    job->stalls.erase(node->record.name());
  } else {
    job->stalls[node->record.name()] = {Truncated(report.report(), kMaxReasonBytes),
                                        report.names_rank(),
                                        now_.steady - absl::Microseconds(report.age_us())};
  }
  RefreshReason(job);
  Changed(*job);
}

// The report of a node that misses a rank of its own says most.
const Machine::Stall* Machine::ShownStall(const Job& job) {
  if (job.stalls.empty()) return nullptr;
  const auto naming = std::find_if(job.stalls.begin(), job.stalls.end(),
                                   [](const auto& stall) { return stall.second.names_rank; });
  return &(naming == job.stalls.end() ? job.stalls.begin() : naming)->second;
}

bool Machine::HasStalledForTooLong(const Job& job) const {
  if (!job.spec.has_stall_timeout()) return false;
  const absl::Duration timeout = ToDuration(job.spec.stall_timeout());
  return std::any_of(job.stalls.begin(), job.stalls.end(), [&](const auto& stall) {
    return now_.steady - stall.second.since >= timeout;
  });
}

void Machine::OnCleared(Node* node, const JobCleared& report) {
  const std::string& name = node->record.name();
  if (node->held.count(report.job()) == 0) return;
  Job* job = Find(report.job());
  if (!IsPartOf(job, name)) {
    Release(node, report.job());  // What was left of an earlier attempt.
    NodeOrder order;
    order.mutable_forget()->set_job(report.job());
    if (job == nullptr || job->record.job().has_finished()) Order(*node, std::move(order));
    return;
  }
  if (report.generation() != 0 && report.generation() != job->record.job().generation()) return;
  if (job->Stopping()) {
    Cleared(job, node);
    return MaybeFinish(job);
  }
  if (job->State() == JOB_STATE_RUNNING) {
    if (AllEndedOn(*job, name)) return Cleared(job, node);
    return FailForNode(job, *node, "it ended the job's ranks without a report");
  }
  if (report.generation() != 0) FormAgain(job, absl::StrCat("node ", name, " gave the job up"));
}

void Machine::FailForNode(Job* job, const Node& node, const std::string& why) {
  ringd::cluster::v1::Job& shown = *job->record.mutable_job();
  const std::string& name = node.record.name();
  const std::string reason = absl::StrCat("node ", name, ": ", why);
  const bool known = shown.has_first_failure();
  for (Rank& rank : *shown.mutable_rank()) {
    if (rank.node() != name || Ended(rank)) continue;
    rank.set_reason(reason);
    rank.set_state("followed");
    ++job->ended;
    if (shown.has_first_failure()) continue;
    rank.set_state("failed");
    FirstFailure& first = *shown.mutable_first_failure();
    first.set_rank(rank.rank());
    first.set_node(name);
    first.set_reason(absl::StrCat("rank ", rank.rank(), " (node ", name, ") is gone: ", why));
    shown.set_exit_code(1);
  }
  BeginStop(job, JOB_STATE_FAILED, shown.exit_code(),
            known ? shown.first_failure().reason() : absl::StrCat(shown.first_failure().reason()));
}

void Machine::BeginStop(Job* job, JobState next, int exit_code, const std::string& reason) {
  v1::JobRecord& record = job->record;
  ringd::cluster::v1::Job& shown = *record.mutable_job();
  queue_.erase(record.number());
  record.set_next_state(next);
  record.set_stop_reason(reason);
  shown.set_exit_code(exit_code);
  if (next != JOB_STATE_QUEUED) shown.set_state(JOB_STATE_FINISHING);
  job->form_end = absl::InfiniteDuration();
  job->run_end = absl::InfiniteDuration();
  job->cause_end = absl::InfiniteDuration();
  RefreshReason(job);
  Log(absl::StrCat("job stops job=", shown.id(), " next=", JobState_Name(next), " reason=\"",
                   reason, "\""));
  Persist(*job);
  Changed(*job);
  for (const GenerationNode& part : record.nodes()) {
    if (job->cleared.count(part.name()) == 0) SendStop(*job, nodes_[part.name()]);
  }
  MaybeFinish(job);
}

void Machine::SendStop(const Job& job, const Node& node) {
  const v1::JobRecord& record = job.record;
  NodeOrder order;
  Stop& stop = *order.mutable_stop();
  stop.set_job(record.job().id());
  stop.set_reason(record.stop_reason());
  const bool failed = record.next_state() == JOB_STATE_FAILED && record.job().has_first_failure();
  if (failed) *stop.mutable_cause() = record.job().first_failure();
  SetDuration(failed ? options_.stop_notice : absl::ZeroDuration(), stop.mutable_notice());
  SetDuration(options_.default_grace, stop.mutable_grace());
  if (job.spec.has_grace()) *stop.mutable_grace() = job.spec.grace();
  Order(node, std::move(order));
}

void Machine::Cleared(Job* job, Node* node) {
  job->cleared.insert(node->record.name());
  Release(node, job->record.job().id());
}

void Machine::MaybeFinish(Job* job) {
  if (!job->Stopping()) return;
  for (const GenerationNode& part : job->record.nodes()) {
    if (job->cleared.count(part.name()) != 0) continue;
    RefreshReason(job);
    return Changed(*job);
  }
  if (job->record.next_state() == JOB_STATE_QUEUED) return BackToQueue(job);
  Finish(job);
}

void Machine::Finish(Job* job) {
  v1::JobRecord& record = job->record;
  ringd::cluster::v1::Job& shown = *record.mutable_job();
  const uint64_t number = record.number();
  shown.set_state(record.next_state());
  shown.set_reason(record.stop_reason());
  SetTimestamp(now_.wall, shown.mutable_finished());
  for (Rank& rank : *shown.mutable_rank()) {
    if (!Ended(rank)) rank.set_state("removed");
  }
  record.clear_next_state();
  record.clear_key();
  record.clear_token();
  job->spec.clear_environment();  // May hold secrets, and nobody needs it any more.
  Persist(*job, /*with_spec=*/true);
  Changed(*job);
  Log(absl::StrCat("job ended job=", shown.id(), " state=", JobState_Name(shown.state()),
                   " exit_code=", shown.exit_code(), " reason=\"", shown.reason(), "\""));
  NodeOrder order;
  order.mutable_forget()->set_job(shown.id());
  for (const GenerationNode& part : record.nodes()) Order(nodes_[part.name()], order);
  active_.erase(number);
  queue_.erase(number);
  ++finished_count_;
  schedule_ = true;
  TrimFinished();
}

void Machine::RefreshReason(Job* job) {
  ringd::cluster::v1::Job& shown = *job->record.mutable_job();
  const JobState state = shown.state();
  std::vector<std::string> waiting;
  std::vector<std::string> away;
  for (const GenerationNode& part : job->record.nodes()) {
    const auto& done =
        state == JOB_STATE_FORMING && !job->Stopping() ? job->prepared : job->cleared;
    if (done.count(part.name()) == 0) waiting.push_back(part.name());
    const auto node = nodes_.find(part.name());
    if (node != nodes_.end() && node->second.state == Node::State::kAway)
      away.push_back(part.name());
  }
  std::string reason;
  std::string stall;
  if (state == JOB_STATE_FORMING) {
    reason = "forming";
    if (job->Stopping()) absl::StrAppend(&reason, " again: ", job->record.stop_reason());
    if (!waiting.empty())
      absl::StrAppend(&reason, job->Stopping() ? "; " : ": ", "waiting for ", NodeList(waiting));
  } else if (state == JOB_STATE_FINISHING) {
    reason = job->record.stop_reason();
    if (!waiting.empty()) absl::StrAppend(&reason, "; waiting for ", NodeList(waiting));
  } else if (state == JOB_STATE_RUNNING && !away.empty()) {
    reason = absl::StrCat("running: waiting for the daemon of ", NodeList(away), " to come back");
  } else if (state == JOB_STATE_RUNNING && job->started < shown.rank_size()) {
    reason = absl::StrCat("starting: ", job->started, " of ", Counted(shown.rank_size(), "rank"));
  } else if (const Stall* shown_stall = ShownStall(*job);
             state == JOB_STATE_RUNNING && shown_stall != nullptr) {
    stall = shown_stall->report;
    reason = absl::StrCat("stalled: ", stall);
  }
  shown.set_stall(stall);
  shown.set_reason(reason);
}

bool Machine::IsPlacedOn(const Job& job, const std::string& node) const {
  return std::any_of(job.record.nodes().begin(), job.record.nodes().end(),
                     [&](const GenerationNode& part) { return part.name() == node; });
}

bool Machine::IsPartOf(const Job* job, const std::string& node) const {
  return job != nullptr && !job->record.job().has_finished() && IsPlacedOn(*job, node) &&
         job->cleared.count(node) == 0;
}

bool Machine::AllEndedOn(const Job& job, const std::string& node) const {
  const auto& ranks = job.record.job().rank();
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const Rank& rank) { return rank.node() != node || Ended(rank); });
}

}  // namespace ringd::scheduler
