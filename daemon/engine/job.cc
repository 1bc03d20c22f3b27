#include "daemon/engine/job.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/futex.h"
#include "common/log/log.h"
#include "common/status/macros.h"

namespace ringd::daemon {
namespace {

constexpr size_t kDrainBudget = 256;  // Descriptors of one client a round: others get their turn.

Outcome FailureFrom(const Outcome& outcome, const char* message) {
  if (!outcome.ok()) return outcome;
  Outcome failure = outcome;
  failure.code = arena::Code::kUnavailable;
  failure.message = message;
  return failure;
}

}  // namespace

Job::Job(const JobGeneration& generation, std::unique_ptr<Communicator> communicator,
         EventLoop* loop, uint64_t incarnation, Events events)
    : generation_(generation),
      incarnation_(incarnation),
      loop_(loop),
      events_(std::move(events)),
      communicator_(std::move(communicator)),
      book_(generation.layout),
      ranks_(generation.layout.local_count()),
      next_stall_us_(generation.first_stall_us) {
  communicator_->set_peer_failure_handler(
      [this](OperationKey key, bool from, const Outcome& outcome) {
        book_.FailByPeer(key, from, outcome, &actions_);
        Perform();
      });
}

Job::~Job() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) Detach(static_cast<int>(rank));
  communicator_.reset();
}

absl::StatusOr<int> Job::LocalRank(int rank) const {
  const int local_rank = rank - generation_.layout.first_local_rank();
  if (removing_ || local_rank < 0 || local_rank >= generation_.layout.local_count()) {
    return absl::NotFoundError(
        absl::StrCat("job ", name(), " has no rank ", rank, " on this node"));
  }
  return local_rank;
}

Client* Job::FindClient(int rank, uint64_t arena) {
  const absl::StatusOr<int> local_rank = LocalRank(rank);
  if (!local_rank.ok()) return nullptr;
  Client* client = ranks_[*local_rank].client.get();
  return client != nullptr && client->arena() == arena ? client : nullptr;
}

absl::StatusOr<int> Job::AddClient(int rank, uint64_t arena, ArenaSegment segment) {
  UniqueFd fd(segment.fd);
  RINGD_ASSIGN_OR_RETURN(const int local_rank, LocalRank(rank));
  if (ranks_[local_rank].ended)
    return absl::NotFoundError(absl::StrCat("rank ", rank, " has ended"));
  if (ranks_[local_rank].client != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("rank ", rank, " is held by process ",
                                                 ranks_[local_rank].client->pid(),
                                                 "; let it finish or call shutdown there"));
  }
  auto view = ArenaView::Map(std::move(fd), segment.bytes);
  if (!view.ok()) return view.status();
  UniqueFd doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd copy(doorbell.valid() ? dup(doorbell.get()) : -1);
  if (!copy.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("no doorbell: ", std::strerror(errno)));
  }
  RINGD_RETURN_IF_ERROR(loop_->Watch(doorbell.get(), EPOLLIN | EPOLLET, [](uint32_t) {}));
  const ClientIdentity identity{local_rank, rank,         generation_.layout.size(),
                                arena,      generation(), incarnation_};
  ranks_[local_rank].client =
      std::make_unique<Client>(identity, *std::move(view), std::move(doorbell));
  return copy.release();
}

absl::Status Job::AddSegment(int rank, uint64_t arena, uint32_t index, ArenaSegment segment) {
  UniqueFd fd(segment.fd);
  Client* client = FindClient(rank, arena);
  if (client == nullptr) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " has no arena ", arena));
  }
  return client->view().AddSegment(index, std::move(fd), segment.bytes);
}

absl::Status Job::SetClientProcess(int rank, uint64_t arena, int pid, UniqueFd pidfd) {
  Client* client = FindClient(rank, arena);
  if (client == nullptr) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " has no arena ", arena));
  }
  if (client->pidfd() >= 0) return absl::AlreadyExistsError("the arena's process is known already");
  RINGD_RETURN_IF_ERROR(loop_->Watch(pidfd.get(), EPOLLIN, [this, rank, arena](uint32_t) {
    Client* dead = FindClient(rank, arena);
    if (dead != nullptr) OnClientDied(dead);
  }));
  client->SetProcess(pid, std::move(pidfd));
  return absl::OkStatus();
}

void Job::OnClientDied(Client* client) {
  const int rank = client->rank();
  const int pid = client->pid();
  RemoveClient(rank, client->arena());
  events_.client_died(rank, pid);
}

void Job::RemoveClient(int rank, uint64_t arena) {
  Client* client = FindClient(rank, arena);
  if (client == nullptr) return;
  // What was published whole before the end is carried out; the queue holds no more than this many
  // rounds.
  for (uint32_t i = 0; i <= arena::kSlotCount / kDrainBudget && client->HasWork(); ++i)
    DrainClient(client);
  Detach(client->local_rank());
  FreeDetached();
}

