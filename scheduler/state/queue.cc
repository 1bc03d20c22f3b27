// Submission, placement and the two phases of forming a ring.
#include "scheduler/policy/queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/state/machine.h"
#include "scheduler/state/text.h"
#include "scheduler/state/times.h"

namespace ringd::scheduler {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.

namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kMaxRequestIdBytes = 128;
// Between attempts to form a ring, times the number of those that failed.
constexpr absl::Duration kFormBackoff = absl::Seconds(1);

}  // namespace

absl::Status Machine::CheckSubmission(const SubmitEvent& event, JobSpec* spec, Shape* shape) const {
  if (event.request_id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError("request_id is longer than 128 bytes");
  }
  if (absl::Status status = CheckSpec(spec); !status.ok()) return status;
  absl::StatusOr<Shape> resolved = ResolveShape(*spec);
  if (!resolved.ok()) return resolved.status();
  *shape = *std::move(resolved);
  const bool wait_for_nodes = options_.embedded && !joined_once_;
  if (!wait_for_nodes && !shape->hosts.empty()) {
    if (absl::Status status = CheckHosts(*shape, View()); !status.ok()) return status;
  }
  if (active_.size() >= kMaxActiveJobs) {
    return absl::ResourceExhaustedError(absl::StrCat(
        active_.size(), " jobs wait or run already; submit again when some have finished"));
  }
  return absl::OkStatus();
}

Machine::Job* Machine::AddJob(const SubmitEvent& event, JobSpec spec, Shape shape) {
  const uint64_t number = next_number_;
  Job& job = jobs_[number];
  job.shape = std::move(shape);
  job.spec = std::move(spec);
  if (job.spec.foreground()) job.hold_end = now_.steady + options_.hold_lease;
  v1::JobRecord& record = job.record;
  record.set_number(number);
  record.set_uid(event.caller.uid);
  record.set_gid(event.caller.gid);
  record.set_user(event.caller.user);
  record.set_request_id(event.request_id);
  record.set_token(random_(kKeyBytes));
  ringd::cluster::v1::Job& shown = *record.mutable_job();
  shown.set_id(absl::StrCat("j-", number));
  shown.set_name(job.spec.name());
  shown.set_state(JOB_STATE_QUEUED);
  shown.set_ranks(job.shape.ranks);
  shown.set_user(event.caller.user);
  *shown.mutable_command() = job.spec.command();
  SetTimestamp(now_.wall, shown.mutable_created());
  active_.insert(number);
  queue_.insert(number);
  return &job;
}

void Machine::On(const SubmitEvent& event) {
  const std::string request = absl::StrCat(event.caller.uid, ":", event.request_id);
  if (!event.request_id.empty()) {
    if (const auto it = requests_.find(request); it != requests_.end()) {
      return Answer(event.call, absl::OkStatus(), jobs_.at(it->second).record.job().id());
    }
  }
  JobSpec spec = event.spec;
  Shape shape;
  if (absl::Status status = CheckSubmission(event, &spec, &shape); !status.ok()) {
    return Answer(event.call, status);
  }
  Job* job = AddJob(event, std::move(spec), std::move(shape));
  const uint64_t number = job->record.number();
  Schedule();
  const bool wait_for_nodes = options_.embedded && !joined_once_;
  if (job->State() == JOB_STATE_QUEUED && !job->spec.queue() && !wait_for_nodes) {
    absl::string_view reason = job->record.job().reason();
    absl::ConsumePrefix(&reason, "queued: ");
    Answer(event.call, absl::ResourceExhaustedError(
                           absl::StrCat(reason, " (--queue waits until it can start)")));
    queue_.erase(number);
    active_.erase(number);
    jobs_.erase(number);
    return;
  }
  ++next_number_;
  if (!event.request_id.empty()) requests_[request] = number;
  Persist(*job, /*with_spec=*/true);
  Changed(*job);
  Log(absl::StrCat("job submitted job=", job->record.job().id(), " user=", event.caller.user,
                   " ranks=", job->shape.ranks, " reason=\"", job->record.job().reason(), "\""));
  Answer(event.call, absl::OkStatus(), job->record.job().id());
}

ClusterView Machine::View() const {
  ClusterView view;
  view.nodes.reserve(nodes_.size());
  for (const auto& [name, node] : nodes_) {
    NodeSlots& slots = view.nodes.emplace_back();
    slots.name = name;
    slots.data_address = node.record.data_address();
    slots.slots = node.record.slots();
    slots.free = std::max(0, node.record.slots() - node.used);
    slots.up = node.state == Node::State::kUp;
    slots.shared = node.record.shared();
    slots.uid = node.record.uid();
    if (node.state == Node::State::kLost) slots.note = "lost";
    if (node.state == Node::State::kAway) slots.note = "away";
  }
  return view;
}

void Machine::Schedule() {
  if (queue_.empty()) return;
  std::set<std::string> clearing;  // Jobs that a node still holds from an earlier attempt.
  for (const auto& [name, node] : nodes_) {
    if (node.state != Node::State::kUp) continue;
    for (const auto& [id, slots] : node.held) clearing.insert(id);
  }
  const ClusterView view = View();
  std::vector<Job*> jobs;
  std::vector<QueuedJob> queued;
  for (uint64_t number : queue_) {
    Job& job = jobs_[number];
    if (job.retry_at > now_.steady || clearing.count(job.record.job().id()) != 0) continue;
    jobs.push_back(&job);
    queued.push_back({job.record.job().id(), job.shape, job.record.uid(), job.record.passed()});
  }
  const std::vector<QueueDecision> decisions = PlanQueue(queued, view);
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job* job = jobs[i];
    const QueueDecision& decision = decisions[i];
    job->record.set_passed(decision.passed);
    if (!decision.placement.assignments.empty()) {
      StartForming(job, decision.placement, view);
      continue;
    }
    if (options_.embedded && joined_once_ && !job->spec.queue()) {
      job->record.mutable_job()->set_refused(true);
      BeginStop(job, JOB_STATE_FAILED, 2, decision.placement.reason);
      continue;
    }
    const std::string reason = absl::StrCat("queued: ", decision.placement.reason);
    if (reason == job->record.job().reason()) continue;
    job->record.mutable_job()->set_reason(reason);
    Changed(*job);
  }
}

