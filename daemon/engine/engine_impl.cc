#include "daemon/engine/engine_impl.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/cpus.h"
#include "common/base/fd.h"
#include "common/base/futex.h"
#include "common/log/log.h"
#include "common/reduce/reduce.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

// Idle: pause, then yield, then sleep. Pausing longer costs far more than it gains once runnable
// threads outnumber the cores; a yield that took long says that they do.
constexpr int64_t kPauseUs = 2;
constexpr int64_t kYieldUs = 150;
constexpr int64_t kLongYieldUs = 50;
constexpr uint32_t kBusyRoundsPerPoll =
    16;  // Rounds with work between two looks at the descriptors.
constexpr int64_t kCheckIntervalUs = 400'000;  // Stalls; deadlocks are seen at the second look.
constexpr absl::Duration kBackstop = absl::Milliseconds(400);
constexpr int64_t kLateDoorbellUs = 2'000;  // From a publication to its doorbell, at most.
constexpr int64_t kStopUs = 2 * 1'000'000;  // For operations in flight to let go of their buffers.

uint64_t RandomIncarnation() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

void CloseSockets(const RingSockets& sockets) {
  std::vector<SocketPair> pairs = sockets.shortcuts;
  pairs.push_back(sockets);
  for (const SocketPair& pair : pairs) {
    UniqueFd right(pair.right);
    UniqueFd left(pair.left);
  }
}

// Of the ring's other nodes that this one dials. nodes: the ring's, by index in the generation.
void SetAddresses(const std::vector<std::string>& addresses, const std::vector<int>& nodes,
                  RingOptions* ring) {
  const auto right = [&](int places) {
    return addresses[nodes[(ring->node_index + places) % ring->node_count]];
  };
  ring->right_address = right(1);
  for (int k = 1; k <= ShortcutCount(ring->node_count); ++k) {
    ring->shortcut_addresses.push_back(right(1 << k));
  }
}

