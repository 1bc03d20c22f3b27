#include "daemon/membership/node_driver.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/futex.h"
#include "common/log/log.h"
#include "daemon/ranks/rank_sweeper.h"

namespace ringd::daemon {
namespace {

// Checks and sweeps spend their time waiting for other processes.
constexpr int kTaskThreads = 4;
constexpr absl::Duration kSweepTimeout = absl::Seconds(10);

Moment Now() {
  return Moment{absl::UnixEpoch() + absl::Microseconds(MonotonicMicros()),
                absl::ToUnixMicros(absl::Now())};
}

Outcome ToOutcome(const Cause& cause) {
  Outcome outcome;
  switch (cause.kind) {
    case Cause::Kind::kPeerFailed:
      outcome.code = arena::Code::kPeerFailed;
      break;
    case Cause::Kind::kInterrupted:  // Not the code of that name: it says that a wait may go on.
    case Cause::Kind::kUnavailable:
      outcome.code = arena::Code::kUnavailable;
      break;
  }
  outcome.message = cause.message;
  if (cause.kind == Cause::Kind::kPeerFailed) {
    outcome.rank = cause.failure.rank();
    outcome.node = cause.failure.node();
    outcome.exit_code = cause.failure.signal() == 0 ? cause.failure.exit_code() : -1;
    outcome.signal = cause.failure.signal();
    outcome.stderr_tail = cause.failure.stderr_tail();
  }
  return outcome;
}

JobGeneration ToGeneration(const cluster::v1::Prepare& order) {
  JobGeneration generation;
  generation.job = order.job();
  generation.generation = order.generation();
  generation.key = order.key();
  generation.layout.node_index = order.node_index();
  for (const cluster::v1::GenerationNode& each : order.nodes()) {
    generation.layout.nodes.push_back({each.name(), each.first_rank(), each.rank_count()});
    generation.data_addresses.push_back(each.data_address());
  }
  if (order.spec().has_stall_timeout()) {
    const google::protobuf::Duration& timeout = order.spec().stall_timeout();
    const int64_t timeout_us = timeout.seconds() * 1'000'000 + timeout.nanos() / 1'000;
    generation.first_stall_us = std::min(generation.first_stall_us, timeout_us / 2);
  }
  return generation;
}

}  // namespace

NodeDriver::NodeDriver(Options options, NodeDriverParts parts,
                       std::function<void(std::string)> exit)
    : options_(std::move(options)),
      parts_(parts),
      exit_(std::move(exit)),
      machine_(options_.machine) {
  if (!options_.scheduler.address.empty())
    link_ = std::make_unique<SchedulerLink>(options_.scheduler);
  logs_ = std::make_unique<LogReader>(options_.logs, [this](cluster::v1::LogData data) {
    if (link_ == nullptr) return;
    cluster::v1::NodeReport report;
    *report.mutable_log() = std::move(data);
    link_->Send(std::move(report));
  });
  tasks_ = std::make_unique<TaskPool>(kTaskThreads);
  SetEngineEvents();
}

NodeDriver::~NodeDriver() { Stop(); }

void NodeDriver::SetEngineEvents() {
  Engine::Events events;
  events.client_failed = [this](std::string job, int rank, std::string reason) {
    Post(event::ClientFailed{std::move(job), rank, std::move(reason)});
  };
  events.client_died = [](std::string job, int rank, int pid) {
    GetLogger("membership")->debug("client died job={} rank={} pid={}", job, rank, pid);
  };
  events.stalled = [this](std::string job, Stall stall) {
    Post(event::Stalled{std::move(job), std::move(stall.report), stall.age_us, stall.names_rank});
  };
  events.ring_failed = [this](std::string job, absl::Status status) {
    Post(event::RingFailed{std::move(job), std::move(status)});
  };
  parts_.engine->SetEvents(std::move(events));
}

int NodeDriver::Restore() {
  const std::vector<v1::JobRecord> records = parts_.records->LoadAll();
  for (const v1::JobRecord& record : records) HandleAll(event::Restored{record});
  FlushRecords();
  return static_cast<int>(records.size());
}

void NodeDriver::Start() {
  thread_ = std::thread(&NodeDriver::Run, this);
  if (link_ != nullptr) StartLink();
}

void NodeDriver::StartLink() {
  SchedulerLink::Events events;
  events.up = [this] { Post(event::SchedulerUp{}); };
  events.down = [this] {
    connected_ = false;
    Post(event::SchedulerDown{});
  };
  events.order = [this](cluster::v1::NodeOrder order) {
    if (order.has_welcome()) connected_ = true;
    if (order.has_read_log()) return logs_->Read(order.read_log());
    Post(event::SchedulerOrder{std::move(order)});
  };
  const absl::Time give_up = absl::Now() + options_.connect_timeout;
  events.unreachable = [this, give_up](std::string reason) {
    if (absl::Now() < give_up) return;
    exit_(absl::StrCat("scheduler ", options_.scheduler.address, " is unreachable: ", reason));
  };
  link_->Start(std::move(events));
}

void NodeDriver::Stop() {
  if (link_ != nullptr) link_->Stop();
  logs_.reset();
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
  tasks_.reset();
}

bool NodeDriver::EndRanks(absl::Duration grace, const std::string& reason, absl::Duration timeout) {
  Post(event::ShuttingDown{grace, reason});
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&mu_);
  while (!finished_ && absl::Now() < deadline)
    changed_.WaitWithTimeout(&mu_, deadline - absl::Now());
  return finished_;
}