void Machine::StartForming(Job* job, const Placement& placement, const ClusterView& view) {
  v1::JobRecord& record = job->record;
  ringd::cluster::v1::Job& shown = *record.mutable_job();
  queue_.erase(record.number());
  shown.set_state(JOB_STATE_FORMING);
  shown.set_generation(shown.generation() + 1);
  record.set_key(random_(kKeyBytes));
  record.clear_nodes();
  shown.clear_rank();
  job->prepared.clear();
  job->stalls.clear();
  job->cleared.clear();
  job->started = 0;
  job->ended = 0;
  job->form_end = now_.steady + options_.form_timeout;
  for (GenerationNode& part : FormRing(placement, view)) {
    for (int i = 0; i < part.rank_count(); ++i) {
      Rank& rank = *shown.add_rank();
      rank.set_rank(part.first_rank() + i);
      rank.set_local_rank(i);
      rank.set_node(part.name());
      rank.set_state("pending");
    }
    Hold(&nodes_[part.name()], shown.id(), part.rank_count());
    *record.add_nodes() = std::move(part);
  }
  Log(absl::StrCat("job placed job=", shown.id(), " generation=", shown.generation(), " on=\"",
                   placement.reason, "\""));
  RefreshReason(job);
  Persist(*job);
  Changed(*job);
  for (int i = 0; i < record.nodes_size(); ++i) SendPrepare(*job, i);
}

void Machine::SendPrepare(const Job& job, int node_index) {
  const v1::JobRecord& record = job.record;
  NodeOrder order;
  Prepare& prepare = *order.mutable_prepare();
  prepare.set_job(record.job().id());
  prepare.set_generation(record.job().generation());
  *prepare.mutable_nodes() = record.nodes();
  prepare.set_node_index(node_index);
  prepare.set_key(record.key());
  prepare.set_token(record.token());
  *prepare.mutable_spec() = job.spec;
  prepare.mutable_spec()->set_ranks(job.shape.ranks);
  prepare.set_uid(record.uid());
  prepare.set_gid(record.gid());
  prepare.set_user(record.user());
  prepare.set_embedded(options_.embedded);
  Order(nodes_[record.nodes(node_index).name()], std::move(order));
}

void Machine::Commit(Job* job) {
  ringd::cluster::v1::Job& shown = *job->record.mutable_job();
  shown.set_state(JOB_STATE_RUNNING);
  SetTimestamp(now_.wall, shown.mutable_started());
  job->form_end = absl::InfiniteDuration();
  if (job->spec.has_deadline()) {
    job->run_end = now_.steady + ToDuration(job->spec.deadline());
  }
  RefreshReason(job);
  Persist(*job);
  Changed(*job);
  Log(absl::StrCat("generation committed job=", shown.id(), " generation=", shown.generation()));
  NodeOrder order;
  order.mutable_start()->set_job(shown.id());
  order.mutable_start()->set_generation(shown.generation());
  for (const GenerationNode& part : job->record.nodes()) Order(nodes_[part.name()], order);
}

void Machine::FormAgain(Job* job, const std::string& why) {
  job->record.set_form_attempts(job->record.form_attempts() + 1);
  const int attempts = job->record.form_attempts();
  Log(absl::StrCat("ring not formed job=", job->record.job().id(), " attempt=", attempts,
                   " reason=\"", why, "\""),
      /*warning=*/true);
  if (attempts >= kMaxFormAttempts) {
    return BeginStop(
        job, JOB_STATE_FAILED, 1,
        absl::StrCat("its ring could not be formed in ", attempts, " attempts: ", why));
  }
  job->retry_at = now_.steady + attempts * kFormBackoff;
  BeginStop(job, JOB_STATE_QUEUED, 0, why);
}

void Machine::BackToQueue(Job* job) {
  v1::JobRecord& record = job->record;
  ringd::cluster::v1::Job& shown = *record.mutable_job();
  if (shown.state() != JOB_STATE_QUEUED) {
    shown.set_reason(record.stop_reason().empty()
                         ? "queued: the scheduler was restarted"
                         : absl::StrCat("queued: again, since ", record.stop_reason()));
  }
  shown.set_state(JOB_STATE_QUEUED);
  shown.clear_rank();
  record.clear_nodes();
  record.clear_next_state();
  record.clear_stop_reason();
  job->prepared.clear();
  job->cleared.clear();
  queue_.insert(record.number());
  schedule_ = true;
  Persist(*job);
  Changed(*job);
}

void Machine::TrimFinished() {
  for (auto it = jobs_.begin(); it != jobs_.end() && finished_count_ > kMaxFinishedJobs;) {
    const v1::JobRecord& record = it->second.record;
    if (!record.job().has_finished()) {
      ++it;
      continue;
    }
    actions_.push_back(DeleteJob{record.job().id()});
    requests_.erase(absl::StrCat(record.uid(), ":", record.request_id()));
    --finished_count_;
    it = jobs_.erase(it);
  }
}

}  // namespace ringd::scheduler
