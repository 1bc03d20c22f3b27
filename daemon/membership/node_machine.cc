#include "daemon/membership/node_machine.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ringd::daemon {
namespace {

constexpr size_t kMaxNameBytes = 64;

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace

bool IsSafeName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

NodeMachine::NodeMachine(NodeMachineOptions options)
    : options_(std::move(options)), term_(options_.term) {}

Actions NodeMachine::Handle(const Event& event, Moment now) {
  now_ = now;
  actions_.clear();
  std::visit([this](const auto& each) { On(each); }, event);
  FinishShutdown();
  return std::exchange(actions_, {});
}

absl::Time NodeMachine::NextDeadline() const {
  absl::Time next = connected_ ? next_heartbeat_ : absl::InfiniteFuture();
  for (const auto& [name, job] : jobs_) {
    if (!job.terminated) next = std::min(next, job.terminate_at);
    if (!job.killed) next = std::min(next, job.kill_at);
    for (const auto& [number, rank] : job.ranks) next = std::min(next, rank.deadline);
  }
  return next;
}

std::vector<std::string> NodeMachine::Jobs() const {
  std::vector<std::string> names;
  for (const auto& [name, job] : jobs_) {
    if (job.phase != Phase::kCleared) names.push_back(name);
  }
  return names;
}

void NodeMachine::On(const event::SchedulerUp&) {
  connected_ = false;
  SendHello();
}

void NodeMachine::On(const event::SchedulerDown&) {
  const bool was_connected = std::exchange(connected_, false);
  next_heartbeat_ = absl::InfiniteFuture();
  if (options_.embedded && was_connected && !shutting_down_) {
    actions_.push_back(action::Exit{"the scheduler of this run is gone"});
  }
}

void NodeMachine::On(const event::SchedulerOrder& event) {
  const cluster::v1::NodeOrder& order = event.order;
  if (!connected_ && !order.has_welcome() && !order.has_refuse()) return;
  switch (order.order_case()) {
    case cluster::v1::NodeOrder::kWelcome:
      return OnWelcome(order.welcome());
    case cluster::v1::NodeOrder::kPrepare:
      return OnPrepare(order.prepare());
    case cluster::v1::NodeOrder::kStart:
      return OnStart(order.start());
    case cluster::v1::NodeOrder::kStop:
      return OnStop(order.stop());
    case cluster::v1::NodeOrder::kSignal:
      return OnSignal(order.signal());
    case cluster::v1::NodeOrder::kForget:
      return OnForget(order.forget().job());
    case cluster::v1::NodeOrder::kRefuse:
      actions_.push_back(
          action::Exit{absl::StrCat("the scheduler refuses this node: ", order.refuse().reason())});
      return;
    default:
      return;  // A newer scheduler's order, or ReadLog, which isn't ours.
  }
}

void NodeMachine::OnWelcome(const cluster::v1::NodeWelcome& welcome) {
  if (welcome.term() < term_) {
    actions_.push_back(
        action::Disconnect{absl::StrCat("a scheduler of term ", welcome.term(),
                                        " is out of date: this node follows term ", term_)});
    return;
  }
  if (welcome.term() > term_) {
    term_ = welcome.term();
    actions_.push_back(action::PersistTerm{term_});
  }
  connected_ = true;
  const absl::Duration interval = ToDuration(welcome.heartbeat_interval());
  heartbeat_interval_ = interval > absl::ZeroDuration() ? interval : kDefaultHeartbeat;
  next_heartbeat_ = now_.monotonic;
  // What happened between hello and welcome is in neither: all of it again.
  for (const auto& [name, job] : jobs_) {
    if (job.phase == Phase::kPrepared)
      ReportPrepared(name, job.order->generation(), absl::OkStatus());
    for (const auto& [number, rank] : job.ranks) {
      if (rank.last.pid() != 0 || rank.last.exited() || rank.last.start_failed()) SendRank(rank);
    }
    if (!job.stall.report.empty() && job.phase == Phase::kRunning) SendStall(job);
    if (job.phase == Phase::kCleared) SendCleared(name);
  }
}

void NodeMachine::On(const event::Tick&) {
  if (connected_ && now_.monotonic >= next_heartbeat_) {
    cluster::v1::NodeReport report;
    report.mutable_heartbeat()->set_count(++heartbeat_count_);
    Say(std::move(report));
    next_heartbeat_ = now_.monotonic + heartbeat_interval_;
  }
  for (auto& [name, job] : jobs_) TickJob(job);
}

void NodeMachine::On(const event::ShuttingDown& event) {
  shutting_down_ = true;
  for (auto& [name, job] : jobs_) {
    if (job.phase == Phase::kRemoving || job.phase == Phase::kCleared) continue;
    job.stop.set_job(name);
    job.stop.set_reason(event.reason);
    job.stopping = true;
    job.terminated = false;
    job.terminate_at = now_.monotonic;
    job.kill_at = std::min(job.kill_at, now_.monotonic + event.grace);
    job.stop.mutable_grace()->set_seconds(absl::ToInt64Seconds(event.grace));
    BeginStop(job);
    if (job.phase == Phase::kRunning) TickJob(job);
  }
}

void NodeMachine::FinishShutdown() {
  if (!shutting_down_ || finished_ || !Jobs().empty()) return;
  finished_ = true;
  actions_.push_back(action::Finished{});
}

void NodeMachine::Say(cluster::v1::NodeReport report) {
  if (connected_) actions_.push_back(action::SendReport{std::move(report)});
}

void NodeMachine::SendHello() {
  cluster::v1::NodeReport report;
  cluster::v1::NodeHello* hello = report.mutable_hello();
  *hello = options_.hello;
  hello->set_term(term_);
  for (const auto& [name, job] : jobs_) {
    cluster::v1::RunningJob* running = hello->add_jobs();
    running->set_job(name);
    running->set_generation(job.order->generation());
    for (const auto& [number, rank] : job.ranks) *running->add_ranks() = rank.last;
  }
  actions_.push_back(action::SendReport{std::move(report)});
}

void NodeMachine::SendRank(const Rank& rank) {
  cluster::v1::NodeReport report;
  *report.mutable_rank() = rank.last;
  Say(std::move(report));
}

void NodeMachine::SendCleared(const std::string& job) {
  cluster::v1::NodeReport report;
  report.mutable_cleared()->set_job(job);
  const Job* known = Find(job);
  report.mutable_cleared()->set_generation(known == nullptr ? 0 : known->order->generation());
  Say(std::move(report));
}

void NodeMachine::Write(const Job& job) { actions_.push_back(action::WriteRecord{Record(job)}); }

void NodeMachine::LogText(action::Log::Level level, std::string text) {
  actions_.push_back(action::Log{level, std::move(text)});
}

NodeMachine::Job* NodeMachine::Find(const std::string& job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

NodeMachine::Rank* NodeMachine::Find(const std::string& job, int rank, Job** owner) {
  *owner = Find(job);
  if (*owner == nullptr) return nullptr;
  const auto found = (*owner)->ranks.find(rank);
  return found == (*owner)->ranks.end() ? nullptr : &found->second;
}

v1::JobRecord NodeMachine::Record(const Job& job) const {
  v1::JobRecord record;
  *record.mutable_order() = *job.order;
  record.set_started(true);
  record.set_failed(job.failed);
  if (job.stopping) *record.mutable_stop() = job.stop;
  for (const auto& [number, rank] : job.ranks) {
    v1::RankRecord* entry = record.add_ranks();
    *entry->mutable_last() = rank.last;
    entry->set_worker_start_time(rank.worker_start_time);
    entry->set_gone(rank.gone);
  }
  return record;
}

}  // namespace ringd::daemon