std::vector<std::string> NodeDriver::Jobs() {
  MutexLock lock(&mu_);
  return jobs_;
}

void NodeDriver::FailJob(const std::string& job, const std::string& reason) {
  Post(event::RingFailed{job, absl::UnavailableError(reason)});
}

void NodeDriver::OnWorkerAttached(const std::string& job, int rank, uint64_t line, pid_t pid) {
  Post(event::WorkerAttached{job, rank, line, pid, ProcessStartTime(pid)});
}

void NodeDriver::OnWorkerReport(const std::string& job, int rank, node::v1::WorkerReport report) {
  Post(event::WorkerReported{job, rank, std::move(report)});
}

void NodeDriver::OnWorkerDetached(const std::string& job, int rank, uint64_t line) {
  Post(event::WorkerDetached{job, rank, line});
}

void NodeDriver::Post(Event event) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  mailbox_.push_back(std::move(event));
  changed_.SignalAll();
}

void NodeDriver::Run() {
  std::deque<Event> batch;
  while (true) {
    {
      MutexLock lock(&mu_);
      jobs_ = machine_.Jobs();
      while (mailbox_.empty() && !stopping_) {
        const absl::Duration left = machine_.NextDeadline() - Now().monotonic;
        if (left <= absl::ZeroDuration()) break;
        if (changed_.WaitWithTimeout(&mu_, left)) break;
      }
      if (stopping_) return;
      batch.swap(mailbox_);
    }
    for (; !batch.empty(); batch.pop_front()) HandleAll(std::move(batch.front()));
    if (machine_.NextDeadline() <= Now().monotonic) HandleAll(event::Tick{});
    FlushRecords();
  }
}

void NodeDriver::HandleAll(Event event) {
  answers_.push_back(std::move(event));
  while (!answers_.empty()) {
    const Event next = std::move(answers_.front());
    answers_.pop_front();
    for (Action& action : machine_.Handle(next, Now())) {
      std::visit([this](auto& each) { Do(each); }, action);
    }
  }
}

void NodeDriver::FlushRecords() {
  for (const auto& [job, record] : dirty_) {
    const absl::Status status = parts_.records->Write(record);
    if (!status.ok()) {
      GetLogger("membership")
          ->error("job record not written job={} reason={}", job, std::string(status.message()));
    }
  }
  dirty_.clear();
}

void NodeDriver::Do(action::SendReport& action) {
  if (link_ != nullptr) link_->Send(std::move(action.report));
}

void NodeDriver::Do(const action::Disconnect& action) {
  if (link_ != nullptr) link_->Disconnect(action.reason);
}

void NodeDriver::Do(const action::PersistTerm& action) {
  const absl::Status status = parts_.records->WriteTerm(action.term);
  if (!status.ok()) {
    GetLogger("membership")
        ->error("term not written term={} reason={}", action.term, std::string(status.message()));
  }
}

void NodeDriver::Do(const action::CheckCommand& action) {
  tasks_->Add([this, order = action.order] {
    Post(event::CommandChecked{order->job(), order->generation(),
                               parts_.spawner->CheckCommand(*order)});
  });
}

void NodeDriver::Do(const action::PrepareRing& action) {
  parts_.engine->PrepareJob(
      ToGeneration(*action.order), [this, order = action.order](absl::Status status) {
        Post(event::RingPrepared{order->job(), order->generation(), std::move(status)});
      });
}

