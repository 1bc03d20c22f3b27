#include "daemon/session/arena_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/unix_socket.h"
#include "common/log/log.h"
#include "common/status/macros.h"
#include "proto/arena.h"

namespace ringd::daemon {
namespace {

constexpr size_t kMaxPacketBytes = 4096;
constexpr uint64_t kPageBytes = 4096;
constexpr int kMaxEvents = 64;

arena::Code ToCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return arena::Code::kOk;
    case absl::StatusCode::kInvalidArgument:
      return arena::Code::kInvalidArgument;
    case absl::StatusCode::kResourceExhausted:
      return arena::Code::kResourceExhausted;
    case absl::StatusCode::kInternal:
      return arena::Code::kInternal;
    default:
      return arena::Code::kUnavailable;
  }
}

attach::ArenaAccept Answer(const absl::Status& status) {
  attach::ArenaAccept accept{};
  accept.header = {attach::Kind::kArenaAccept, attach::kVersion};
  accept.code = static_cast<uint32_t>(ToCode(status));
  const std::string text(status.message());
  std::memcpy(accept.text, text.data(), std::min(text.size(), sizeof(accept.text) - 1));
  return accept;
}

// The process that a pidfd stands for; -1: it is none, or the process is gone.
pid_t PidOf(int pidfd) {
  std::ifstream info(absl::StrCat("/proc/self/fdinfo/", pidfd));
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("Pid:", 0) == 0) return static_cast<pid_t>(std::atol(line.c_str() + 4));
  }
  return 0;
}

// Whether a daemon has written to this arena's header: each one leaves its incarnation there.
bool ServedBefore(int memory) {
  uint64_t incarnation = 0;
  const ssize_t bytes =
      pread(memory, &incarnation, sizeof(incarnation), offsetof(arena::ArenaHeader, incarnation));
  return bytes != sizeof(incarnation) || incarnation != 0;
}

template <typename Message>
bool Read(const std::string& packet, Message* message) {
  if (packet.size() != sizeof(Message)) return false;
  std::memcpy(message, packet.data(), sizeof(Message));
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaServer>> ArenaServer::Create(const ArenaServerOptions& options,
                                                                 Engine* engine,
                                                                 SessionTable* table) {
  std::unique_ptr<ArenaServer> server(new ArenaServer(options, engine, table));
  const int result = ListenUnix(options.path, SOCK_SEQPACKET, options.mode, &server->listener_);
  if (result == -EADDRINUSE) {
    return absl::AlreadyExistsError(absl::StrCat(
        options.path, ": another daemon serves here; stop it or choose another run_directory"));
  }
  if (result == -ENAMETOOLONG) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.path,
        ": longer than a socket's path may be (107 bytes); choose a shorter run_directory"));
  }
  if (result < 0)
    return absl::UnavailableError(absl::StrCat(options.path, ": ", strerror(-result)));
  server->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  server->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->epoll_.valid() || !server->wake_.valid())
    return absl::InternalError("no descriptors left");
  const int flags = fcntl(server->listener_.get(), F_GETFL);
  fcntl(server->listener_.get(), F_SETFL, flags | O_NONBLOCK);
  for (const int fd : {server->listener_.get(), server->wake_.get()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(server->epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
  server->thread_ = std::thread(&ArenaServer::Run, server.get());
  return server;
}

ArenaServer::ArenaServer(const ArenaServerOptions& options, Engine* engine, SessionTable* table)
    : options_(options), engine_(engine), table_(table) {}

ArenaServer::~ArenaServer() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  unlink(options_.path.c_str());
}

void ArenaServer::EndRank(const std::string& job, int rank) { Push({job, rank}); }

void ArenaServer::ForgetJob(const std::string& job) { Push({job, -1}); }

void ArenaServer::Push(Command command) {
  {
    MutexLock lock(&mu_);
    commands_.push_back(std::move(command));
  }
  eventfd_write(wake_.get(), 1);
}

void ArenaServer::Run() {
  epoll_event events[kMaxEvents];
  while (true) {
    const int count = epoll_wait(epoll_.get(), events, kMaxEvents, -1);
    if (count < 0 && errno != EINTR) return;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
    }
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_.get()) {
        RunCommands();
      } else if (fd == listener_.get()) {
        Accept();
      } else if (const auto found = connections_.find(fd); found != connections_.end()) {
        if (!Serve(found->second)) connections_.erase(found);
      }
    }
  }
}

