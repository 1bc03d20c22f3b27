#include "worker/testing/fake_daemon.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/sealed_memory.h"
#include "common/base/unix_socket.h"
#include "proto/arena.h"
#include "proto/attach.h"

namespace ringd::worker {
namespace {

std::string SessionOf(const uint8_t* bytes) {
  return std::string(reinterpret_cast<const char*>(bytes), attach::kSessionBytes);
}

}  // namespace

FakeDaemon::FakeDaemon(std::string directory)
    : directory_(std::move(directory)), doorbell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

FakeDaemon::~FakeDaemon() { Kill(); }

void FakeDaemon::Start() {
  server_ = RpcServer::Create();
  server_->AddService(this);
  if (!server_->ListenUnixSocket(socket(), 0600, [](const PeerCredentials&) { return true; }).ok())
    abort();
  if (ListenUnix(directory_ + "/arena.sock", SOCK_SEQPACKET, 0600, &arena_listener_) < 0) abort();
  arena_stop_.reset(eventfd(0, EFD_CLOEXEC));
  arena_thread_ = std::thread([this] { ServeArenas(); });
  if (!server_->Start().ok()) abort();
}

void FakeDaemon::Kill() {
  if (server_ == nullptr) return;
  const uint64_t one = 1;
  if (write(arena_stop_.get(), &one, sizeof(one)) < 0) abort();
  arena_thread_.join();
  arena_listener_.reset();
  unlink((directory_ + "/arena.sock").c_str());
  server_->Shutdown(absl::ZeroDuration());
  server_.reset();
}

void FakeDaemon::RefuseAttach(grpc::Status status) {
  MutexLock lock(&mu_);
  refuse_attach_ = std::move(status);
}

void FakeDaemon::RefuseOffers(uint32_t code, const std::string& text) {
  MutexLock lock(&mu_);
  offer_code_ = code;
  offer_text_ = text;
}

std::optional<node::v1::WorkerReport> FakeDaemon::NextReport(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&mu_);
  while (reports_.empty() && absl::Now() < deadline)
    changed_.WaitWithTimeout(&mu_, deadline - absl::Now());
  if (reports_.empty()) return std::nullopt;
  node::v1::WorkerReport report = std::move(reports_.front());
  reports_.pop_front();
  return report;
}

std::optional<ArenaEvent> FakeDaemon::NextArenaEvent(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&mu_);
  while (arena_events_.empty() && absl::Now() < deadline)
    changed_.WaitWithTimeout(&mu_, deadline - absl::Now());
  if (arena_events_.empty()) return std::nullopt;
  ArenaEvent event = std::move(arena_events_.front());
  arena_events_.pop_front();
  return event;
}

void FakeDaemon::Order(const node::v1::WorkerOrder& order) {
  MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->Write(order);
}

grpc::Status FakeDaemon::MakeSession(const node::v1::AttachRequest& request,
                                     node::v1::AttachResponse* response) {
  MutexLock lock(&mu_);
  if (!refuse_attach_.ok()) return refuse_attach_;
  if (request.token() != token())
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "wrong token");
  session_ = absl::StrCat("session-", ++session_count_);
  session_.resize(attach::kSessionBytes, '.');
  response->set_session(session_);
  response->set_arena_socket(directory_ + "/arena.sock");
  response->set_generation(7);
  response->mutable_layout()->set_rank(request.rank());
  response->mutable_layout()->set_size(4);
  response->set_node("node-a");
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Attach(grpc::ServerContext*, const node::v1::AttachRequest* request,
                                node::v1::AttachResponse* response) {
  return MakeSession(*request, response);
}