Outcome StoppingOutcome() {
  Outcome outcome;
  outcome.code = arena::Code::kUnavailable;
  outcome.message = "the daemon is stopping";
  return outcome;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineImpl>> EngineImpl::Create(Options options) {
  std::unique_ptr<EngineImpl> engine(new EngineImpl(std::move(options)));
  if (engine->options_.make_data_port) {
    auto port = engine->options_.make_data_port(&engine->loop_);
    if (!port.ok()) return port.status();
    engine->data_port_ = *std::move(port);
    engine->data_port_->set_wanted_handler(
        [impl = engine.get()](const RingRequest& request) { impl->OnRingWanted(request); });
    engine->data_address_ =
        absl::StrCat(engine->options_.data_host, ":", engine->data_port_->port());
  }
  engine->thread_ = std::thread([engine = engine.get()] { engine->Run(); });
  return engine;
}

EngineImpl::EngineImpl(Options options)
    : options_(std::move(options)),
      incarnation_(RandomIncarnation()),
      may_pause_(UsableCpus() > 1) {}

EngineImpl::~EngineImpl() { Stop(); }

void EngineImpl::Stop() {
  if (!thread_.joinable()) return;
  Post([this] { stopping_ = true; });
  thread_.join();
}

bool EngineImpl::Post(std::function<void()> message) {
  {
    MutexLock lock(&mu_);
    if (!accepting_) return false;
    messages_.push_back(std::move(message));
    has_messages_.store(true, std::memory_order_seq_cst);
  }
  loop_.Wake();
  return true;
}

absl::Status EngineImpl::Call(std::function<absl::Status()> message) {
  if (std::this_thread::get_id() == thread_.get_id()) return message();
  struct Reply {
    Mutex mu;
    CondVar ready;
    bool done = false;
    absl::Status status;
  };
  auto reply = std::make_shared<Reply>();
  const bool posted = Post([reply, message = std::move(message)] {
    absl::Status status = message();
    MutexLock lock(&reply->mu);
    reply->status = std::move(status);
    reply->done = true;
    reply->ready.Signal();
  });
  if (!posted) return absl::UnavailableError("the daemon's engine has stopped");
  MutexLock lock(&reply->mu);
  while (!reply->done) reply->ready.Wait(&reply->mu);
  return reply->status;
}

bool EngineImpl::RunMessages() {
  if (!has_messages_.load(std::memory_order_acquire)) return false;
  std::vector<std::function<void()>> messages;
  {
    MutexLock lock(&mu_);
    messages.swap(messages_);
    has_messages_.store(false, std::memory_order_relaxed);
  }
  for (const auto& message : messages) message();
  return !messages.empty();
}

void EngineImpl::Run() {
  last_work_us_ = MonotonicMicros();
  while (!stopping_) {
    if (Work()) {
      last_work_us_ = MonotonicMicros();
      CheckJobs(last_work_us_);
    } else {
      Idle();
    }
  }
  Finish();
}

bool EngineImpl::DrainJobs() {
  bool worked = false;
  for (auto& [name, job] : jobs_) worked |= job->Drain();
  return worked;
}

bool EngineImpl::Work() {
  bool worked = RunMessages();
  worked |= DrainJobs();
  for (auto& [name, job] : jobs_) {
    if (!job->Progress()) continue;
    worked = true;
    // A small operation waits for the piece in hand, not for those of all other jobs.
    DrainJobs();
  }
  for (Leaving& leaving : leaving_) worked |= leaving.job->Poll();
  if (!leaving_.empty()) ReapRemoved();
  if (has_rings_ || ++rounds_ % kBusyRoundsPerPoll == 0)
    worked |= loop_.Poll(absl::ZeroDuration()) > 0;
  if (const uint64_t faults = SigbusGuard::FaultCount(); faults != faults_seen_) {
    faults_seen_ = faults;
    for (auto& [name, job] : jobs_) job->CheckMemory();
  }
  return worked;
}

void EngineImpl::Idle() {
  const int64_t now_us = MonotonicMicros();
  CheckJobs(now_us);
  const int64_t idle_us = now_us - last_work_us_;
  if (may_pause_ && idle_us < kPauseUs) return CpuRelax();
  if (loop_.Poll(absl::ZeroDuration()) > 0) {
    last_work_us_ = now_us;
    return;
  }
  if (idle_us < kYieldUs) {
    sched_yield();
    if (MonotonicMicros() - now_us < kLongYieldUs) return;
  }
  Sleep();
}

void EngineImpl::Sleep() {
  SetSleeping(true);
  // Idle's look at the descriptors may have used up the wake of a message that came after
  // RunMessages.
  if (!HasWork() && !has_messages_.load(std::memory_order_seq_cst)) {
    const bool has_jobs = !jobs_.empty() || !leaving_.empty();
    const int run = loop_.Poll(has_jobs ? kBackstop : absl::InfiniteDuration());
    if (run == 0 && HasWork()) CountIfLost();
  }
  SetSleeping(false);
  last_work_us_ = MonotonicMicros();
}

// There is work and no bell has rung. It may ring only now: the client stands between publication
// and bell.
void EngineImpl::CountIfLost() {
  if (has_messages_.load(std::memory_order_acquire)) return;
  const int64_t limit_us = MonotonicMicros() + kLateDoorbellUs;
  while (MonotonicMicros() < limit_us) {
    if (loop_.Poll(absl::Microseconds(100)) > 0) return;
  }
  backstops_.fetch_add(1, std::memory_order_relaxed);
}

bool EngineImpl::HasWork() {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& job) { return job.second->HasWork(); });
}

void EngineImpl::SetSleeping(bool sleeping) {
  for (auto& [name, job] : jobs_) job->SetSleeping(sleeping);
}

void EngineImpl::CheckJobs(int64_t now_us) {
  if (now_us < next_check_us_) return;
  next_check_us_ = now_us + kCheckIntervalUs;
  for (auto& [name, job] : jobs_) {
    job->CheckStalls(now_us);
    job->CheckDeadlock();
  }
}

