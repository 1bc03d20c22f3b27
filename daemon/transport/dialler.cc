#include "daemon/transport/dialler.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringd::daemon {
namespace {

constexpr absl::Duration kMinBackoff = absl::Milliseconds(10);
constexpr absl::Duration kMaxBackoff = absl::Seconds(1);
constexpr absl::Duration kResolvePoll = absl::Milliseconds(5);

}  // namespace

Dialler::Dialler(EventLoop* loop, DialOptions options, Done done)
    : loop_(loop), options_(std::move(options)), done_(std::move(done)), backoff_(kMinBackoff) {
  timer_ = loop_->AddTimer(absl::ZeroDuration(), [this] { Attempt(); });
}

Dialler::~Dialler() { StopAttempt(); }

void Dialler::Attempt() {
  if (resolution_ == nullptr) resolution_ = StartResolution(options_.address);
  if (!resolution_->done.load(std::memory_order_acquire)) {
    trouble_ = absl::StrCat("resolving ", options_.address);
    timer_ = loop_->AddTimer(kResolvePoll, [this] { Attempt(); });
    return;
  }
  if (!resolution_->result.ok()) {
    const std::string trouble(resolution_->result.status().message());
    resolution_.reset();
    RetryLater(trouble);
    return;
  }
  Connect();
}

void Dialler::Connect() {
  const std::vector<SocketAddress>& addresses = *resolution_->result;
  absl::StatusOr<UniqueFd> fd = StartConnect(addresses[next_address_++ % addresses.size()]);
  if (!fd.ok()) {
    RetryLater(std::string(fd.status().message()));
    return;
  }
  fd_ = *std::move(fd);
  received_bytes_ = 0;
  timer_ = loop_->AddTimer(options_.attempt_limit, [this] {
    RetryLater(received_bytes_ == 0 ? "no answer" : "the handshake took too long");
  });
  const absl::Status watched =
      loop_->Watch(fd_.get(), EPOLLOUT, [this](uint32_t) { OnConnected(); });
  if (!watched.ok()) RetryLater(std::string(watched.message()));
}

void Dialler::OnConnected() {
  if (const int error = SocketError(fd_.get()); error != 0) {
    RetryLater(strerror(error));
    return;
  }
  if (IsConnectedToItself(fd_.get())) {
    RetryLater("nobody listens there");
    return;
  }
  ConfigureDataSocket(fd_.get());
  hello_ = MakeHello(options_.job, options_.generation, options_.from_node, options_.to_node,
                     options_.group);
  // Into an empty send buffer: whole or not at all.
  if (send(fd_.get(), &hello_, sizeof(hello_), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof(hello_))) {
    RetryLater("the connection broke");
    return;
  }
  loop_->Unwatch(fd_.get());
  const absl::Status watched = loop_->Watch(fd_.get(), EPOLLIN, [this](uint32_t) { OnReadable(); });
  if (!watched.ok()) RetryLater(std::string(watched.message()));
}

void Dialler::OnReadable() {
  while (received_bytes_ < sizeof(challenge_)) {
    const ssize_t count = recv(fd_.get(), reinterpret_cast<char*>(&challenge_) + received_bytes_,
                               sizeof(challenge_) - received_bytes_, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) {
      RetryLater("it closed the connection during the handshake: it has not opened this ring");
      return;
    }
    received_bytes_ += static_cast<size_t>(count);
  }
  if (!CheckChallenge(options_.key, hello_, challenge_)) {
    Finish(absl::UnauthenticatedError(
        absl::StrCat("whoever answers at ", options_.address, " (node ", options_.to_node,
                     "'s data address) has not the key of job ", options_.job, " generation ",
                     options_.generation, "; check that the address belongs to that daemon")));
    return;
  }
  const wire::Proof proof = MakeProof(options_.key, hello_, challenge_);
  if (send(fd_.get(), &proof, sizeof(proof), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(proof))) {
    RetryLater("the connection broke");
    return;
  }
  loop_->Unwatch(fd_.get());
  Finish(std::move(fd_));
}

void Dialler::RetryLater(const std::string& trouble) {
  StopAttempt();
  trouble_ = trouble;
  timer_ = loop_->AddTimer(backoff_, [this] { Attempt(); });
  backoff_ = std::min(backoff_ * 2, kMaxBackoff);
}

void Dialler::StopAttempt() {
  loop_->CancelTimer(timer_);
  if (!fd_.valid()) return;
  loop_->Unwatch(fd_.get());
  fd_.reset();
}

void Dialler::Finish(absl::StatusOr<UniqueFd> result) {
  StopAttempt();
  const Done done = std::move(done_);
  done(std::move(result));
}

}  // namespace ringd::daemon
