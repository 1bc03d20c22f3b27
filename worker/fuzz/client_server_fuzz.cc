// What a process of the rank's user may send to the worker's socket, on a few connections at once.
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/memory_limit.h"
#include "common/base/fd.h"
#include "common/base/unix_socket.h"
#include "common/fuzz/fuzz.h"
#include "common/fuzz/quiet.h"
#include "proto/arena.h"
#include "proto/attach.h"
#include "worker/client_server.h"
#include "worker/testing/fake_daemon.h"

namespace ringd {
namespace {

constexpr size_t kMaxPackets = 12;
constexpr size_t kConnections = 3;
constexpr int64_t kAnswerMicros = 10'000'000;
constexpr size_t kMaxAnswerBytes = 2048;

// Serves all inputs: each leaves the rank to the next one.
class Server {
 public:
  Server() : directory_(Directory()), daemon_(directory_) {
    daemon_.Start();
    node::v1::WorkerSpec spec;
    spec.set_job("j-1");
    spec.set_node("node-a");
    spec.set_token(daemon_.token());
    spec.set_daemon_socket(daemon_.socket());
    spec.mutable_layout()->set_rank(3);
    spec.mutable_layout()->set_size(4);
    worker::RankArena::Options options;
    options.arena_bytes = arena::kMinBytes;
    options.arena_max_bytes = 2 * arena::kMinBytes;
    options.read_limit = [] { return session::MemoryLimit{}; };
    options.attach = [this]() -> absl::StatusOr<node::v1::AttachResponse> { return Attach(); };
    UniqueFd listener;
    FuzzCheck(ListenUnix(path(), SOCK_SEQPACKET, 0600, &listener) == 0, "no socket");
    server_ = std::make_unique<worker::ClientServer>(spec, std::move(listener), std::move(options));
    server_->SetSession(Attach());
  }

  UniqueFd Connect() const {
    UniqueFd socket;
    FuzzCheck(ConnectUnix(path(), SOCK_SEQPACKET, &socket) == 0, "the worker does not listen");
    return socket;
  }
  void Forget() {
    while (daemon_.NextArenaEvent(absl::ZeroDuration()).has_value()) continue;
  }

 private:
  static std::string Directory() {
    char name[] = "/tmp/fuzz-XXXXXX";
    FuzzCheck(mkdtemp(name) != nullptr, "no folder");
    return name;
  }
  std::string path() const { return directory_ + "/w.sock"; }
  node::v1::AttachResponse Attach() {
    node::v1::AttachRequest request;
    request.set_token(daemon_.token());
    node::v1::AttachResponse response;
    FuzzCheck(daemon_.Attach(nullptr, &request, &response).ok(), "no session");
    return response;
  }

  const std::string directory_;
  worker::FakeDaemon daemon_;
  std::unique_ptr<worker::ClientServer> server_;
};

template <typename Message>
std::string Packet(Message message, attach::Kind kind) {
  message.header = {kind, attach::kVersion};
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}

std::string TakeMessage(FuzzInput* input) {
  std::string packet;
  switch (input->Take<uint8_t>() % 4) {
    case 0: {
      attach::ClientHello hello{};
      hello.layout_version = arena::kLayoutVersion;
      hello.pid = getpid();
      packet = Packet(hello, attach::Kind::kClientHello);
      break;
    }
    case 1: {
      attach::NeedSegment need{};
      need.bytes = uint64_t{input->Take<uint8_t>()} << (input->Take<uint8_t>() % 64);
      packet = Packet(need, attach::Kind::kNeedSegment);
      break;
    }
    case 2:
      packet = Packet(attach::NeedToken{}, attach::Kind::kNeedToken);
      break;
    default:
      packet = input->TakeBytes(input->Take<uint16_t>() % 600);
  }
  for (int patches = input->Take<uint8_t>() % 3; patches > 0; --patches) {
    const size_t place = input->Take<uint8_t>();
    const char value = static_cast<char>(input->Take<uint8_t>());
    if (place < packet.size()) packet[place] = value;
  }
  return packet;
}

}  // namespace

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<FuzzBytes> seeds;
  for (const uint8_t first : {0, 2}) {  // Hello, token.
    FuzzWriter writer;
    writer.Put(uint8_t{0}).Put(first).Put(uint8_t{0});
    writer.Put(uint8_t{0}).Put(uint8_t{1}).Put(uint8_t{1}).Put(uint8_t{20}).Put(uint8_t{0});
    writer.Put(uint8_t{1}).Put(uint8_t{0}).Put(uint8_t{0});
    writer.Put(uint8_t{2}).Put(uint8_t{3}).Put(uint16_t{24}).PutText(std::string(24, '\x7f'));
    writer.Put(uint8_t{0}).Put(uint8_t{0x80}).Put(uint8_t{2}).Put(uint8_t{0});
    seeds.push_back(writer.bytes());
  }
  return seeds;
}

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringd;
  QuietLogs();
  static Server server;  // Ends before the loggers that it uses.
  FuzzInput input(data, size);
  std::array<UniqueFd, kConnections> sockets;
  for (size_t i = 0; i < kMaxPackets && !input.empty(); ++i) {
    const uint8_t choice = input.Take<uint8_t>();
    UniqueFd& socket = sockets[choice % kConnections];
    if (!socket.valid() || choice >= 0x80) socket = server.Connect();
    const std::string packet = TakeMessage(&input);
    if (packet.empty()) continue;
    if (SendPacket(socket.get(), packet.data(), packet.size(), nullptr, 0) < 0) {
      socket.reset();
      continue;
    }
    std::array<char, kMaxAnswerBytes> answer;
    std::vector<UniqueFd> fds;
    const ssize_t got =
        ReceivePacket(socket.get(), answer.data(), answer.size(), &fds, kAnswerMicros);
    FuzzCheck(got != -ETIMEDOUT, "a request that is never answered");
    if (got <= 0) socket.reset();
  }
  server.Forget();
  return 0;
}