void EngineImpl::Finish() {
  for (auto& [name, preparing] : preparing_)
    preparing.done(absl::AbortedError("the daemon is stopping"));
  preparing_.clear();
  while (!jobs_.empty()) Remove(jobs_.begin()->first, StoppingOutcome(), [] {});
  const int64_t limit_us = MonotonicMicros() + kStopUs;
  while (!leaving_.empty() && MonotonicMicros() < limit_us) {
    for (Leaving& leaving : leaving_) leaving.job->Poll();
    loop_.Poll(absl::Microseconds(100));
    ReapRemoved();
  }
  std::vector<Leaving> left;
  left.swap(leaving_);
  for (Leaving& leaving : left) {
    leaving.job.reset();
    leaving.done();
  }
  data_port_.reset();
  {
    MutexLock lock(&mu_);
    accepting_ = false;
  }
  RunMessages();
}

Job* EngineImpl::FindJob(const std::string& job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : found->second.get();
}

void EngineImpl::PrepareJob(const JobGeneration& generation,
                            std::function<void(absl::Status)> done) {
  auto shared = std::make_shared<std::function<void(absl::Status)>>(std::move(done));
  if (!Post([this, generation, shared] { Prepare(generation, *shared); })) {
    (*shared)(absl::UnavailableError("the daemon's engine has stopped"));
  }
}

void EngineImpl::Prepare(const JobGeneration& generation, std::function<void(absl::Status)> done) {
  const GroupLayout& layout = generation.layout;
  if (FindJob(generation.job) != nullptr || preparing_.contains(generation.job)) {
    return done(absl::AlreadyExistsError(absl::StrCat(
        "job ", generation.job, " is here already; remove its former generation first")));
  }
  const bool is_sound =
      layout.node_index >= 0 && layout.node_index < layout.node_count() && layout.local_count() > 0;
  if (!is_sound)
    return done(absl::InvalidArgumentError("the job's layout has no rank on this node"));
  if (layout.local_count() > static_cast<int>(kMaxReduceBuffers)) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("job ", generation.job, " wants ", layout.local_count(),
                     " ranks on this node; at most ", kMaxReduceBuffers, " fit")));
  }
  if (layout.node_count() == 1) {
    return done(BeginJob(generation, RingSockets{}));
  }
  if (data_port_ == nullptr) {
    return done(absl::FailedPreconditionError(
        "this daemon has no data address; set one to run jobs over several nodes"));
  }
  RingOptions ring;
  ring.job = generation.job;
  ring.generation = generation.generation;
  ring.key = generation.key;
  ring.node_index = layout.node_index;
  ring.node_count = layout.node_count();
  if (generation.data_addresses.size() < layout.nodes.size()) {
    return done(absl::InvalidArgumentError("the job has fewer data addresses than nodes"));
  }
  std::vector<int> nodes(layout.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  SetAddresses(generation.data_addresses, nodes, &ring);
  preparing_[generation.job] = {generation.generation, std::move(done)};
  data_port_->OpenRing(ring, [this, generation](absl::StatusOr<RingSockets> sockets) {
    OnRing(generation, std::move(sockets));
  });
}

void EngineImpl::OnRing(const JobGeneration& generation, absl::StatusOr<RingSockets> sockets) {
  const auto found = preparing_.find(generation.job);
  if (found == preparing_.end() || found->second.generation != generation.generation) {
    if (sockets.ok()) CloseSockets(*sockets);
    return;
  }
  const auto done = std::move(found->second.done);
  preparing_.erase(found);
  done(sockets.ok() ? BeginJob(generation, *sockets) : sockets.status());
}

absl::Status EngineImpl::BeginJob(const JobGeneration& generation, RingSockets sockets) {
  const std::string name = generation.job;
  RingTuning tuning{.job = name, .costs = std::make_shared<RingCosts>()};
  RingTuning measuring = tuning;
  measuring.measures = true;
  auto communicator = options_.make_communicator(
      generation, sockets, &loop_,
      [this, name](const Outcome& outcome) { OnRingFailed(name, outcome); }, measuring);
  Job::Events events;
  events.client_failed = [this, name](int rank, std::string reason) {
    if (events_.client_failed) events_.client_failed(name, rank, std::move(reason));
  };
  events.client_died = [this, name](int rank, int pid) {
    if (events_.client_died) events_.client_died(name, rank, pid);
  };
  events.stalled = [this, name](Stall stall) {
    if (stall.report.empty()) {
      GetLogger("engine")->info("stall is over job={}", name);
    } else {
      GetLogger("engine")->warn("stalled job={} report=\"{}\"", name, stall.report);
    }
    if (events_.stalled) events_.stalled(name, std::move(stall));
  };
  events.open_communicator = [this, generation, tuning](uint32_t group, const GroupLayout& layout,
                                                        const std::vector<int>& nodes,
                                                        Messages::Opened opened) {
    OpenCommunicator(generation, tuning, group, layout, nodes, std::move(opened));
  };
  jobs_[name] = std::make_unique<Job>(generation, std::move(communicator), &loop_, incarnation_,
                                      std::move(events));
  UpdateRings();
  GetLogger("engine")->info("job prepared job={} generation={} nodes={} local_ranks={}", name,
                            generation.generation, generation.layout.node_count(),
                            generation.layout.local_count());
  return absl::OkStatus();
}