grpc::Status FakeDaemon::Supervise(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<node::v1::WorkerOrder, node::v1::WorkerReport>* stream) {
  node::v1::WorkerReport report;
  node::v1::WorkerOrder order;
  if (!stream->Read(&report) || !report.has_attach()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no attach");
  }
  const grpc::Status status = MakeSession(report.attach(), order.mutable_attached());
  if (!status.ok()) return status;
  {
    MutexLock lock(&mu_);
    stream_ = stream;
    stream->Write(order);
  }
  while (stream->Read(&report)) {
    MutexLock lock(&mu_);
    reports_.push_back(report);
    changed_.SignalAll();
  }
  MutexLock lock(&mu_);
  if (stream_ == stream) stream_ = nullptr;
  return grpc::Status::OK;
}

void FakeDaemon::ServeArenas() {
  while (true) {
    std::vector<pollfd> entries = {{arena_stop_.get(), POLLIN, 0},
                                   {arena_listener_.get(), POLLIN, 0}};
    for (const auto& [socket, owner] : arena_clients_) entries.push_back({socket, POLLIN, 0});
    poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) break;
    for (size_t i = 2; i < entries.size(); ++i) {
      if (entries[i].revents != 0) HandleArenaPacket(entries[i].fd);
    }
    if (entries[1].revents != 0) {
      UniqueFd client(accept4(arena_listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const int number = client.get();
      arena_clients_[number] = std::move(client);
    }
  }
  arena_clients_.clear();
}

void FakeDaemon::HandleArenaPacket(int socket) {
  char packet[256];
  std::vector<UniqueFd> fds;
  const ssize_t got = ReceivePacket(socket, packet, sizeof(packet), &fds, -1);
  ArenaEvent event;
  attach::Header header{};
  if (got >= static_cast<ssize_t>(sizeof(header))) memcpy(&header, packet, sizeof(header));
  if (header.kind == attach::Kind::kArenaOffer && got == sizeof(attach::ArenaOffer) &&
      fds.size() == 1) {
    attach::ArenaOffer offer;
    memcpy(&offer, packet, sizeof(offer));
    event.session = SessionOf(offer.session);
    event.arena = offer.arena;
    event.segment = offer.segment;
    event.bytes = offer.bytes;
    event.sound = CheckSealedMemory(fds[0].get(), offer.bytes) == 0;
  } else if (header.kind == attach::Kind::kClientAttached &&
             got == sizeof(attach::ClientAttached) && fds.size() == 1) {
    attach::ClientAttached attached;
    memcpy(&attached, packet, sizeof(attached));
    event.kind = ArenaEvent::Kind::kAttached;
    event.session = SessionOf(attached.session);
    event.arena = attached.arena;
    event.pid = attached.pid;
  } else if (header.kind == attach::Kind::kClientDetached &&
             got == sizeof(attach::ClientDetached)) {
    attach::ClientDetached detached;
    memcpy(&detached, packet, sizeof(detached));
    event.kind = ArenaEvent::Kind::kDetached;
    event.session = SessionOf(detached.session);
    event.arena = detached.arena;
  } else {
    arena_clients_.erase(socket);
    return;
  }
  if (!fds.empty()) event.fd = std::move(fds[0]);
  const bool first_offer = event.kind == ArenaEvent::Kind::kOffer && event.segment == 0;
  attach::ArenaAccept accept;
  memset(&accept, 0, sizeof(accept));
  accept.header = {attach::Kind::kArenaAccept, attach::kVersion};
  MutexLock lock(&mu_);
  if (event.session != session_) {
    accept.code = static_cast<uint32_t>(arena::Code::kInvalidArgument);
    strcpy(accept.text, "an old session");
  } else if (first_offer && offer_code_ != 0) {
    accept.code = offer_code_;
    offer_text_.copy(accept.text, sizeof(accept.text) - 1);
  }
  const int bell = doorbell_.get();
  if (accept.code == 0) arena_events_.push_back(std::move(event));
  SendPacket(socket, &accept, sizeof(accept), &bell, accept.code == 0 && first_offer ? 1 : 0);
  changed_.SignalAll();
}

}  // namespace ringd::worker
