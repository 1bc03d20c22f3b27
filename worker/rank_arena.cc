#include "worker/rank_arena.h"

#include <utility>

#include "common/log/log.h"
#include "common/status/macros.h"

namespace ringd::worker {

RankArena::RankArena(Options options) : options_(std::move(options)) {}

absl::Status RankArena::SetSession(const node::v1::AttachResponse& session) {
  line_.reset();
  session_ = session;
  return holder_.has_value() ? OfferAgain() : absl::OkStatus();
}

void RankArena::LoseSession() {
  line_.reset();
  session_.reset();
}

absl::Status RankArena::Prepare() {
  if (keeper_ != nullptr) return absl::OkStatus();
  auto keeper = std::make_unique<session::ArenaKeeper>(
      options_.arena_bytes, options_.arena_max_bytes, options_.read_limit, options_.local_ranks);
  RINGD_RETURN_IF_ERROR(keeper->CreateFirst());
  keeper_ = std::move(keeper);
  return absl::OkStatus();
}

absl::StatusOr<session::ArenaLine::Links> RankArena::Attach(pid_t pid, UniqueFd pidfd) {
  RINGD_RETURN_IF_ERROR(Prepare());
  RINGD_RETURN_IF_ERROR(Line().status());
  ++number_;
  RINGD_ASSIGN_OR_RETURN(session::ArenaLine::Links links, Offer(0));
  granted_count_ = 1;
  holder_ = Holder{pid, std::move(pidfd)};
  const absl::Status status = Checked(line_->ReportAttached(number_, pid, holder_->pidfd.get()));
  if (!status.ok()) {
    Detach();
    return status;
  }
  return links;
}

absl::StatusOr<uint32_t> RankArena::Grow(uint64_t bytes) {
  RINGD_RETURN_IF_ERROR(Line().status());
  const bool made_before =
      keeper_->segments().size() > granted_count_ && keeper_->segments().back().bytes >= bytes;
  if (!made_before) RINGD_RETURN_IF_ERROR(keeper_->Grow(bytes).status());
  const auto index = static_cast<uint32_t>(keeper_->segments().size() - 1);
  RINGD_RETURN_IF_ERROR(Offer(index).status());
  granted_count_ = index + 1;
  return index;
}

void RankArena::Detach() {
  holder_.reset();
  keeper_.reset();
  granted_count_ = 0;
  if (line_ == nullptr) return;
  if (const absl::Status status = Checked(line_->ReportDetached(number_)); !status.ok()) {
    GetLogger("worker")->warn("detach not reported arena={} error={}", number_,
                              std::string(status.message()));
  }
}

void RankArena::GiveAway() {
  line_.reset();
  keeper_.reset();
  given_away_ = true;
}

absl::StatusOr<session::ArenaLine*> RankArena::Line() {
  if (!session_.has_value()) return absl::UnavailableError("the daemon is gone");
  if (given_away_) {
    RINGD_ASSIGN_OR_RETURN(session_, options_.attach());
    given_away_ = false;
  }
  if (line_ == nullptr) {
    RINGD_ASSIGN_OR_RETURN(
        line_, session::ArenaLine::Connect(session_->arena_socket(), session_->session()));
  }
  return line_.get();
}

absl::StatusOr<session::ArenaLine::Links> RankArena::Offer(uint32_t segment) {
  const session::ArenaKeeper::Segment& memory = keeper_->segments()[segment];
  absl::StatusOr<session::ArenaLine::Links> links =
      line_->OfferSegment(number_, segment, memory.fd.get(), memory.bytes);
  if (!links.ok()) return Checked(links.status());
  return links;
}

absl::Status RankArena::OfferAgain() {
  RINGD_RETURN_IF_ERROR(Line().status());
  for (uint32_t segment = 0; segment < granted_count_; ++segment) {
    RINGD_RETURN_IF_ERROR(Offer(segment).status());
  }
  return Checked(line_->ReportAttached(number_, holder_->pid, holder_->pidfd.get()));
}

absl::Status RankArena::Checked(absl::Status status) {
  if (absl::IsUnavailable(status)) line_.reset();
  return status;
}

}  // namespace ringd::worker