void EngineImpl::OpenCommunicator(const JobGeneration& generation, const RingTuning& tuning,
                                  uint32_t group, const GroupLayout& layout,
                                  const std::vector<int>& nodes, Messages::Opened opened) {
  JobGeneration part = generation;
  part.layout = layout;
  const std::string& name = generation.job;
  const auto make = [this, part, tuning, group](RingSockets sockets) {
    const auto failed = [this, name = part.job, group](const Outcome& outcome) {
      if (Job* job = FindJob(name); job != nullptr) job->FailGroup(group, outcome);
    };
    return options_.make_communicator(part, sockets, &loop_, failed, tuning);
  };
  if (layout.node_count() == 1) return opened(make(RingSockets{}));
  const int peer = group == wire::kMessages ? nodes[1 - layout.node_index] : 0;
  const GroupRing id{name, generation.generation, static_cast<uint16_t>(group), peer};
  if (opening_.contains(id)) {  // Of former clients, who have given up waiting.
    data_port_->CloseRing(name, generation.generation, static_cast<uint16_t>(group), peer);
  }
  opening_.insert(id);
  RingOptions ring;
  ring.job = name;
  ring.generation = generation.generation;
  ring.key = generation.key;
  ring.group = static_cast<uint16_t>(group);
  ring.nodes = nodes;
  ring.node_index = layout.node_index;
  ring.node_count = layout.node_count();
  SetAddresses(generation.data_addresses, nodes, &ring);
  data_port_->OpenRing(ring, [this, id, make, opened](absl::StatusOr<RingSockets> sockets) {
    opening_.erase(id);
    const Job* job = FindJob(std::get<0>(id));
    if (job == nullptr || job->generation() != std::get<1>(id)) {
      if (sockets.ok()) CloseSockets(*sockets);
    } else if (sockets.ok()) {
      opened(make(*sockets));
    } else {
      opened(sockets.status());
    }
  });
}

void EngineImpl::OnRingWanted(const RingRequest& request) {
  if (request.group != wire::kMessages) return;
  Job* job = FindJob(request.job);
  if (job != nullptr && job->generation() == request.generation) {
    job->OpenMessages(request.from_node);
  }
}

void EngineImpl::CloseRings(const std::string& job) {
  for (auto next = opening_.begin(); next != opening_.end();) {
    const auto& [name, generation, group, peer] = *next;
    if (name == job) {
      data_port_->CloseRing(name, generation, group, peer);
      next = opening_.erase(next);
    } else {
      ++next;
    }
  }
}

void EngineImpl::OnRingFailed(const std::string& job, const Outcome& outcome) {
  Job* found = FindJob(job);
  if (found == nullptr) return;  // Leaving: its peers leave, too.
  GetLogger("engine")->warn("ring failed job={} generation={} node={} message=\"{}\"", job,
                            found->generation(), outcome.node, outcome.message);
  found->FailPending(outcome);
  if (events_.ring_failed) events_.ring_failed(job, absl::UnavailableError(outcome.message));
}

void EngineImpl::RemoveJob(const std::string& job, const Outcome& outcome,
                           std::function<void()> done) {
  auto shared = std::make_shared<std::function<void()>>(std::move(done));
  if (!Post([this, job, outcome, shared] { Remove(job, outcome, *shared); })) (*shared)();
}

