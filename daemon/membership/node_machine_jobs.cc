// NodeMachine: the life of a job.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/reduce/reduce.h"
#include "daemon/membership/node_machine.h"

namespace ringd::daemon {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 64;  // attach::TokenGrant has room for these.

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

const cluster::v1::GenerationNode& Here(const cluster::v1::Prepare& order) {
  return order.nodes(order.node_index());
}

absl::Status CheckNodes(const cluster::v1::Prepare& order) {
  if (order.node_index() < 0 || order.node_index() >= order.nodes_size()) {
    return absl::InternalError("the scheduler's order has no place for this node in the ring");
  }
  int64_t next_rank = 0;
  for (const cluster::v1::GenerationNode& each : order.nodes()) {
    if (each.first_rank() != next_rank || each.rank_count() < 1 ||
        each.rank_count() > kMaxRanksOfNode) {
      return absl::InternalError(absl::StrCat(
          "the scheduler's order gives node ", each.name(), " ", each.rank_count(), " ranks from ",
          each.first_rank(), ": ranks must be dense and follow the order of nodes"));
    }
    next_rank += each.rank_count();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NodeMachine::CheckPrepare(const cluster::v1::Prepare& order) const {
  if (!IsSafeName(order.job()))
    return absl::InternalError("the scheduler's order names no proper job");
  if (absl::Status status = CheckNodes(order); !status.ok()) return status;
  if (order.nodes_size() > 1 && order.key().size() != kKeyBytes) {
    return absl::InternalError("the scheduler's order has no ring key of 32 bytes");
  }
  if (order.token().size() < kMinTokenBytes || order.token().size() > kMaxTokenBytes) {
    return absl::InternalError("the scheduler's order has no job token of 16 to 64 bytes");
  }
  if (order.spec().command().empty() || order.spec().command(0).empty()) {
    return absl::InvalidArgumentError("no command is given");
  }
  const cluster::v1::NodeHello& self = options_.hello;
  if (self.shared() && (order.uid() == 0 || order.uid() < options_.min_uid)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refuses jobs of uid ", order.uid(), ": a shared daemon serves users from min_uid ",
        options_.min_uid, " on; submit as an ordinary user"));
  }
  if (!self.shared() && order.uid() != self.uid()) {
    return absl::InvalidArgumentError(absl::StrCat("its private daemon serves uid ", self.uid(),
                                                   " alone, the job is uid ", order.uid(), "'s"));
  }
  if (const int ranks = Here(order).rank_count(); ranks > static_cast<int>(kMaxReduceBuffers)) {
    return absl::InvalidArgumentError(absl::StrCat("job ", order.job(), " wants ", ranks,
                                                   " ranks here and a node takes at most ",
                                                   kMaxReduceBuffers, " of a job: use more nodes"));
  }
  return absl::OkStatus();
}

void NodeMachine::OnPrepare(const cluster::v1::Prepare& order) {
  if (absl::Status status = CheckPrepare(order); !status.ok()) {
    return ReportPrepared(order.job(), order.generation(), status);
  }
  if (shutting_down_) {
    return ReportPrepared(order.job(), order.generation(),
                          absl::UnavailableError("its daemon is shutting down"));
  }
  if (const Job* old = Find(order.job()); old != nullptr && old->phase != Phase::kCleared) {
    if (old->order->generation() != order.generation()) {
      return ReportPrepared(
          order.job(), order.generation(),
          absl::UnavailableError(absl::StrCat("still holds generation ", old->order->generation(),
                                              " of job ", order.job())));
    }
    if (old->phase == Phase::kPrepared)
      ReportPrepared(order.job(), order.generation(), absl::OkStatus());
    return;
  }
  Job& job = jobs_[order.job()] = Job();
  job.order = std::make_shared<cluster::v1::Prepare>(order);
  const cluster::v1::GenerationNode& here = Here(order);
  for (int number = here.first_rank(); number < here.first_rank() + here.rank_count(); ++number) {
    cluster::v1::RankUpdate& last = job.ranks[number].last;
    last.set_job(order.job());
    last.set_generation(order.generation());
    last.set_rank(number);
  }
  actions_.push_back(action::CheckCommand{job.order});
}

void NodeMachine::ReportPrepared(const std::string& job, uint64_t generation,
                                 const absl::Status& status) {
  cluster::v1::NodeReport report;
  cluster::v1::Prepared* prepared = report.mutable_prepared();
  prepared->set_job(job);
  prepared->set_generation(generation);
  prepared->set_ok(status.ok());
  if (!status.ok()) {
    prepared->set_reason(absl::StrCat("node ", options_.hello.name(), ": ", status.message()));
    prepared->set_bad_input(absl::IsInvalidArgument(status));
    LogText(action::Log::Level::kWarning,
            absl::StrCat("job not prepared job=", job, " reason=", status.message()));
  }
  Say(std::move(report));
}

void NodeMachine::RefuseJob(Job& job, const absl::Status& status) {
  ReportPrepared(job.name(), job.order->generation(), status);
  BeginRemove(job);
}

void NodeMachine::On(const event::CommandChecked& event) {
  Job* job = Find(event.job);
  if (job == nullptr || job->order->generation() != event.generation ||
      job->phase != Phase::kChecking)
    return;
  if (!event.status.ok()) return RefuseJob(*job, event.status);
  job->phase = Phase::kConnecting;
  job->ring_asked = true;
  actions_.push_back(action::PrepareRing{job->order});
}

void NodeMachine::On(const event::RingPrepared& event) {
  Job* job = Find(event.job);
  if (job == nullptr || job->order->generation() != event.generation) return;
  if (job->phase == Phase::kRunning &&
      !event.status.ok()) {  // Taken over from the daemon before us.
    job->trouble = absl::StrCat("node ", options_.hello.name(), ": ", event.status.message());
    job->terminate_at = now_.monotonic;
    return TickJob(*job);
  }
  if (job->phase != Phase::kConnecting) return;
  if (!event.status.ok()) {
    // Whatever the engine calls it, a ring that can't be formed is not the user's mistake.
    return RefuseJob(*job, absl::UnavailableError(event.status.message()));
  }
  job->phase = Phase::kPrepared;
  ReportPrepared(job->name(), job->order->generation(), absl::OkStatus());
}

void NodeMachine::OnStart(const cluster::v1::Start& order) {
  Job* job = Find(order.job());
  if (job == nullptr || job->order->generation() != order.generation() ||
      job->phase != Phase::kPrepared)
    return;
  job->phase = Phase::kRunning;
  LogText(action::Log::Level::kInfo,
          absl::StrCat("job starts job=", job->name(), " generation=", order.generation(),
                       " ranks=", job->ranks.size()));
  actions_.push_back(action::OpenJob{job->order});
  Write(*job);
  for (auto& [number, rank] : job->ranks) StartRank(*job, rank);
}

void NodeMachine::OnStop(const cluster::v1::Stop& order) {
  Job* job = Find(order.job());
  if (job == nullptr || job->phase == Phase::kCleared) return SendCleared(order.job());
  if (job->phase == Phase::kRemoving) return;
  const absl::Duration notice = order.has_notice() ? ToDuration(order.notice()) : kDefaultNotice;
  absl::Duration grace = order.has_grace() ? ToDuration(order.grace()) : kDefaultGrace;
  if (!order.has_grace() && job->order->spec().has_grace())
    grace = ToDuration(job->order->spec().grace());
  // A second order can only bring the end nearer.
  const bool sooner =
      job->terminated && now_.monotonic + notice + grace + kKillMargin < job->kill_at;
  job->terminate_at = std::min(job->terminate_at, now_.monotonic + notice);
  job->kill_at = std::min(job->kill_at, now_.monotonic + notice + grace + kKillMargin);
  if (!job->stopping || order.has_cause()) job->stop = order;
  *job->stop.mutable_grace() = google::protobuf::Duration();
  job->stop.mutable_grace()->set_seconds(absl::ToInt64Seconds(grace));
  job->stop.mutable_grace()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(grace % absl::Seconds(1))));
  if (sooner) job->terminated = false;
  job->stopping = true;
  BeginStop(*job);
  if (job->phase == Phase::kRunning) TickJob(*job);
}

