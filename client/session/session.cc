#include "client/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/codes.h"
#include "client/session/memory_limit.h"
#include "common/base/futex.h"
#include "common/base/unix_socket.h"
#include "common/base/version.h"
#include "common/rpc/rpc.h"
#include "common/status/macros.h"
#include "proto/arena.h"
#include "proto/attach.h"
#include "proto/node.grpc.pb.h"

namespace ringd::session {
namespace {

// Arenas of clients that attach by themselves are numbered apart from the worker's 1, 2, ...: by
// the clock, so that two of them one after the other differ.
constexpr uint64_t kOwnArenaBit = uint64_t{1} << 63;

absl::Status Malformed() {
  return absl::InternalError(
      "ringd-worker's answer is malformed; install the same ringd on both sides");
}

absl::Status ParseRefusal(const std::vector<char>& packet) {
  attach::Refusal refusal;
  if (packet.size() != sizeof(refusal)) return Malformed();
  memcpy(&refusal, packet.data(), sizeof(refusal));
  if (refusal.header.kind != attach::Kind::kRefusal) return Malformed();
  const std::string text = ReadText(refusal.text, sizeof(refusal.text));
  if (refusal.pid != 0) return absl::FailedPreconditionError(text);
  const absl::Status status = ToStatus(refusal.code, text);
  return status.ok() ? Malformed() : status;
}

}  // namespace

Session::Session(const SessionOptions& options, UniqueFd worker)
    : worker_(std::move(worker)),
      keeper_(options.arena_bytes, options.arena_max_bytes, [] { return ReadMemoryLimit(""); }) {}

Session::~Session() { Detach().IgnoreError(); }

absl::StatusOr<std::unique_ptr<Session>> Session::Attach(const SessionOptions& options) {
  if (options.worker_socket.empty()) {
    return absl::InvalidArgumentError(
        "RINGD_SOCKET is not set: start this program with 'ringctl run -- PROGRAM'");
  }
  UniqueFd worker;
  if (const int rc = ConnectUnix(options.worker_socket, SOCK_SEQPACKET, &worker); rc < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ringd-worker listens on RINGD_SOCKET=", options.worker_socket, " (",
                     strerror(-rc), "): start this program with 'ringctl run'"));
  }
  auto session = absl::WrapUnique(new Session(options, std::move(worker)));
  RINGD_RETURN_IF_ERROR(session->RequestToken(options.timeout));
  RINGD_RETURN_IF_ERROR(session->OpenSession(options.timeout));
  RINGD_RETURN_IF_ERROR(session->OfferArena());
  return session;
}

absl::Status Session::RequestToken(absl::Duration timeout) {
  attach::NeedToken need;
  memset(&need, 0, sizeof(need));
  need.header.kind = attach::Kind::kNeedToken;
  need.header.version = attach::kVersion;
  SendPacket(worker_.get(), &need, sizeof(need), nullptr, 0);
  std::vector<char> packet(std::max(sizeof(attach::TokenGrant), sizeof(attach::Refusal)));
  const ssize_t got = ReceivePacket(worker_.get(), packet.data(), packet.size(), nullptr,
                                    absl::ToInt64Microseconds(timeout));
  if (got == -ETIMEDOUT)
    return absl::DeadlineExceededError("ringd-worker has not answered: is its daemon running?");
  if (got <= 0)
    return absl::UnavailableError("ringd-worker has closed the connection: the job is ending");
  packet.resize(got);
  attach::TokenGrant grant;
  if (packet.size() != sizeof(grant)) return ParseRefusal(packet);
  memcpy(&grant, packet.data(), sizeof(grant));
  if (grant.header.kind != attach::Kind::kTokenGrant || grant.header.version != attach::kVersion ||
      grant.token_bytes > sizeof(grant.token)) {
    return Malformed();
  }
  job_ = ReadText(grant.job, sizeof(grant.job));
  daemon_socket_ = ReadText(grant.daemon_socket, sizeof(grant.daemon_socket));
  request_.set_job(job_);
  request_.set_rank(grant.rank);
  request_.set_token(std::string(reinterpret_cast<const char*>(grant.token), grant.token_bytes));
  request_.set_layout_version(arena::kLayoutVersion);
  request_.set_version(kVersion);
  return absl::OkStatus();
}

absl::Status Session::OpenSession(absl::Duration timeout) {
  RINGD_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         Connect(daemon_socket_, TlsFiles{}));
  const auto stub = node::v1::Node::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  context.set_wait_for_ready(true);
  return FromGrpc(stub->Attach(&context, request_, &attached_));
}

absl::Status Session::OfferArena() {
  RINGD_RETURN_IF_ERROR(keeper_.CreateFirst());
  RINGD_ASSIGN_OR_RETURN(line_, ArenaLine::Connect(attached_.arena_socket(), attached_.session()));
  arena_ = kOwnArenaBit | static_cast<uint64_t>(MonotonicMicros());
  RINGD_ASSIGN_OR_RETURN(links_, line_->OfferSegment(arena_, 0, segment_fd(), segment_bytes()));
  const UniqueFd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!self.valid()) return absl::InternalError(absl::StrCat("pidfd_open: ", strerror(errno)));
  return line_->ReportAttached(arena_, getpid(), self.get());
}

absl::StatusOr<Session::Segment> Session::Grow(uint64_t bytes) {
  if (line_ == nullptr) return absl::FailedPreconditionError("detached");
  RINGD_ASSIGN_OR_RETURN(const uint32_t index, keeper_.Grow(bytes));
  const ArenaKeeper::Segment& made = keeper_.segments()[index];
  RINGD_RETURN_IF_ERROR(line_->OfferSegment(arena_, index, made.fd.get(), made.bytes).status());
  Segment segment{UniqueFd(fcntl(made.fd.get(), F_DUPFD_CLOEXEC, 0)), made.bytes};
  if (!segment.fd.valid())
    return absl::ResourceExhaustedError(absl::StrCat("dup: ", strerror(errno)));
  return segment;
}

absl::Status Session::Detach() {
  if (line_ == nullptr) return absl::OkStatus();
  const absl::Status status = line_->ReportDetached(arena_);
  line_.reset();
  worker_.reset();
  return status;
}

}  // namespace ringd::session