void ArenaServer::RunCommands() {
  eventfd_t ignored;
  eventfd_read(wake_.get(), &ignored);
  std::vector<Command> commands;
  {
    MutexLock lock(&mu_);
    commands.swap(commands_);
  }
  for (const Command& command : commands) {
    if (command.rank >= 0) {
      Drop({command.job, command.rank});
      continue;
    }
    // The engine has removed the job already.
    std::erase_if(arenas_, [&](const auto& each) { return each.first.first == command.job; });
  }
}

void ArenaServer::Accept() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return;
  PeerCredentials peer;
  if (GetPeerCredentials(socket.get(), &peer) != 0) return;
  const auto of_user = std::count_if(connections_.begin(), connections_.end(),
                                     [&](const auto& each) { return each.second.uid == peer.uid; });
  if (connections_.size() >= kMaxArenaConnections ||
      static_cast<size_t>(of_user) >= kMaxArenaConnectionsOfUser || !table_->HasJobOf(peer.uid)) {
    GetLogger("session")->warn("arena connection refused uid={} pid={} open={}", peer.uid, peer.pid,
                               connections_.size());
    return;
  }
  const int fd = socket.get();
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;
  connections_[fd] = Connection{std::move(socket), peer.uid};
}

bool ArenaServer::Serve(const Connection& connection) {
  std::string packet(kMaxPacketBytes, '\0');
  std::vector<UniqueFd> fds;
  const ssize_t bytes =
      ReceivePacket(connection.socket.get(), packet.data(), packet.size(), &fds, 0);
  if (bytes == -EAGAIN || bytes == -ETIMEDOUT || bytes == -EINTR) return true;
  if (bytes <= 0) return false;
  packet.resize(static_cast<size_t>(bytes));
  return ServePacket(connection, packet, std::move(fds));
}

bool ArenaServer::ServePacket(const Connection& connection, const std::string& packet,
                              std::vector<UniqueFd> fds) {
  attach::Header header;
  if (packet.size() < sizeof(header)) return false;
  std::memcpy(&header, packet.data(), sizeof(header));
  absl::Status status;
  std::vector<UniqueFd> links;
  attach::ArenaOffer offer;
  attach::ClientAttached attached;
  attach::ClientDetached detached;
  if (header.version != attach::kVersion) {
    status = absl::InvalidArgumentError(absl::StrCat("attach protocol version ", header.version,
                                                     ", this daemon speaks ", attach::kVersion));
  } else if (header.kind == attach::Kind::kArenaOffer && Read(packet, &offer)) {
    absl::StatusOr<std::vector<UniqueFd>> offered = Offer(connection, offer, std::move(fds));
    status = offered.status();
    if (offered.ok()) links = *std::move(offered);
  } else if (header.kind == attach::Kind::kClientAttached && Read(packet, &attached)) {
    status = SetProcess(connection, attached, std::move(fds));
  } else if (header.kind == attach::Kind::kClientDetached && Read(packet, &detached)) {
    status = RemoveClient(connection, detached);
  } else {
    GetLogger("session")->warn(
        "arena connection dropped: no message has this kind and size kind={} bytes={} uid={}",
        static_cast<uint32_t>(header.kind), packet.size(), connection.uid);
    return false;
  }
  if (!status.ok()) {
    GetLogger("session")->warn("arena message refused kind={} uid={} reason={}",
                               static_cast<uint32_t>(header.kind), connection.uid,
                               std::string(status.message()));
  }
  const attach::ArenaAccept accept = Answer(status);
  std::vector<int> carried;
  for (const UniqueFd& link : links) carried.push_back(link.get());
  return SendPacket(connection.socket.get(), &accept, sizeof(accept), carried.data(),
                    static_cast<int>(carried.size())) >= 0;
}

