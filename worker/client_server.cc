#include "worker/client_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/codes.h"
#include "common/base/futex.h"
#include "common/base/unix_socket.h"
#include "common/log/log.h"
#include "common/status/macros.h"
#include "proto/arena.h"
#include "worker/process/foreign_process.h"

namespace ringd::worker {
namespace {

constexpr size_t kMaxClients = 64;  // Connections at once; all but one are about to be refused.
constexpr int64_t kFirstMessageMicros = 10'000'000;
constexpr int64_t kRetryMicros =
    200'000;  // Of a request that found the daemon's arena socket closed.
constexpr size_t kMaxRequestBytes = 256;  // The largest request is far smaller.

template <typename Message>
Message MakeMessage(attach::Kind kind) {
  Message message;
  memset(&message, 0, sizeof(message));
  message.header.kind = kind;
  message.header.version = attach::kVersion;
  return message;
}

template <typename Message>
absl::Status Parse(const std::vector<char>& packet, Message* message) {
  if (packet.size() != sizeof(Message))
    return absl::InvalidArgumentError("a request of the wrong size");
  memcpy(message, packet.data(), sizeof(Message));
  return absl::OkStatus();
}

}  // namespace

ClientServer::ClientServer(const node::v1::WorkerSpec& spec, UniqueFd listener,
                           RankArena::Options arena_options)
    : spec_(spec),
      listener_(std::move(listener)),
      arena_(std::move(arena_options)),
      thread_([this] { Run(); }) {}

ClientServer::~ClientServer() { Stop(); }

void ClientServer::SetSession(const node::v1::AttachResponse& session) {
  commands_.Post({false, session});
}

void ClientServer::LoseSession() { commands_.Post({false, std::nullopt}); }

bool ClientServer::SignalClient(int signal) {
  MutexLock lock(&mu_);
  return holder_pidfd_.valid() &&
         syscall(SYS_pidfd_send_signal, holder_pidfd_.get(), signal, nullptr, 0) == 0;
}

void ClientServer::Stop() {
  if (!thread_.joinable()) return;
  commands_.Post({true, std::nullopt});
  thread_.join();
}

void ClientServer::Run() {
  if (const absl::Status status = arena_.Prepare(); !status.ok()) {
    GetLogger("worker")->warn("arena not ready error={}", std::string(status.message()));
  }
  while (!stopped_) {
    PollOnce();
    HandleCommands();
    RetryDeferred();
    DropLate();
  }
  ReleaseHolder();
  clients_.clear();
}

void ClientServer::HandleCommands() {
  for (Command& command : commands_.Take()) {
    if (command.stop) {
      stopped_ = true;
      return;
    }
    if (!command.session.has_value()) {
      arena_.LoseSession();
      continue;
    }
    if (const absl::Status status = arena_.SetSession(*command.session); !status.ok()) {
      GetLogger("worker")->error("arena not offered again error={}", std::string(status.message()));
      continue;
    }
    retry_at_us_ = 0;
  }
}

void ClientServer::RetryDeferred() {
  if (MonotonicMicros() < retry_at_us_ || arena_.session() == nullptr) return;
  retry_at_us_ = INT64_MAX;
  std::vector<int> waiting;
  for (const auto& [socket, client] : clients_) {
    if (!client.deferred.empty()) waiting.push_back(socket);
  }
  for (const int socket : waiting) {
    const auto found = clients_.find(socket);
    if (found != clients_.end()) Handle(&found->second, std::exchange(found->second.deferred, {}));
  }
}

void ClientServer::PollOnce() {
  std::vector<pollfd> entries = {{commands_.event_fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  int64_t deadline_us = arena_.session() != nullptr ? retry_at_us_ : INT64_MAX;
  for (const auto& [socket, client] : clients_) {
    entries.push_back({socket, POLLIN | POLLRDHUP, 0});
    if (socket == holder_) entries.push_back({client.pidfd.get(), POLLIN, 0});
    if (client.deadline_us != 0) deadline_us = std::min(deadline_us, client.deadline_us);
  }
  int timeout_ms = -1;
  if (deadline_us != INT64_MAX) {
    timeout_ms =
        static_cast<int>(std::max<int64_t>(0, (deadline_us - MonotonicMicros() + 999) / 1000));
  }
  if (poll(entries.data(), entries.size(), timeout_ms) <= 0) return;
  for (size_t i = 2; i < entries.size(); ++i) {
    if (entries[i].revents == 0) continue;
    const auto found = clients_.find(entries[i].fd);
    if (found != clients_.end()) {
      Receive(&found->second);
    } else if (HolderIsGone()) {
      Drop(holder_);
    }
  }
  if (entries[1].revents != 0) Accept();
}

void ClientServer::Accept() {
  Client client;
  client.socket =
      UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client.socket.valid()) return;
  const int socket = client.socket.get();
  PeerCredentials peer;
  if (GetPeerCredentials(socket, &peer) < 0 || peer.uid != geteuid()) {
    GetLogger("worker")->warn("client refused uid={} pid={}", peer.uid, peer.pid);
    return;
  }
  client.pid = peer.pid;
  client.pidfd = OpenPeerPidfd(socket, peer.pid);
  client.deadline_us = MonotonicMicros() + kFirstMessageMicros;
  if (!client.pidfd.valid()) return;
  if (clients_.size() >= kMaxClients) {
    return Refuse(client, absl::ResourceExhaustedError(
                              "too many processes ask for this rank at once; try again"));
  }
  clients_[socket] = std::move(client);
}

void ClientServer::Receive(Client* client) {
  const int socket = client->socket.get();
  std::vector<char> packet(kMaxRequestBytes);
  const ssize_t got = ReceivePacket(socket, packet.data(), packet.size(), nullptr, -1);
  if (got == -EAGAIN) return;
  // One request at a time: who sends another before the answer does not keep to the protocol.
  if (got <= 0 || !client->deferred.empty()) return Drop(socket);
  client->deadline_us = 0;
  packet.resize(got);
  Handle(client, packet);
}

void ClientServer::Handle(Client* client, const std::vector<char>& packet) {
  attach::Header header;
  if (packet.size() < sizeof(header)) return Drop(client->socket.get());
  memcpy(&header, packet.data(), sizeof(header));
  absl::Status status = absl::InvalidArgumentError("an unknown request");
  if (header.version != attach::kVersion) {
    status = absl::InvalidArgumentError(
        absl::StrCat("this program speaks version ", header.version,
                     " of the attach protocol, ringd-worker version ", attach::kVersion,
                     "; install the same ringd on both sides"));
  } else if (header.kind == attach::Kind::kClientHello) {
    status = HandleHello(client, packet);
  } else if (header.kind == attach::Kind::kNeedSegment) {
    status = HandleNeedSegment(client, packet);
  } else if (header.kind == attach::Kind::kNeedToken) {
    status = HandleNeedToken(client);
  }
  if (status.ok()) return;
  if (absl::IsUnavailable(status)) {
    client->deferred = packet;
    retry_at_us_ = std::min(retry_at_us_, MonotonicMicros() + kRetryMicros);
    return;
  }
  GetLogger("worker")->warn("client refused pid={} reason={}", client->pid,
                            std::string(status.message()));
  Refuse(*client, status);
  if (client->socket.get() != holder_) Drop(client->socket.get());
}

void ClientServer::DropLate() {
  const int64_t now_us = MonotonicMicros();
  std::vector<int> late;
  for (const auto& [socket, client] : clients_) {
    if (client.deadline_us != 0 && client.deadline_us <= now_us) late.push_back(socket);
  }
  for (const int socket : late) Drop(socket);
}

void ClientServer::Drop(int socket) {
  if (socket == holder_) ReleaseHolder();
  clients_.erase(socket);
}

absl::Status ClientServer::HandleHello(Client* client, const std::vector<char>& packet) {
  attach::ClientHello hello;
  RINGD_RETURN_IF_ERROR(Parse(packet, &hello));
  if (hello.layout_version != arena::kLayoutVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this program's arena layout is version ", hello.layout_version, ", ringd-worker's is ",
        arena::kLayoutVersion, "; install the same ringd on both sides"));
  }
  RINGD_RETURN_IF_ERROR(CheckFree(*client));
  RINGD_ASSIGN_OR_RETURN(
      const session::ArenaLine::Links links,
      arena_.Attach(client->pid, UniqueFd(fcntl(client->pidfd.get(), F_DUPFD_CLOEXEC, 0))));
  SetHolder(*client, false);
  SendWelcome(*client, links);
  return absl::OkStatus();
}

