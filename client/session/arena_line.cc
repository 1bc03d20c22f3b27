#include "client/session/arena_line.h"

#include <string.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "client/session/codes.h"
#include "common/base/unix_socket.h"
#include "common/status/macros.h"
#include "proto/attach.h"

namespace ringd::session {
namespace {

// The daemon answers within milliseconds; mapping a segment of many GB takes it longer.
constexpr int64_t kAnswerTimeoutMicros = 10'000'000;

template <typename Message>
Message MakeMessage(attach::Kind kind) {
  Message message;
  memset(&message, 0, sizeof(message));
  message.header.kind = kind;
  message.header.version = attach::kVersion;
  return message;
}

}  // namespace

ArenaLine::ArenaLine(UniqueFd socket, std::string session)
    : socket_(std::move(socket)), session_(std::move(session)) {}

absl::StatusOr<std::unique_ptr<ArenaLine>> ArenaLine::Connect(const std::string& path,
                                                              const std::string& session) {
  if (session.size() != attach::kSessionBytes) {
    return absl::InternalError(absl::StrCat("the daemon's session has ", session.size(),
                                            " bytes, not ", attach::kSessionBytes));
  }
  UniqueFd socket;
  if (const int rc = ConnectUnix(path, SOCK_SEQPACKET, &socket); rc < 0) {
    return absl::UnavailableError(
        absl::StrCat("connecting to the daemon at ", path, ": ", strerror(-rc)));
  }
  return absl::WrapUnique(new ArenaLine(std::move(socket), session));
}

absl::StatusOr<ArenaLine::Links> ArenaLine::OfferSegment(uint64_t arena, uint32_t segment, int fd,
                                                         uint64_t bytes) {
  auto offer = MakeMessage<attach::ArenaOffer>(attach::Kind::kArenaOffer);
  offer.arena = arena;
  offer.segment = segment;
  offer.bytes = bytes;
  RINGD_ASSIGN_OR_RETURN(Links links, Exchange(offer, fd));
  if (segment == 0 && !links.doorbell.valid()) {
    return absl::InternalError("the daemon sent no doorbell");
  }
  return links;
}

absl::Status ArenaLine::ReportAttached(uint64_t arena, int pid, int pidfd) {
  auto message = MakeMessage<attach::ClientAttached>(attach::Kind::kClientAttached);
  message.arena = arena;
  message.pid = pid;
  return Exchange(message, pidfd).status();
}

absl::Status ArenaLine::ReportDetached(uint64_t arena) {
  auto message = MakeMessage<attach::ClientDetached>(attach::Kind::kClientDetached);
  message.arena = arena;
  return Exchange(message, -1).status();
}

template <typename Message>
absl::StatusOr<ArenaLine::Links> ArenaLine::Exchange(Message message, int fd) {
  memcpy(message.session, session_.data(), attach::kSessionBytes);
  if (const int rc = SendPacket(socket_.get(), &message, sizeof(message), &fd, fd >= 0 ? 1 : 0);
      rc < 0) {
    return absl::UnavailableError(
        absl::StrCat("the daemon has closed the arena socket: ", strerror(-rc)));
  }
  attach::ArenaAccept accept;
  std::vector<UniqueFd> fds;
  const ssize_t got =
      ReceivePacket(socket_.get(), &accept, sizeof(accept), &fds, kAnswerTimeoutMicros);
  if (got < 0)
    return absl::UnavailableError(
        absl::StrCat("the daemon's answer on the arena socket: ", strerror(-got)));
  if (got == 0) return absl::UnavailableError("the daemon has closed the arena socket");
  if (got != sizeof(accept) || accept.header.kind != attach::Kind::kArenaAccept ||
      accept.header.version != attach::kVersion || fds.size() > 2) {
    return absl::UnavailableError("the daemon's answer on the arena socket is malformed");
  }
  RINGD_RETURN_IF_ERROR(ToStatus(accept.code, ReadText(accept.text, sizeof(accept.text))));
  Links links;
  if (!fds.empty()) links.doorbell = std::move(fds[0]);
  if (fds.size() > 1) links.shared_segment = std::move(fds[1]);
  return links;
}

}  // namespace ringd::session