absl::StatusOr<SessionOwner> ArenaServer::Owner(const Connection& connection,
                                                const uint8_t* session) const {
  return table_->FindSession(
      std::string(reinterpret_cast<const char*>(session), attach::kSessionBytes), connection.uid);
}

absl::StatusOr<std::vector<UniqueFd>> ArenaServer::Offer(const Connection& connection,
                                                         const attach::ArenaOffer& offer,
                                                         std::vector<UniqueFd> fds) {
  RINGD_ASSIGN_OR_RETURN(const SessionOwner owner, Owner(connection, offer.session));
  if (fds.size() != 1) return absl::InvalidArgumentError("an arena offer carries one memfd");
  const uint64_t least = offer.segment == 0 ? arena::kMinBytes : kPageBytes;
  if (offer.bytes < least || offer.bytes > kMaxSegmentBytes || offer.bytes % kPageBytes != 0 ||
      offer.arena == 0 || offer.segment >= arena::kMaxSegments) {
    return absl::InvalidArgumentError(absl::StrCat("arena ", offer.arena, ", segment ",
                                                   offer.segment, " of ", offer.bytes,
                                                   " bytes is outside the limits"));
  }
  if (const int result = CheckSealedMemory(fds[0].get(), offer.bytes); result != 0) {
    return absl::InvalidArgumentError(absl::StrCat("segment ", offer.segment,
                                                   " is no sealed and backed memfd of ",
                                                   offer.bytes, " bytes: ", strerror(-result)));
  }
  struct stat status;
  if (fstat(fds[0].get(), &status) != 0)
    return absl::InvalidArgumentError("segment can't be examined");
  const SegmentIdentity identity{status.st_dev, status.st_ino};
  if (offer.segment == 0) {
    const std::string secret(reinterpret_cast<const char*>(offer.session), attach::kSessionBytes);
    return OfferFirst(owner, offer, secret, identity, std::move(fds[0]));
  }
  RINGD_RETURN_IF_ERROR(OfferNext(owner, offer, identity, std::move(fds[0])));
  return std::vector<UniqueFd>();
}

absl::StatusOr<std::vector<UniqueFd>> ArenaServer::OfferFirst(const SessionOwner& owner,
                                                              const attach::ArenaOffer& offer,
                                                              const std::string& secret,
                                                              const SegmentIdentity& identity,
                                                              UniqueFd memory) {
  const RankKey key{owner.job, owner.rank};
  if (options_.arena_max_bytes != 0 && offer.bytes > options_.arena_max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "an arena of ", offer.bytes, " bytes is above arena_max (", options_.arena_max_bytes, ")"));
  }
  if (const auto found = arenas_.find(key); found != arenas_.end()) {
    Arena& arena = found->second;
    const bool same = arena.number == offer.arena && arena.segments[0].device == identity.device &&
                      arena.segments[0].inode == identity.inode;
    if (same) {  // Its worker has attached again.
      arena.secret = secret;
      return Links(owner.job, arena);
    }
    if (arena.secret == secret) {
      return absl::AlreadyExistsError(
          absl::StrCat("rank ", owner.rank, " has a client with arena ", arena.number));
    }
    Drop(key);  // A newer session replaces the older one's.
  }
  if (ServedBefore(memory.get())) FailInherited(owner);
  RINGD_ASSIGN_OR_RETURN(const int doorbell,
                         engine_->AddClient(owner.job, owner.rank, offer.arena,
                                            ArenaSegment{memory.release(), offer.bytes}));
  Arena& arena = arenas_[key];
  arena.number = offer.arena;
  arena.secret = secret;
  arena.bytes = offer.bytes;
  arena.doorbell = UniqueFd(doorbell);
  arena.segments = {identity};
  GetLogger("session")->debug("client added job={} rank={} arena={} bytes={}", owner.job,
                              owner.rank, offer.arena, offer.bytes);
  return Links(owner.job, arena);
}