void Job::Detach(int local_rank) {
  std::unique_ptr<Client>& client = ranks_[local_rank].client;
  if (client == nullptr) return;
  loop_->Unwatch(client->doorbell());
  if (client->pidfd() >= 0) loop_->Unwatch(client->pidfd());
  client->ForgetProcess();
  detached_.push_back(std::move(client));
}

void Job::FreeDetached() {
  std::erase_if(detached_, [](const auto& client) { return client->in_flight() == 0; });
}

void Job::RankEnded(int rank, const Outcome& outcome) {
  const absl::StatusOr<int> local_rank = LocalRank(rank);
  if (!local_rank.ok() || ranks_[*local_rank].ended) return;
  if (Client* client = ranks_[*local_rank].client.get(); client != nullptr) {
    RemoveClient(rank, client->arena());
  }
  ranks_[*local_rank].ended = true;
  Outcome failure = outcome;
  failure.code = arena::Code::kPeerFailed;
  failure.rank = rank;
  CutOff(*local_rank, failure);
}

void Job::CutOff(int local_rank, const Outcome& outcome) {
  book_.EndRank(local_rank, outcome, &actions_);
  Perform();
}

void Job::FailClient(Client* client, const std::string& reason) {
  if (client->poisoned()) return;
  GetLogger("engine")->error("client cut off job={} rank={} pid={} reason=\"{}\"", name(),
                             client->rank(), client->pid(), reason);
  Outcome own;
  own.code = arena::Code::kInvalidArgument;
  own.rank = client->rank();
  own.message = absl::StrCat("the daemon has cut this process off: ", reason);
  client->Poison(own);
  Outcome peers;
  peers.code = arena::Code::kPeerFailed;
  peers.message = absl::StrCat("rank ", client->rank(), " was cut off by its daemon: ", reason);
  CutOff(client->local_rank(), peers);
  events_.client_failed(client->rank(), reason);
}

void Job::Fail(const Outcome& outcome) {
  const Outcome failure = FailureFrom(outcome, "the job was stopped");
  FailPending(failure);
  std::vector<OperationKey> firsts;
  for (const auto& [key, started] : started_) {
    if (firsts.empty() || firsts.back().channel != key.channel) firsts.push_back(key);
  }
  for (const OperationKey& key : firsts) communicator_->AbortFrom(key, failure);
}

void Job::FailPending(const Outcome& outcome) {
  book_.FailAll(outcome, &actions_);
  Perform();
}

void Job::Remove(const Outcome& outcome) {
  if (removing_) return;
  const Outcome failure = FailureFrom(outcome, "the job is over");
  Fail(failure);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].client == nullptr) continue;
    ranks_[rank].client->Poison(failure);
    Detach(static_cast<int>(rank));
  }
  removing_ = true;
  FreeDetached();
}

bool Job::Poll() {
  bool worked = false;
  for (Rank& rank : ranks_) {
    if (rank.client != nullptr && rank.client->HasWork()) worked |= DrainClient(rank.client.get());
  }
  worked |= communicator_->Progress();
  if (!detached_.empty()) FreeDetached();
  return worked;
}

bool Job::DrainClient(Client* client) {
  size_t read = 0;
  const absl::Status status = client->Drain(
      kDrainBudget, [&](RequestPtr request) { return SubmitOf(client, std::move(request)); },
      &read);
  Perform();
  if (!status.ok()) FailClient(client, std::string(status.message()));
  return read > 0 || !status.ok();
}

absl::Status Job::SubmitOf(Client* client, RequestPtr request) {
  return book_.Submit(client->local_rank(), std::move(request), MonotonicMicros(), &actions_);
}

bool Job::HasWork() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.client != nullptr && rank.client->HasWork();
  });
}

void Job::SetSleeping(bool sleeping) {
  for (Rank& rank : ranks_) {
    if (rank.client != nullptr) rank.client->view().set_sleeping(sleeping);
  }
}

void Job::CheckMemory() {
  for (Rank& rank : ranks_) {
    if (rank.client != nullptr && rank.client->view().bad()) {
      FailClient(rank.client.get(), "pages of its arena were taken away");
    }
  }
}

void Job::Perform() {
  if (performing_) return;
  performing_ = true;
  while (!actions_.empty()) {
    Actions batch;
    batch.swap(actions_);
    for (Action& action : batch) PerformOne(&action);
  }
  performing_ = false;
}

