#include "client/c/launch/attach_line.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/c/error.h"
#include "common/base/futex.h"
#include "common/base/unix_socket.h"

namespace ringd::client {
namespace {

using attach::Kind;

constexpr int64_t kRetryMicros = 10'000;
constexpr int64_t kMicrosPerSecond = 1'000'000;
// The server answers late ranks itself, and knows who is missing.
constexpr int64_t kServerPatienceMicros = 5 * kMicrosPerSecond;

void Pause() {
  const timespec pause{.tv_sec = 0, .tv_nsec = kRetryMicros * 1000};
  nanosleep(&pause, nullptr);
}

int NobodyThere(const Launch& launch, int64_t timeout_us) {
  return FailFormat(Code::kDeadlineExceeded,
                    "local rank 0 of this node has not called ringd's init() within %lld s: it "
                    "starts ringd for the job that %s started. All ranks call init(); give "
                    "init(timeout=...) more where they need longer",
                    static_cast<long long>(timeout_us / kMicrosPerSecond), launch.launcher.c_str());
}

enum class Outcome { kPlaced, kFailed, kAgain };

Outcome Greet(int socket, const Launch& launch, int64_t timeout_us, std::string* worker_socket) {
  PeerCredentials peer;
  if (GetPeerCredentials(socket, &peer) != 0 || peer.uid != geteuid()) {
    FailFormat(Code::kUnavailable,
               "process %d of user %u listens where ringd's helper for job %s should: end it, or "
               "start the job under another name",
               peer.pid, peer.uid, launch.job.c_str());
    return Outcome::kFailed;
  }
  const attach::RankHello hello{.header = {Kind::kRankHello, attach::kVersion},
                                .place = launch.place,
                                .timeout_us = timeout_us};
  if (SendPacket(socket, &hello, sizeof(hello), nullptr, 0) < 0) return Outcome::kAgain;
  alignas(8) std::byte packet[sizeof(attach::Refusal)];
  const ssize_t bytes =
      ReceivePacket(socket, packet, sizeof(packet), nullptr, timeout_us + kServerPatienceMicros);
  if (bytes == -ETIMEDOUT) {
    Fail(Code::kDeadlineExceeded,
         "`ringd-worker attach` does not answer: end it, and start the job again");
    return Outcome::kFailed;
  }
  // One of a job before that is just ending.
  if (bytes <= 0) return Outcome::kAgain;
  const auto& header = *reinterpret_cast<const attach::Header*>(packet);
  if (header.kind == Kind::kRankPlace && bytes == sizeof(attach::RankPlace)) {
    const auto& place = *reinterpret_cast<const attach::RankPlace*>(packet);
    worker_socket->assign(place.worker_socket,
                          strnlen(place.worker_socket, sizeof(place.worker_socket)));
    return Outcome::kPlaced;
  }
  if (header.kind == Kind::kRefusal && bytes == sizeof(attach::Refusal)) {
    const auto& refusal = *reinterpret_cast<const attach::Refusal*>(packet);
    Fail(static_cast<Code>(refusal.code),
         std::string(refusal.text, strnlen(refusal.text, sizeof(refusal.text))));
    return Outcome::kFailed;
  }
  Fail(Code::kInternal,
       "ringd-worker's answer can't be read: install the same version of ringd for all ranks");
  return Outcome::kFailed;
}

}  // namespace

int AttachLine::Open(const Launch& launch, const Exchange& exchange, int64_t timeout_us,
                     std::unique_ptr<AttachLine>* line) {
  const std::string name = attach::AttachSocketName(geteuid(), launch.job, launch.node);
  int64_t deadline_us = MonotonicMicros() + timeout_us;
  // Local rank 0 waits for other nodes as long, and then knows more.
  if (launch.place.local_rank != 0 && launch.nodes != 1) deadline_us += kServerPatienceMicros;
  bool started = launch.place.local_rank != 0;
  while (true) {
    const int64_t left_us = std::max<int64_t>(1, deadline_us - MonotonicMicros());
    UniqueFd socket;
    const int error = ConnectUnix(name, SOCK_SEQPACKET, &socket);
    if (error == 0) {
      std::string worker_socket;
      const Outcome outcome = Greet(socket.get(), launch, left_us, &worker_socket);
      if (outcome == Outcome::kFailed) return LastError().code;
      if (outcome == Outcome::kPlaced) {
        line->reset(new AttachLine(std::move(socket), std::move(worker_socket)));
        return RINGD_OK;
      }
    } else if (error != -ECONNREFUSED && error != -EAGAIN) {
      return FailFormat(Code::kUnavailable, "reaching `ringd-worker attach`: %s", strerror(-error));
    } else if (!started) {
      if (const int code = StartNode(launch, exchange, left_us); code != RINGD_OK) return code;
      started = true;
      continue;
    }
    if (MonotonicMicros() >= deadline_us) return NobodyThere(launch, timeout_us);
    Pause();
  }
}

int AttachLine::Return(const Launch& launch, int64_t timeout_us) {
  const Outcome outcome = Greet(socket_.get(), launch, timeout_us, &worker_socket_);
  if (outcome == Outcome::kPlaced) return RINGD_OK;
  if (outcome == Outcome::kFailed) return LastError().code;
  return Fail(Code::kUnavailable, "the job that this process was part of has ended");
}

void AttachLine::SayGoodbye() {
  const attach::RankGoodbye goodbye{.header = {Kind::kRankGoodbye, attach::kVersion}};
  (void)SendPacket(socket_.get(), &goodbye, sizeof(goodbye), nullptr, 0);
}

}  // namespace ringd::client