absl::StatusOr<std::vector<UniqueFd>> ArenaServer::Links(const std::string& job,
                                                         const Arena& arena) const {
  std::vector<UniqueFd> links;
  links.emplace_back(fcntl(arena.doorbell.get(), F_DUPFD_CLOEXEC, 0));
  RINGD_ASSIGN_OR_RETURN(const int segment, engine_->ShareSegment(job));
  if (segment >= 0) links.emplace_back(segment);
  return links;
}

void ArenaServer::FailInherited(const SessionOwner& owner) {
  Outcome outcome;
  outcome.code = arena::Code::kUnavailable;
  outcome.message = absl::StrCat("the daemon was restarted while rank ", owner.rank,
                                 "'s process was attached: the job's operations can't go on");
  GetLogger("session")->warn("client of the daemon before job={} rank={}", owner.job, owner.rank);
  engine_->FailJob(owner.job, outcome);
  if (options_.inherited) options_.inherited(owner.job, outcome.message);
}

absl::Status ArenaServer::OfferNext(const SessionOwner& owner, const attach::ArenaOffer& offer,
                                    const SegmentIdentity& identity, UniqueFd memory) {
  const auto found = arenas_.find({owner.job, owner.rank});
  if (found == arenas_.end() || found->second.number != offer.arena) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", owner.rank, " has no arena ", offer.arena));
  }
  Arena& arena = found->second;
  if (offer.segment < arena.segments.size()) {
    const SegmentIdentity& held = arena.segments[offer.segment];
    if (held.device == identity.device && held.inode == identity.inode) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("segment ", offer.segment, " is there already"));
  }
  if (offer.segment != arena.segments.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", arena.segments.size(), " comes next, not ", offer.segment));
  }
  if (options_.arena_max_bytes != 0 && arena.bytes + offer.bytes > options_.arena_max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("an arena of ", arena.bytes + offer.bytes,
                                                     " bytes is above arena_max (",
                                                     options_.arena_max_bytes, ")"));
  }
  RINGD_RETURN_IF_ERROR(engine_->AddSegment(owner.job, owner.rank, offer.arena, offer.segment,
                                            ArenaSegment{memory.release(), offer.bytes}));
  arena.bytes += offer.bytes;
  arena.segments.push_back(identity);
  return absl::OkStatus();
}

absl::Status ArenaServer::SetProcess(const Connection& connection,
                                     const attach::ClientAttached& message,
                                     std::vector<UniqueFd> fds) {
  RINGD_ASSIGN_OR_RETURN(const SessionOwner owner, Owner(connection, message.session));
  const auto found = arenas_.find({owner.job, owner.rank});
  if (found == arenas_.end() || found->second.number != message.arena) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", owner.rank, " has no arena ", message.arena));
  }
  if (fds.size() != 1) return absl::InvalidArgumentError("a client comes with its pidfd");
  const pid_t pid = PidOf(fds[0].get());
  if (pid == 0 || (pid > 0 && pid != message.pid)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptor is no pidfd of process ", message.pid));
  }
  return engine_->SetClientProcess(owner.job, owner.rank, message.arena, message.pid,
                                   fds[0].release());
}

absl::Status ArenaServer::RemoveClient(const Connection& connection,
                                       const attach::ClientDetached& message) {
  RINGD_ASSIGN_OR_RETURN(const SessionOwner owner, Owner(connection, message.session));
  const auto found = arenas_.find({owner.job, owner.rank});
  // A client that is gone already has been asked for twice: no harm.
  if (found != arenas_.end() && found->second.number == message.arena) Drop(found->first);
  return absl::OkStatus();
}

void ArenaServer::Drop(const RankKey& key) {
  const auto found = arenas_.find(key);
  if (found == arenas_.end()) return;
  engine_->RemoveClient(key.first, key.second, found->second.number);
  arenas_.erase(found);
}

}  // namespace ringd::daemon