void NodeMachine::BeginStop(Job& job) {
  job.failed = true;
  if (job.phase != Phase::kRunning) return BeginRemove(job);
  const Cause cause = StopCause(job);
  LogText(action::Log::Level::kInfo,
          absl::StrCat("job stops job=", job.name(), " reason=", cause.message));
  if (job.ring_asked) actions_.push_back(action::FailJob{job.name(), cause});
  Write(job);
  RemoveIfOver(job);
}

Cause NodeMachine::StopCause(const Job& job) const {
  Cause cause;
  if (job.stop.has_cause()) {
    cause.kind = Cause::Kind::kPeerFailed;
    cause.failure = job.stop.cause();
    cause.message = !job.stop.reason().empty() ? job.stop.reason() : job.stop.cause().reason();
    if (cause.message.empty()) {
      cause.message =
          absl::StrCat("rank ", cause.failure.rank(), " (node ", cause.failure.node(), ") failed");
    }
  } else {
    cause.message = "the job was cancelled";
    if (!job.stop.reason().empty()) absl::StrAppend(&cause.message, ": ", job.stop.reason());
  }
  return cause;
}

void NodeMachine::OnSignal(const cluster::v1::SignalRanks& order) {
  Job* job = Find(order.job());
  if (job == nullptr) return;
  node::v1::WorkerOrder worker_order;
  worker_order.mutable_signal()->set_signal(order.signal());
  for (const auto& [number, rank] : job->ranks) {
    if (rank.state == Rank::State::kRunning) OrderRank(*job, rank, worker_order);
  }
}

void NodeMachine::OnForget(const std::string& name) {
  const Job* job = Find(name);
  if (job != nullptr && job->phase == Phase::kCleared) jobs_.erase(name);
}