void EngineImpl::Remove(const std::string& job, const Outcome& outcome,
                        std::function<void()> done) {
  if (const auto preparing = preparing_.find(job); preparing != preparing_.end()) {
    data_port_->CloseRing(job, preparing->second.generation);
    const auto prepared = std::move(preparing->second.done);
    preparing_.erase(preparing);
    prepared(absl::AbortedError(absl::StrCat("job ", job, " was removed")));
    return done();
  }
  auto found = jobs_.extract(job);
  if (found.empty()) return done();
  CloseRings(job);
  found.mapped()->Remove(outcome);
  leaving_.push_back({std::move(found.mapped()), std::move(done)});
  GetLogger("engine")->info("job removed job={} generation={}", job,
                            leaving_.back().job->generation());
}

void EngineImpl::ReapRemoved() {
  const auto gone =
      std::stable_partition(leaving_.begin(), leaving_.end(),
                            [](const Leaving& leaving) { return !leaving.job->removed(); });
  std::vector<Leaving> removed(std::make_move_iterator(gone),
                               std::make_move_iterator(leaving_.end()));
  leaving_.erase(gone, leaving_.end());
  for (Leaving& leaving : removed) {
    leaving.job.reset();
    leaving.done();
  }
  UpdateRings();
}

void EngineImpl::UpdateRings() {
  has_rings_ = false;
  for (const auto& [name, job] : jobs_) has_rings_ |= job->has_ring();
  for (const Leaving& leaving : leaving_) has_rings_ |= leaving.job->has_ring();
}

absl::StatusOr<int> EngineImpl::AddClient(const std::string& job, int rank, uint64_t arena,
                                          ArenaSegment segment) {
  auto fd = std::make_shared<UniqueFd>(segment.fd);
  auto doorbell = std::make_shared<UniqueFd>();
  absl::Status status = Call([=, this, bytes = segment.bytes]() -> absl::Status {
    Job* found = FindJob(job);
    if (found == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job, " on this node"));
    const absl::StatusOr<int> result = found->AddClient(rank, arena, {fd->release(), bytes});
    if (!result.ok()) return result.status();
    doorbell->reset(*result);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return doorbell->release();
}

absl::StatusOr<int> EngineImpl::ShareSegment(const std::string& job) {
  auto segment = std::make_shared<int>(-1);
  const absl::Status status = Call([=, this]() -> absl::Status {
    Job* found = FindJob(job);
    if (found == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job, " on this node"));
    const absl::StatusOr<int> shared = found->ShareSegment();
    if (shared.ok()) *segment = *shared;
    return shared.status();
  });
  if (!status.ok()) return status;
  return *segment;
}

absl::Status EngineImpl::AddSegment(const std::string& job, int rank, uint64_t arena,
                                    uint32_t index, ArenaSegment segment) {
  auto fd = std::make_shared<UniqueFd>(segment.fd);
  return Call([=, this, bytes = segment.bytes]() -> absl::Status {
    Job* found = FindJob(job);
    if (found == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job, " on this node"));
    return found->AddSegment(rank, arena, index, {fd->release(), bytes});
  });
}

absl::Status EngineImpl::SetClientProcess(const std::string& job, int rank, uint64_t arena, int pid,
                                          int pidfd) {
  auto fd = std::make_shared<UniqueFd>(pidfd);
  return Call([=, this]() -> absl::Status {
    Job* found = FindJob(job);
    if (found == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job, " on this node"));
    return found->SetClientProcess(rank, arena, pid, std::move(*fd));
  });
}

void EngineImpl::RemoveClient(const std::string& job, int rank, uint64_t arena) {
  Post([=, this] {
    if (Job* found = FindJob(job); found != nullptr) found->RemoveClient(rank, arena);
  });
}

void EngineImpl::RankEnded(const std::string& job, int rank, const Outcome& outcome) {
  Post([=, this] {
    if (Job* found = FindJob(job); found != nullptr) found->RankEnded(rank, outcome);
  });
}

void EngineImpl::FailJob(const std::string& job, const Outcome& outcome) {
  Post([=, this] {
    if (Job* found = FindJob(job); found != nullptr) found->Fail(outcome);
  });
}

void EngineImpl::SetEvents(Events events) {
  auto shared = std::make_shared<Events>(std::move(events));
  Call([this, shared] {
    events_ = *shared;
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace ringd::daemon