absl::Status ClientServer::HandleNeedSegment(Client* client, const std::vector<char>& packet) {
  attach::NeedSegment need;
  RINGD_RETURN_IF_ERROR(Parse(packet, &need));
  if (client->socket.get() != holder_ || holds_token_) {
    return absl::FailedPreconditionError(
        "only the process that holds the rank gets memory: say hello first");
  }
  if (need.bytes == 0) return absl::InvalidArgumentError("a segment of no bytes");
  RINGD_ASSIGN_OR_RETURN(const uint32_t index, arena_.Grow(need.bytes));
  const session::ArenaKeeper::Segment& segment = arena_.keeper().segments()[index];
  auto grant = MakeMessage<attach::SegmentGrant>(attach::Kind::kSegmentGrant);
  grant.segment = index;
  grant.bytes = segment.bytes;
  const int fd = segment.fd.get();
  SendPacket(client->socket.get(), &grant, sizeof(grant), &fd, 1);
  return absl::OkStatus();
}

absl::Status ClientServer::HandleNeedToken(Client* client) {
  RINGD_RETURN_IF_ERROR(CheckFree(*client));
  if (arena_.session() == nullptr) return absl::UnavailableError("the daemon is gone");
  const std::string& arena_socket = arena_.session()->arena_socket();
  if (spec_.daemon_socket().size() >= attach::kNameBytes ||
      arena_socket.size() >= attach::kNameBytes) {
    return absl::InternalError("the daemon's socket paths are too long");
  }
  auto grant = MakeMessage<attach::TokenGrant>(attach::Kind::kTokenGrant);
  grant.rank = spec_.layout().rank();
  grant.token_bytes = static_cast<uint32_t>(spec_.token().size());
  memcpy(grant.token, spec_.token().data(), spec_.token().size());
  session::FillText(spec_.job(), grant.job, sizeof(grant.job));
  session::FillText(spec_.daemon_socket(), grant.daemon_socket, sizeof(grant.daemon_socket));
  session::FillText(arena_socket, grant.arena_socket, sizeof(grant.arena_socket));
  arena_.GiveAway();
  SetHolder(*client, true);
  SendPacket(client->socket.get(), &grant, sizeof(grant), nullptr, 0);
  return absl::OkStatus();
}

