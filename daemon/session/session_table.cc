#include "daemon/session/session_table.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/crypto/crypto.h"
#include "common/status/macros.h"
#include "proto/arena.h"
#include "proto/attach.h"

namespace ringd::daemon {
namespace {

constexpr char kDenied[] =
    "not admitted to this job: the token is wrong or the job is another user's";

node::v1::RankLayout LayoutOf(const cluster::v1::Prepare& order, int rank) {
  const cluster::v1::GenerationNode& here = order.nodes(order.node_index());
  const cluster::v1::GenerationNode& last = order.nodes(order.nodes_size() - 1);
  node::v1::RankLayout layout;
  layout.set_rank(rank);
  layout.set_size(last.first_rank() + last.rank_count());
  layout.set_local_rank(rank - here.first_rank());
  layout.set_local_size(here.rank_count());
  layout.set_node_rank(order.node_index());
  layout.set_node_count(order.nodes_size());
  return layout;
}

}  // namespace

SessionTable::SessionTable(SessionOptions options) : options_(std::move(options)) {}

void SessionTable::AddJob(const cluster::v1::Prepare& order) {
  RemoveJob(order.job());
  const cluster::v1::GenerationNode& here = order.nodes(order.node_index());
  MutexLock lock(&mu_);
  Job& job = jobs_[order.job()];
  job.uid = order.uid();
  job.generation = order.generation();
  job.token = order.token();
  for (int rank = here.first_rank(); rank < here.first_rank() + here.rank_count(); ++rank) {
    job.ranks[rank].layout = LayoutOf(order, rank);
  }
  if (options_.users) options_.users(UsersLocked());
}

void SessionTable::RemoveJob(const std::string& job) {
  std::vector<std::shared_ptr<WorkerLine>> lines;
  {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    for (auto& [number, rank] : found->second.ranks) {
      if (rank.line != nullptr) lines.push_back(std::move(rank.line));
      sessions_.erase(rank.secret);
    }
    jobs_.erase(found);
    if (options_.users) options_.users(UsersLocked());
  }
  for (const auto& line : lines) line->Close();
}

absl::StatusOr<SessionTable::Rank*> SessionTable::Check(const PeerCredentials& peer,
                                                        const node::v1::AttachRequest& request) {
  if (request.layout_version() != arena::kLayoutVersion || request.version() != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "versions differ: this daemon is ", kVersion, " (arena layout ", arena::kLayoutVersion,
        "), the caller is ", request.version(), " (arena layout ", request.layout_version(),
        "); install the same version for both"));
  }
  const auto found = jobs_.find(request.job());
  if (found == jobs_.end())
    return absl::NotFoundError(absl::StrCat("no job ", request.job(), " on this node"));
  Job& job = found->second;
  if (peer.uid != job.uid || !ConstantTimeEqual(request.token(), job.token)) {
    return absl::PermissionDeniedError(kDenied);
  }
  const auto rank = job.ranks.find(request.rank());
  if (rank == job.ranks.end()) {
    return absl::NotFoundError(
        absl::StrCat("job ", request.job(), " has no rank ", request.rank(), " on this node"));
  }
  return &rank->second;
}

node::v1::AttachResponse SessionTable::OpenSession(const std::string& job, Rank& rank) {
  sessions_.erase(rank.secret);
  rank.secret = RandomBytes(attach::kSessionBytes);
  sessions_[rank.secret] = SessionOwner{job, rank.layout.rank()};
  node::v1::AttachResponse response;
  response.set_session(rank.secret);
  response.set_arena_socket(options_.arena_socket);
  response.set_generation(jobs_[job].generation);
  *response.mutable_layout() = rank.layout;
  response.set_node(options_.node);
  response.mutable_reattach_timeout()->set_seconds(absl::ToInt64Seconds(options_.reattach_timeout));
  response.mutable_reattach_timeout()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(options_.reattach_timeout % absl::Seconds(1))));
  return response;
}

absl::StatusOr<SessionTable::Attachment> SessionTable::AttachWorker(
    const PeerCredentials& peer, const node::v1::AttachRequest& request,
    std::function<void()> cancel) {
  Attachment attachment;
  std::shared_ptr<WorkerLine> older;
  {
    MutexLock lock(&mu_);
    RINGD_ASSIGN_OR_RETURN(Rank * rank, Check(peer, request));
    if (rank->worker_pid != 0 && rank->worker_pid != peer.pid) {
      return absl::PermissionDeniedError(absl::StrCat("rank ", request.rank(), " of job ",
                                                      request.job(), " is supervised by pid ",
                                                      rank->worker_pid));
    }
    attachment.response = OpenSession(request.job(), *rank);
    attachment.line = std::make_shared<WorkerLine>(++line_count_, std::move(cancel));
    older = std::exchange(rank->line, attachment.line);
  }
  if (older != nullptr) older->Close();
  return attachment;
}

absl::StatusOr<node::v1::AttachResponse> SessionTable::AttachProgram(
    const PeerCredentials& peer, const node::v1::AttachRequest& request) {
  MutexLock lock(&mu_);
  RINGD_ASSIGN_OR_RETURN(Rank * rank, Check(peer, request));
  return OpenSession(request.job(), *rank);
}

bool SessionTable::Detach(const std::string& job, int rank, const WorkerLine& line) {
  MutexLock lock(&mu_);
  Rank* found = FindLocked(job, rank);
  if (found == nullptr || found->line == nullptr || found->line->id() != line.id()) return false;
  found->line.reset();
  return true;
}

void SessionTable::SetWorker(const std::string& job, int rank, pid_t pid) {
  MutexLock lock(&mu_);
  Rank* found = FindLocked(job, rank);
  if (found != nullptr) found->worker_pid = pid;
}

bool SessionTable::Order(const std::string& job, int rank, node::v1::WorkerOrder order) {
  std::shared_ptr<WorkerLine> line;
  {
    MutexLock lock(&mu_);
    const Rank* found = FindLocked(job, rank);
    if (found != nullptr) line = found->line;
  }
  if (line == nullptr) return false;
  line->Push(std::move(order));
  return true;
}

absl::StatusOr<SessionOwner> SessionTable::FindSession(const std::string& secret, uid_t uid) const {
  MutexLock lock(&mu_);
  const auto found = sessions_.find(secret);
  if (found == sessions_.end()) return absl::NotFoundError("no such session: attach again");
  const auto job = jobs_.find(found->second.job);
  if (job == jobs_.end() || job->second.uid != uid) return absl::PermissionDeniedError(kDenied);
  return found->second;
}

bool SessionTable::HasJobOf(uid_t uid) const {
  MutexLock lock(&mu_);
  for (const auto& [name, job] : jobs_) {
    if (job.uid == uid) return true;
  }
  return false;
}

std::set<uint32_t> SessionTable::Users() const {
  MutexLock lock(&mu_);
  return UsersLocked();
}

std::set<uint32_t> SessionTable::UsersLocked() const {
  std::set<uint32_t> users;
  for (const auto& [name, job] : jobs_) users.insert(job.uid);
  return users;
}

SessionTable::Rank* SessionTable::FindLocked(const std::string& job, int rank) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return nullptr;
  const auto each = found->second.ranks.find(rank);
  return each == found->second.ranks.end() ? nullptr : &each->second;
}

}  // namespace ringd::daemon
