#include "scheduler/state/machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/state/text.h"
#include "scheduler/state/times.h"

namespace ringd::scheduler {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.

namespace {

// A gap between two Apply calls over this means that we were stopped or late ourselves: silence
// during it proves nothing.
constexpr absl::Duration kLateness = absl::Seconds(1);
// Nodes that are lost for longer are forgotten.
constexpr absl::Duration kLostNodeMemory = absl::Hours(24);

constexpr int kExitTimeout = 124;  // As timeout(1).

bool ParseId(const std::string& id, uint64_t* number) {
  absl::string_view digits = id;
  return absl::ConsumePrefix(&digits, "j-") && !digits.empty() && digits[0] != '+' &&
         digits[0] != '-' && digits[0] != ' ' && absl::SimpleAtoi(digits, number);
}

}  // namespace

Machine::Machine(Options options, RandomBytes random)
    : options_(std::move(options)), random_(std::move(random)) {}

std::vector<Action> Machine::Apply(const Event& event, Now now) {
  if (now.steady - last_apply_ > kLateness) {
    const absl::Duration gap = now.steady - last_apply_;
    for (auto& [name, node] : nodes_) {
      node.heard += gap;
      node.away_end += gap;
    }
  }
  last_apply_ = now.steady;
  now_ = now;
  std::visit([this](const auto& e) { On(e); }, event);
  if (schedule_) {
    schedule_ = false;
    Schedule();
  }
  return std::exchange(actions_, {});
}

std::vector<Action> Machine::Restore(Snapshot snapshot, Now now) {
  now_ = now;
  last_apply_ = now.steady;
  term_ = snapshot.term;
  next_number_ = std::max<uint64_t>(snapshot.next_number, 1);
  for (v1::NodeRecord& record : snapshot.nodes) {
    Node& node = nodes_[record.name()];
    node.record = std::move(record);
    NodeAway(&node);
  }
  for (Snapshot::StoredJob& stored : snapshot.jobs) {
    const uint64_t number = stored.record.number();
    next_number_ = std::max(next_number_, number + 1);
    Job& job = jobs_[number];
    job.record = std::move(stored.record);
    job.spec = std::move(stored.spec);
    if (!job.record.request_id().empty()) {
      requests_[absl::StrCat(job.record.uid(), ":", job.record.request_id())] = number;
    }
    if (job.record.job().has_finished()) {
      ++finished_count_;
      continue;
    }
    active_.insert(number);
    job.shape = ResolveShape(job.spec).value_or(Shape{});
    for (const Rank& rank : job.record.job().rank()) {
      job.started += rank.pid() != 0;
      job.ended += rank.state() != "pending" && rank.state() != "running";
    }
    if (job.spec.foreground()) {
      job.hold_end = now_.steady + std::max(options_.reattach_timeout, options_.hold_lease);
    }
    if (job.State() == JOB_STATE_RUNNING || job.State() == JOB_STATE_FINISHING) {
      for (const GenerationNode& part : job.record.nodes()) {
        Node& node = nodes_[part.name()];
        if (node.record.name().empty()) {
          node.record.set_name(part.name());
          NodeAway(&node);
        }
        Hold(&node, job.record.job().id(), part.rank_count());
      }
      if (job.spec.has_deadline() && job.record.job().has_started()) {
        const absl::Time started = absl::FromUnixSeconds(job.record.job().started().seconds());
        job.run_end = now_.steady + (started - now_.wall) + ToDuration(job.spec.deadline());
      }
      RefreshReason(&job);
    } else {
      BackToQueue(&job);
    }
  }
  schedule_ = false;
  Schedule();
  return std::exchange(actions_, {});
}

void Machine::On(const CancelEvent& event) {
  Job* job = FindFor(event.caller, event.job, event.call);
  if (job == nullptr) return;
  const std::string id = job->record.job().id();
  const bool final_known = job->State() == JOB_STATE_FINISHING || job->record.job().has_finished();
  if (!final_known) {
    BeginStop(job, JOB_STATE_CANCELLED, 128 + SIGTERM,
              event.reason.empty() ? absl::StrCat("cancelled by ", event.caller.user)
                                   : Truncated(event.reason, kMaxReasonBytes));
  }
  Answer(event.call, absl::OkStatus(), id);
}

void Machine::On(const SignalEvent& event) {
  Job* job = FindFor(event.caller, event.job, event.call);
  if (job == nullptr) return;
  const std::string& id = job->record.job().id();
  if (event.signal < 1 || event.signal > SIGRTMAX) {
    return Answer(event.call,
                  absl::InvalidArgumentError(absl::StrCat(event.signal, " is no signal")));
  }
  if (job->State() != JOB_STATE_RUNNING && job->State() != JOB_STATE_FINISHING) {
    return Answer(event.call, absl::FailedPreconditionError(absl::StrCat(id, " is not running")));
  }
  std::vector<std::string> away;
  NodeOrder order;
  order.mutable_signal()->set_job(id);
  order.mutable_signal()->set_signal(event.signal);
  for (const GenerationNode& part : job->record.nodes()) {
    if (job->cleared.count(part.name()) != 0) continue;
    const Node& node = nodes_[part.name()];
    if (node.connection == 0) away.push_back(part.name());
    Order(node, order);
  }
  if (!away.empty()) {
    return Answer(event.call,
                  absl::UnavailableError(absl::StrCat(
                      NodeList(away), " can't be reached now: its ranks got no signal")));
  }
  Answer(event.call, absl::OkStatus(), id);
}

void Machine::On(const HoldEvent& event) {
  Job* job = FindFor(event.caller, event.job, event.call);
  if (job == nullptr) return;
  ++job->holders;
  job->hold_end = absl::InfiniteDuration();
  Answer(event.call, absl::OkStatus(), job->record.job().id());
}

void Machine::On(const HoldLostEvent& event) {
  Job* job = Find(event.job);
  if (job == nullptr || job->holders == 0) return;
  if (--job->holders > 0 || !job->spec.foreground()) return;
  job->hold_end = now_.steady + (options_.embedded ? absl::ZeroDuration() : options_.hold_lease);
  TickJob(job);
}

void Machine::On(const TickEvent&) {
  TickNodes();
  const std::vector<uint64_t> active(active_.begin(), active_.end());
  for (uint64_t number : active) TickJob(&jobs_[number]);
}

void Machine::TickNodes() {
  std::vector<std::string> forgotten;
  for (auto& [name, node] : nodes_) {
    switch (node.state) {
      case Node::State::kUp:
        if (now_.steady - node.heard > options_.node_timeout) {
          NodeLost(&node,
                   absl::StrCat("no heartbeat for ", absl::FormatDuration(options_.node_timeout)));
        }
        break;
      case Node::State::kAway:
        if (now_.steady >= node.away_end) {
          NodeLost(&node, absl::StrCat("its daemon did not come back within ",
                                       absl::FormatDuration(options_.reattach_timeout)));
        }
        break;
      case Node::State::kLost:
        if (now_.steady - node.lost_at > kLostNodeMemory) forgotten.push_back(name);
        break;
    }
  }
  for (const std::string& name : forgotten) nodes_.erase(name);
}

void Machine::TickJob(Job* job) {
  if (job->record.job().has_finished()) return;
  const bool final_known = job->State() == JOB_STATE_FINISHING;
  if (!final_known && now_.steady >= job->hold_end) {
    return BeginStop(job, JOB_STATE_CANCELLED, 128 + SIGTERM, "cancelled: its ringctl is gone");
  }
  if (job->State() == JOB_STATE_FORMING && !job->Stopping() && now_.steady >= job->form_end) {
    std::vector<std::string> silent;
    for (const GenerationNode& part : job->record.nodes()) {
      if (job->prepared.count(part.name()) == 0) silent.push_back(part.name());
    }
    return FormAgain(job, absl::StrCat(NodeList(silent), " did not prepare the ring within ",
                                       absl::FormatDuration(options_.form_timeout)));
  }
  if (job->State() == JOB_STATE_RUNNING && now_.steady >= job->run_end) {
    return BeginStop(
        job, JOB_STATE_FAILED, kExitTimeout,
        absl::StrCat("its deadline of ", absl::FormatDuration(ToDuration(job->spec.deadline())),
                     " has passed"));
  }
  if (job->State() == JOB_STATE_RUNNING && HasStalledForTooLong(*job)) {
    return BeginStop(job, JOB_STATE_FAILED, kExitTimeout,
                     absl::StrCat("it has stalled for its --stall-timeout of ",
                                  absl::FormatDuration(ToDuration(job->spec.stall_timeout())), ": ",
                                  job->record.job().stall()));
  }
  if (job->State() == JOB_STATE_RUNNING && now_.steady >= job->cause_end) {
    job->cause_end = absl::InfiniteDuration();
    return BeginStop(job, JOB_STATE_FAILED, job->record.job().exit_code(),
                     job->record.job().first_failure().reason());
  }
  if (job->State() == JOB_STATE_QUEUED && job->retry_at > -absl::InfiniteDuration() &&
      now_.steady >= job->retry_at) {
    job->retry_at = -absl::InfiniteDuration();
    schedule_ = true;
  }
}

void Machine::Answer(CallId call, absl::Status status, const std::string& job) {
  actions_.push_back(Reply{call, std::move(status), job});
}

void Machine::Log(std::string text, bool warning) {
  actions_.push_back(LogLine{std::move(text), warning});
}

void Machine::Persist(const Job& job, bool with_spec) {
  actions_.push_back(PersistJob{job.record.job().id(), with_spec});
}

void Machine::Changed(const Job& job) { actions_.push_back(JobChanged{job.record.job().id()}); }

void Machine::Order(const Node& node, NodeOrder order) {
  if (node.connection != 0) actions_.push_back(SendOrder{node.connection, std::move(order)});
}

Machine::Job* Machine::Find(const std::string& id) {
  uint64_t number = 0;
  if (!ParseId(id, &number)) return nullptr;
  const auto it = jobs_.find(number);
  return it == jobs_.end() ? nullptr : &it->second;
}

Machine::Job* Machine::FindFor(const Caller& caller, const std::string& name, CallId call) {
  const absl::StatusOr<std::string> id = Resolve(name);
  if (!id.ok()) {
    Answer(call, id.status());
    return nullptr;
  }
  Job* job = Find(*id);
  if (absl::Status status = CheckOwner(caller, job->record); !status.ok()) {
    Answer(call, status);
    return nullptr;
  }
  return job;
}

absl::Status Machine::CheckOwner(const Caller& caller, const v1::JobRecord& record) {
  if (caller.privileged || caller.uid == record.uid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(record.job().id(), " belongs to ", record.user(), ", not to ", caller.user));
}

const v1::JobRecord* Machine::FindRecord(const std::string& id) const {
  const Job* job = const_cast<Machine*>(this)->Find(id);
  return job == nullptr ? nullptr : &job->record;
}

const JobSpec* Machine::FindSpec(const std::string& id) const {
  const Job* job = const_cast<Machine*>(this)->Find(id);
  return job == nullptr ? nullptr : &job->spec;
}

absl::StatusOr<std::string> Machine::Resolve(const std::string& name) const {
  if (FindRecord(name) != nullptr) return name;
  std::vector<std::string> matches;
  for (uint64_t number : active_) {
    const auto& job = jobs_.at(number).record.job();
    if (job.name() == name) matches.push_back(job.id());
  }
  if (matches.size() == 1) return matches[0];
  if (matches.empty()) {
    return absl::NotFoundError(absl::StrCat("no job ", Truncated(name, kMaxNameBytes),
                                            " (`ringctl list --all` shows those there are)"));
  }
  return absl::InvalidArgumentError(absl::StrCat(matches.size(), " jobs are called ", name,
                                                 ": say which by id, ", matches[0], " or ",
                                                 matches[1]));
}

std::vector<ringd::cluster::v1::Job> Machine::ListJobs(bool all) const {
  std::vector<ringd::cluster::v1::Job> list;
  for (const auto& [number, job] : jobs_) {
    const auto& source = job.record.job();
    if (!all && source.has_finished()) continue;
    auto& row = list.emplace_back(source);
    row.clear_rank();
  }
  return list;
}

}  // namespace ringd::scheduler