absl::Status ClientServer::CheckFree(const Client& client) {
  if (holder_ == client.socket.get())
    return absl::FailedPreconditionError("this process has attached already");
  if (holder_ < 0) return absl::OkStatus();
  if (HolderIsGone()) {  // Its end has not been handled yet.
    Drop(holder_);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", spec_.layout().rank(), " of job ", spec_.job(), " is held by process ",
      clients_.at(holder_).pid,
      "; one process of a rank can use ringd at a time (end that one, or call shutdown() there)"));
}

bool ClientServer::HolderIsGone() const {
  const auto found = clients_.find(holder_);
  if (found == clients_.end()) return false;
  return HungUp(holder_) || HasEnded(found->second.pidfd.get());
}

void ClientServer::SetHolder(const Client& client, bool by_token) {
  holder_ = client.socket.get();
  holds_token_ = by_token;
  GetLogger("worker")->info("client attached pid={} by_token={}", client.pid, by_token);
  MutexLock lock(&mu_);
  holder_pidfd_.reset(fcntl(client.pidfd.get(), F_DUPFD_CLOEXEC, 0));
}

void ClientServer::ReleaseHolder() {
  if (holder_ < 0) return;
  GetLogger("worker")->info("client detached pid={}", clients_.at(holder_).pid);
  if (!holds_token_) arena_.Detach();
  holder_ = -1;
  holds_token_ = false;
  MutexLock lock(&mu_);
  holder_pidfd_.reset();
}

void ClientServer::SendWelcome(const Client& client, const session::ArenaLine::Links& links) {
  const node::v1::RankLayout& layout = spec_.layout();
  const session::ArenaKeeper& keeper = arena_.keeper();
  auto welcome = MakeMessage<attach::Welcome>(attach::Kind::kWelcome);
  welcome.rank = layout.rank();
  welcome.size = layout.size();
  welcome.local_rank = layout.local_rank();
  welcome.local_size = layout.local_size();
  welcome.node_rank = layout.node_rank();
  welcome.node_count = layout.node_count();
  welcome.generation = arena_.session()->generation();
  welcome.arena_bytes = keeper.segments()[0].bytes;
  welcome.arena_max_bytes = keeper.max_bytes();
  session::FillText(spec_.job(), welcome.job, sizeof(welcome.job));
  session::FillText(spec_.node(), welcome.node, sizeof(welcome.node));
  const int fds[] = {keeper.segments()[0].fd.get(), links.doorbell.get(),
                     links.shared_segment.get()};
  SendPacket(client.socket.get(), &welcome, sizeof(welcome), fds,
             links.shared_segment.valid() ? 3 : 2);
}

void ClientServer::Refuse(const Client& client, const absl::Status& status) {
  auto refusal = MakeMessage<attach::Refusal>(attach::Kind::kRefusal);
  refusal.code = static_cast<uint32_t>(session::ToCode(status));
  if (holder_ >= 0 && holder_ != client.socket.get()) refusal.pid = clients_.at(holder_).pid;
  session::FillText(std::string(status.message()), refusal.text, sizeof(refusal.text));
  SendPacket(client.socket.get(), &refusal, sizeof(refusal), nullptr, 0);
}

}  // namespace ringd::worker