void NodeMachine::On(const event::RingFailed& event) {
  Job* job = Find(event.job);
  if (job == nullptr || job->phase == Phase::kRemoving || job->phase == Phase::kCleared) return;
  Cause cause;
  cause.kind = Cause::Kind::kUnavailable;
  cause.message = absl::StrCat("node ", options_.hello.name(), ": ", event.status.message());
  LogText(action::Log::Level::kWarning,
          absl::StrCat("ring failed job=", event.job, " reason=", event.status.message()));
  if (job->phase != Phase::kRunning)
    return RefuseJob(*job, absl::UnavailableError(event.status.message()));
  if (job->trouble.empty()) job->trouble = cause.message;
  actions_.push_back(action::FailJob{event.job, cause});
}

void NodeMachine::RemoveIfOver(Job& job) {
  if (job.phase != Phase::kRunning) return;
  for (const auto& [number, rank] : job.ranks) {
    if (!rank.gone) return;
  }
  const bool others_need_ring = job.ring_asked && job.order->nodes_size() > 1;
  if (others_need_ring && !job.stopping) return;
  BeginRemove(job);
}

void NodeMachine::BeginRemove(Job& job) {
  job.phase = Phase::kRemoving;
  if (!job.ring_asked) return Clear(job);
  Cause cause = StopCause(job);
  if (!job.stopping) cause.message = "the job has ended";
  actions_.push_back(action::RemoveJob{job.name(), cause});
}

void NodeMachine::On(const event::JobRemoved& event) {
  Job* job = Find(event.job);
  if (job != nullptr && job->phase == Phase::kRemoving) Clear(*job);
}

void NodeMachine::Clear(Job& job) {
  job.phase = Phase::kCleared;
  job.cleared_count = ++cleared_count_;
  actions_.push_back(action::CloseJob{job.name()});
  actions_.push_back(action::RemoveRecord{job.name()});
  LogText(action::Log::Level::kInfo, absl::StrCat("job cleared job=", job.name()));
  SendCleared(job.name());
  DropOldRecords();
}

void NodeMachine::DropOldRecords() {
  size_t ended = 0;
  auto oldest = jobs_.end();
  for (auto each = jobs_.begin(); each != jobs_.end(); ++each) {
    if (each->second.phase != Phase::kCleared) continue;
    ++ended;
    if (oldest == jobs_.end() || each->second.cleared_count < oldest->second.cleared_count)
      oldest = each;
  }
  if (ended > kMaxEndedJobs) jobs_.erase(oldest);
}

void NodeMachine::On(const event::Restored& event) {
  const v1::JobRecord& record = event.record;
  if (!CheckPrepare(record.order()).ok() || Find(record.order().job()) != nullptr) {
    LogText(action::Log::Level::kWarning,
            absl::StrCat("job not taken over: its record is unusable job=", record.order().job()));
    return;
  }
  Job& job = jobs_[record.order().job()];
  job.order = std::make_shared<cluster::v1::Prepare>(record.order());
  job.phase = Phase::kRunning;
  job.failed = record.failed();
  actions_.push_back(action::OpenJob{job.order});
  if (job.order->nodes_size() == 1) {
    job.ring_asked = true;
    actions_.push_back(action::PrepareRing{job.order});
  } else {
    job.trouble = absl::StrCat(
        "node ", options_.hello.name(),
        ": its daemon was restarted, and the ring of a job on several nodes can't be formed anew");
    job.terminate_at = now_.monotonic;
  }
  if (record.has_stop()) {
    job.stop = record.stop();
    job.stopping = true;
    job.terminate_at = now_.monotonic;
    if (job.ring_asked) actions_.push_back(action::FailJob{job.name(), StopCause(job)});
  }
  for (const v1::RankRecord& entry : record.ranks()) {
    Rank& rank = job.ranks[entry.last().rank()];
    rank.last = entry.last();
    rank.worker_start_time = entry.worker_start_time();
    rank.gone = entry.gone();
    if (rank.gone) rank.state = Rank::State::kEnded;
    if (rank.gone) continue;
    rank.state = rank.last.exited() || rank.last.start_failed() ? Rank::State::kEnded
                 : rank.last.pid() != 0                         ? Rank::State::kRunning
                                                                : Rank::State::kSpawned;
    rank.deadline = now_.monotonic + options_.reattach_timeout;
    if (rank.state == Rank::State::kEnded) {
      actions_.push_back(action::EndRank{job.name(), rank.last.rank(), EndCause(rank.last)});
    }
    if (rank.last.worker_pid() == 0)
      continue;  // Spawned in the last moment, or not at all: the deadline tells.
    actions_.push_back(action::WatchWorker{job.name(), rank.last.rank(), rank.last.worker_pid(),
                                           rank.worker_start_time});
  }
  LogText(action::Log::Level::kInfo,
          absl::StrCat("job taken over job=", job.name(), " generation=", job.order->generation(),
                       " ranks=", job.ranks.size()));
  RemoveIfOver(job);
}

}  // namespace ringd::daemon
