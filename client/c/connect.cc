#include "client/c/connect.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/c/error.h"
#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/base/unix_socket.h"
#include "proto/attach.h"

namespace ringd::client {
namespace {

using attach::Kind;

constexpr int64_t kRetryMicros = 10'000;
constexpr int64_t kMissingSocketMicros = 2'000'000;  // A worker listens before its rank starts.
constexpr int64_t kOwnPastMicros =
    5'000'000;  // For the worker to see that this process shut down before.
constexpr int64_t kGrowTimeoutMicros = 60'000'000;  // fallocate of some 100 GB.
constexpr size_t kMaxPacketBytes = 2048;
static_assert(sizeof(attach::Welcome) <= kMaxPacketBytes);
static_assert(sizeof(attach::Refusal) <= kMaxPacketBytes);

constexpr attach::Header MakeHeader(Kind kind) { return {kind, attach::kVersion}; }

// One packet from the worker.
struct Packet {
  alignas(8) std::byte data[kMaxPacketBytes];
  size_t bytes = 0;
  std::vector<UniqueFd> fds;

  // Null: not a whole packet of that kind.
  template <typename Message>
  const Message* As(Kind kind) const {
    const auto* const message = reinterpret_cast<const Message*>(data);
    return bytes == sizeof(Message) && message->header.kind == kind ? message : nullptr;
  }
};

std::string TextOf(const char* text, size_t capacity) {
  return std::string(text, strnlen(text, capacity));
}

int Receive(int socket, int64_t timeout_us, Packet* packet) {
  packet->fds.clear();
  const ssize_t bytes =
      ReceivePacket(socket, packet->data, sizeof(packet->data), &packet->fds, timeout_us);
  if (bytes == -ETIMEDOUT) {
    return Fail(Code::kDeadlineExceeded, "the ringd worker of this rank does not answer");
  }
  if (bytes <= 0) {
    return FailFormat(Code::kUnavailable,
                      "the ringd worker of this rank is gone; the job has ended (%s)",
                      bytes == 0 ? "connection closed" : strerror(static_cast<int>(-bytes)));
  }
  packet->bytes = static_cast<size_t>(bytes);
  return RINGD_OK;
}

int Unreadable() {
  return Fail(Code::kInternal,
              "the ringd worker's answer can't be read: install the same version of ringd for the "
              "job and its daemon");
}

int ReportRefusal(const attach::Refusal& refusal) {
  const std::string text = TextOf(refusal.text, sizeof(refusal.text));
  const bool known = refusal.code > 0 && refusal.code <= RINGD_INTERNAL;
  return Fail(known ? static_cast<Code>(refusal.code) : Code::kUnavailable,
              text.empty() ? "the ringd worker refused" : text);
}

int ConnectOnce(const std::string& path, UniqueFd* socket) {
  const int error = ConnectUnix(path, SOCK_SEQPACKET, socket);
  if (error == 0) return 0;
  FailFormat(Code::kUnavailable,
             "can't reach the ringd worker of this rank at %s: %s. Has the job ended? Programs run "
             "under `ringctl run`, or alone with RINGD_STANDALONE=1",
             path.c_str(), strerror(-error));
  return error;
}

bool FillInfo(const attach::Welcome& welcome, ringd_info* info) {
  *info = ringd_info{.size = sizeof(ringd_info),
                     .rank = welcome.rank,
                     .world_size = welcome.size,
                     .local_rank = welcome.local_rank,
                     .local_size = welcome.local_size,
                     .node_rank = welcome.node_rank,
                     .node_count = welcome.node_count,
                     .generation = welcome.generation};
  CopyText(TextOf(welcome.job, sizeof(welcome.job)), info->job, sizeof(info->job));
  CopyText(TextOf(welcome.node, sizeof(welcome.node)), info->node, sizeof(info->node));
  return welcome.rank >= 0 && welcome.rank < welcome.size && welcome.local_rank >= 0 &&
         welcome.local_rank < welcome.local_size && welcome.node_rank >= 0 &&
         welcome.node_rank < welcome.node_count;
}

// Says hello on a fresh connection. *again: refused because of this process's own, earlier client.
int Greet(int socket, int64_t timeout_us, ArenaClientOptions* options, bool* again) {
  const attach::ClientHello hello{.header = MakeHeader(Kind::kClientHello),
                                  .layout_version = arena::kLayoutVersion,
                                  .abi_version = RINGD_ABI_VERSION,
                                  .pid = getpid()};
  *again = false;
  if (const int error = SendPacket(socket, &hello, sizeof(hello), nullptr, 0); error < 0) {
    return FailFormat(Code::kUnavailable, "the ringd worker of this rank hung up: %s",
                      strerror(-error));
  }
  Packet packet;
  if (const int code = Receive(socket, timeout_us, &packet); code != RINGD_OK) return code;
  if (const auto* const refusal = packet.As<attach::Refusal>(Kind::kRefusal)) {
    *again = refusal->pid == getpid();
    return ReportRefusal(*refusal);
  }
  const auto* const welcome = packet.As<attach::Welcome>(Kind::kWelcome);
  if (welcome == nullptr || welcome->header.version != attach::kVersion || packet.fds.size() < 2 ||
      packet.fds.size() > 3 || !FillInfo(*welcome, &options->info) ||
      CheckSealedMemory(packet.fds[0].get(), welcome->arena_bytes) != 0) {
    return Unreadable();
  }
  options->segment = std::move(packet.fds[0]);
  options->segment_bytes = welcome->arena_bytes;
  options->doorbell = std::move(packet.fds[1]);
  if (packet.fds.size() > 2) options->shared_segment = std::move(packet.fds[2]);
  options->liveness_fd = socket;
  return RINGD_OK;
}

}  // namespace

int WorkerConnection::Open(const std::string& path, int64_t timeout_us,
                           std::unique_ptr<WorkerConnection>* connection,
                           ArenaClientOptions* options) {
  const int64_t start_us = MonotonicMicros();
  while (true) {
    UniqueFd socket;
    const int error = ConnectOnce(path, &socket);
    int64_t patience_us = error == -ENOENT ? kMissingSocketMicros : timeout_us;
    int code = LastError().code;
    bool again = error == -ENOENT || error == -ECONNREFUSED || error == -EAGAIN;
    if (error == 0) {
      const int64_t left_us = std::max<int64_t>(1, timeout_us - (MonotonicMicros() - start_us));
      code = Greet(socket.get(), left_us, options, &again);
      patience_us = kOwnPastMicros;
      if (code == RINGD_OK) {
        connection->reset(new WorkerConnection(std::move(socket)));
        return RINGD_OK;
      }
    }
    if (!again || MonotonicMicros() - start_us > std::min(patience_us, timeout_us)) return code;
    const timespec pause{.tv_sec = 0, .tv_nsec = kRetryMicros * 1000};
    nanosleep(&pause, nullptr);
  }
}

int WorkerConnection::NeedSegment(uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes) {
  const attach::NeedSegment request{.header = MakeHeader(Kind::kNeedSegment), .bytes = bytes};
  if (const int error = SendPacket(socket_.get(), &request, sizeof(request), nullptr, 0);
      error < 0) {
    return FailFormat(Code::kUnavailable,
                      "the ringd worker of this rank is gone; the job has ended (%s)",
                      strerror(-error));
  }
  Packet packet;
  const int code = Receive(socket_.get(), kGrowTimeoutMicros, &packet);
  if (code != RINGD_OK) {
    // A late answer would be taken for the next one's.
    shutdown(socket_.get(), SHUT_RDWR);
    return code;
  }
  if (const auto* const refusal = packet.As<attach::Refusal>(Kind::kRefusal)) {
    return ReportRefusal(*refusal);
  }
  const auto* const grant = packet.As<attach::SegmentGrant>(Kind::kSegmentGrant);
  if (grant == nullptr || grant->segment != segment_count_ || grant->bytes < bytes ||
      packet.fds.size() != 1 || CheckSealedMemory(packet.fds[0].get(), grant->bytes) != 0) {
    return Unreadable();
  }
  ++segment_count_;
  *fd = std::move(packet.fds[0]);
  *segment_bytes = grant->bytes;
  return RINGD_OK;
}

}  // namespace ringd::client