void NodeDriver::Do(const action::OpenJob& action) {
  parts_.table->AddJob(*action.order);
  logs_->AddJob(action.order->job(), action.order->uid(),
                parts_.spawner->LogDirectory(*action.order));
}

void NodeDriver::Do(const action::CloseJob& action) {
  parts_.table->RemoveJob(action.job);
  parts_.arenas->ForgetJob(action.job);
  parts_.spawner->RemoveSockets(action.job);
  logs_->EndJob(action.job);
}

void NodeDriver::Do(const action::SpawnWorker& action) {
  const std::string& job = action.order->job();
  // A crash between the spawn and its record would leave a worker that the next daemon doesn't
  // know.
  FlushRecords();
  absl::StatusOr<Child> child = parts_.spawner->Spawn(*action.order, action.rank);
  if (!child.ok()) {
    answers_.push_back(event::SpawnFailed{
        job, action.rank,
        absl::StrCat("its ringd-worker could not be started: ", child.status().message())});
    return;
  }
  parts_.table->SetWorker(job, action.rank, child->pid);
  answers_.push_back(event::WorkerSpawned{job, action.rank, child->pid,
                                          ProcessStartTime(child->pid),
                                          parts_.spawner->LogPath(*action.order, action.rank)});
  parts_.watcher->Watch(child->pid, std::move(child->pidfd),
                        [this, job, rank = action.rank, pid = child->pid](const std::string& how) {
                          Post(event::WorkerEnded{job, rank, pid, how});
                        });
}

void NodeDriver::Do(action::OrderWorker& action) {
  parts_.table->Order(action.job, action.rank, std::move(action.order));
}

void NodeDriver::Do(const action::WatchWorker& action) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, action.pid, 0)));
  // Opened first, compared then: the descriptor stands for the process that has this start time, or
  // for nothing.
  if (!pidfd.valid() || ProcessStartTime(action.pid) != action.start_time) {
    answers_.push_back(event::WorkerEnded{action.job, action.rank, action.pid, ""});
    return;
  }
  parts_.table->SetWorker(action.job, action.rank, action.pid);
  parts_.watcher->Watch(
      action.pid, std::move(pidfd),
      [this, job = action.job, rank = action.rank, pid = action.pid](const std::string& how) {
        Post(event::WorkerEnded{job, rank, pid, how});
      });
}

void NodeDriver::Do(const action::SweepRank& action) {
  SweepOptions options = parts_.spawner->MakeSweep(*action.order, action.rank);
  options.pid = action.pid;
  options.worker_pid = action.worker_pid;
  tasks_->Add([this, options, job = action.order->job(), rank = action.rank] {
    const int left = SweepRank(options, kSweepTimeout);
    if (left > 0) {
      GetLogger("membership")
          ->error("processes of a rank can't be killed job={} rank={} left={}", job, rank, left);
    }
    Post(event::RankSwept{job, rank});
  });
}

void NodeDriver::Do(const action::EndRank& action) {
  parts_.engine->RankEnded(action.job, action.rank, ToOutcome(action.cause));
  parts_.arenas->EndRank(action.job, action.rank);
  logs_->EndRank(action.job, action.rank);
}

void NodeDriver::Do(const action::FailJob& action) {
  parts_.engine->FailJob(action.job, ToOutcome(action.cause));
}

void NodeDriver::Do(const action::RemoveJob& action) {
  parts_.engine->RemoveJob(action.job, ToOutcome(action.cause),
                           [this, job = action.job] { Post(event::JobRemoved{job}); });
}

void NodeDriver::Do(action::WriteRecord& action) {
  const std::string job = action.record.order().job();
  dirty_[job] = std::move(action.record);
}

void NodeDriver::Do(const action::RemoveRecord& action) {
  dirty_.erase(action.job);
  parts_.records->Remove(action.job);
}

void NodeDriver::Do(const action::Log& action) {
  const auto log = GetLogger("membership");
  switch (action.level) {
    case action::Log::Level::kInfo:
      return log->info("{}", action.text);
    case action::Log::Level::kWarning:
      return log->warn("{}", action.text);
    case action::Log::Level::kError:
      return log->error("{}", action.text);
  }
}

void NodeDriver::Do(const action::Exit& action) { exit_(action.reason); }

void NodeDriver::Do(const action::Finished&) {
  MutexLock lock(&mu_);
  finished_ = true;
  changed_.SignalAll();
}

}  // namespace ringd::daemon