void Job::PerformOne(Action* action) {
  switch (action->kind) {
    case Action::Kind::kStart:
      return StartOperation(action);
    case Action::Kind::kTell:
      for (const RequestPtr& request : action->requests)
        request->client->Finish(*request, *action->outcome);
      return;
    case Action::Kind::kAbort:
      return communicator_->Abort(action->key, *action->outcome);
    case Action::Kind::kAbortFrom:
      return communicator_->AbortFrom(action->key, *action->outcome);
  }
}

void Job::StartOperation(Action* action) {
  const OperationKey key = action->key;
  const GroupLayout& layout = generation_.layout;
  auto collective = MakeCollective(action->requests, layout, layout.node_count() > 1);
  started_[key] = Started{std::move(action->requests), MonotonicMicros()};
  communicator_->Start(key, std::move(collective),
                       [this, key](const Outcome& outcome) { OnDone(key, outcome); });
}

void Job::OnDone(OperationKey key, const Outcome& outcome) {
  auto node = started_.extract(key);
  if (node.empty()) return;
  const std::vector<RequestPtr>& requests = node.mapped().requests;
  Outcome result = outcome;
  if (SigbusGuard::FaultCount() > 0 && result.ok()) {
    for (const RequestPtr& request : requests) {
      if (!request->client->view().bad()) continue;
      result.code = arena::Code::kPeerFailed;
      result.rank = request->client->rank();
      result.message = absl::StrCat("memory of rank ", result.rank, " was taken away");
    }
  }
  AgreeOnPlan(*requests[0], result);
  for (const RequestPtr& request : requests) request->client->Finish(*request, result);
  Perform();
}

void Job::AgreeOnPlan(const Request& request, const Outcome& outcome) {
  if (!outcome.ok()) return;
  if (request.operation == Operation::kPlanRegister) {
    const auto bucket_count = static_cast<uint32_t>(request.plan->buckets().size());
    book_.OpenPlan(request.group, request.plan_id, bucket_count, &actions_);
  } else if (request.operation == Operation::kPlanUnregister) {
    book_.ClosePlan(request.group, request.plan_id, &actions_);
  }
}

void Job::CheckStalls(int64_t now_us) {
  if (removing_) return;
  const int64_t first_us = generation_.first_stall_us;
  std::vector<Waiting> waiting = book_.WaitingSince(now_us - first_us, 1);
  for (const auto& [key, started] : started_) {
    const bool is_older = waiting.empty() || started.since_us < waiting[0].since_us;
    if (started.since_us > now_us - first_us || !is_older) continue;
    waiting = {{key, started.since_us, DescribeRequest(*started.requests[0]), {}, {}}};
  }
  if (waiting.empty()) {
    next_stall_us_ = first_us;
    if (std::exchange(stalled_, {}).sequence != 0) events_.stalled({});
    return;
  }
  if (!(waiting[0].key == stalled_)) next_stall_us_ = first_us;
  const int64_t age_us = now_us - waiting[0].since_us;
  if (age_us < next_stall_us_) return;
  stalled_ = waiting[0].key;
  next_stall_us_ = 2 * age_us;
  for (int local_rank : waiting[0].present) {
    if (ranks_[local_rank].client != nullptr) ranks_[local_rank].client->view().CountStall();
  }
  events_.stalled({StallReport(waiting[0], now_us), age_us, !waiting[0].missing.empty()});
}

std::string Job::StallReport(const Waiting& waiting, int64_t now_us) const {
  const GroupLayout& layout = generation_.layout;
  const std::string& node = layout.nodes[layout.node_index].name;
  std::string report = absl::StrCat("operation s.", waiting.key.sequence, " (", waiting.description,
                                    ") has waited ", (now_us - waiting.since_us) / 1'000'000, " s");
  const char* separator = ": ";
  for (int local_rank : waiting.missing) {
    absl::StrAppend(
        &report, separator, "rank ", layout.first_local_rank() + local_rank, " (node ", node, ") ",
        ranks_[local_rank].client != nullptr ? "alive, has not called" : "has no process attached");
    separator = "; ";
  }
  if (!waiting.missing.empty()) return report;
  if (layout.node_count() == 1) return report + ": it is being carried out";
  absl::StrAppend(&report, ": all ranks of node ", node, " have called; waits for");
  separator = " ";
  for (int i = 0; i < layout.node_count(); ++i) {
    const GroupLayout::Node& other = layout.nodes[i];
    if (i == layout.node_index) continue;
    absl::StrAppend(&report, separator, "node ", other.name, " (rank ", other.first_rank);
    if (other.rank_count > 1) {
      absl::StrAppend(&report, " to ", other.first_rank + other.rank_count - 1);
    }
    absl::StrAppend(&report, ")");
    separator = ", ";
  }
  return report;
}

}  // namespace ringd::daemon
