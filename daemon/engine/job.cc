#include "daemon/engine/job.h"

#include <fcntl.h>
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
#include "proto/operations.h"

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

// Null: a job that needs none, or no memory is left: then its daemon does everything.
std::unique_ptr<SharedSegment> MakeSegment(const JobGeneration& generation) {
  const GroupLayout& layout = generation.layout;
  if (layout.node_count() != 1 || !SharedSegment::IsFor(layout.local_count())) return nullptr;
  auto segment = SharedSegment::Create(layout.local_count());
  if (segment.ok()) return *std::move(segment);
  GetLogger("engine")->warn("no shared segment job={} reason=\"{}\"", generation.job,
                            std::string(segment.status().message()));
  return nullptr;
}

}  // namespace

Job::Job(const JobGeneration& generation, std::unique_ptr<Communicator> communicator,
         EventLoop* loop, uint64_t incarnation, Events events)
    : generation_(generation),
      incarnation_(incarnation),
      loop_(loop),
      events_(std::move(events)),
      ranks_(generation.layout.local_count()),
      messages_(generation.layout, MessagesHost()),
      detector_(generation.layout.node_index, generation.layout.node_count()),
      next_stall_us_(generation.first_stall_us) {
  groups_[0] = MakeGroup(0, generation.layout, std::move(communicator), MakeSegment(generation));
  job_group().set_probe_handler([this](const std::string& text) { return OnProbe(text); });
}

Job::~Job() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) Detach(static_cast<int>(rank));
}

bool Job::removed() const {
  return removing_ && retired_.empty() && messages_.idle() &&
         std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group.second->idle(); });
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
  auto view = ArenaView::Map(std::move(fd), segment.bytes, static_cast<uint32_t>(local_rank));
  if (!view.ok()) return view.status();
  UniqueFd doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd copy(doorbell.valid() ? dup(doorbell.get()) : -1);
  if (!copy.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("no doorbell: ", std::strerror(errno)));
  }
  RINGD_RETURN_IF_ERROR(loop_->Watch(doorbell.get(), EPOLLIN | EPOLLET, [](uint32_t) {}));
  const uint64_t sequence = job_group().Position(local_rank);
  const ClientIdentity identity{
      local_rank, rank, generation_.layout.size(), arena, generation(), incarnation_, sequence};
  ranks_[local_rank].client =
      std::make_unique<Client>(identity, *std::move(view), std::move(doorbell));
  return copy.release();
}

absl::StatusOr<int> Job::ShareSegment() const {
  const SharedSegment* segment = job_group().segment();
  if (segment == nullptr) return -1;
  UniqueFd copy(fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return absl::ResourceExhaustedError("no descriptor for the shared segment");
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
  past_activity_ += client->activity() + 1;
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
  auto& cut_off = ranks_[local_rank].cut_off;
  if (cut_off == nullptr) cut_off = std::make_shared<Outcome>(outcome);
  for (const auto& [id, group] : groups_) group->EndRank(local_rank, outcome);
  messages_.EndRank(local_rank, outcome);
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
  for (const auto& [id, group] : groups_) group->FailAll(failure);
}

void Job::FailPending(const Outcome& outcome) {
  if (failed_ == nullptr) failed_ = std::make_shared<Outcome>(outcome);
  for (const auto& [id, group] : groups_) group->FailPending(outcome);
  messages_.FailAll(outcome);
  FailOpening(outcome);
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
  const bool drained = Drain();
  return Progress() || drained;
}

bool Job::Drain() {
  bool worked = false;
  for (Rank& rank : ranks_) {
    if (rank.client != nullptr && rank.client->HasWork()) worked |= DrainClient(rank.client.get());
  }
  worked |= job_group().TakeDirect();
  if (!detached_.empty()) FreeDetached();
  return worked;
}

bool Job::Progress() {
  bool worked = false;
  auto next = groups_.upper_bound(last_group_);
  for (size_t tries = groups_.size(); tries > 0; --tries, ++next) {
    if (next == groups_.end()) next = groups_.begin();
    if (!next->second->Progress()) continue;
    last_group_ = next->first;
    worked = true;
    break;
  }
  for (const auto& group : retired_) worked |= group->Progress();
  worked |= messages_.Poll();
  std::erase_if(retired_, [](const auto& group) { return group->idle(); });
  return worked;
}

bool Job::DrainClient(Client* client) {
  size_t read = 0;
  const absl::Status status = client->Drain(
      kDrainBudget, [&](RequestPtr request) { return SubmitOf(client, std::move(request)); },
      &read);
  if (!status.ok()) FailClient(client, std::string(status.message()));
  return read > 0 || !status.ok();
}

absl::Status Job::SubmitOf(Client* client, RequestPtr request) {
  const auto group = groups_.find(request->group);
  if (group == groups_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("group ", request->group, " is not there"));
  }
  if (IsMessage(request->operation)) {  // It has no place in the group's sequence.
    messages_.Submit(client->local_rank(), std::move(request));
    return absl::OkStatus();
  }
  absl::Status status = group->second->Submit(client->local_rank(), std::move(request));
  group->second->Perform();
  return status;
}

bool Job::HasWork() const {
  return job_group().LacksDirect() ||
         std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
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

}  // namespace ringd::daemon
