// What a worker of a job may send to the daemon's arena socket: packets of any kind and size, with
// any descriptors.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/sealed_memory.h"
#include "common/base/unix_socket.h"
#include "common/base/version.h"
#include "common/fuzz/fuzz.h"
#include "common/fuzz/quiet.h"
#include "daemon/session/arena_server.h"
#include "daemon/session/fake_engine.h"
#include "daemon/session/session_table.h"
#include "proto/arena.h"
#include "proto/attach.h"

namespace ringd {
namespace {

constexpr size_t kMaxPackets = 20;
constexpr int64_t kAnswerMicros = 10'000'000;

// Served for all inputs: starting a server takes a thread.
class Server {
 public:
  Server() : directory_(Directory()), table_({.node = "a", .arena_socket = path()}) {
    cluster::v1::Prepare order;
    order.set_job("j-1");
    order.set_uid(getuid());
    order.set_token("token");
    order.add_nodes()->set_rank_count(2);
    table_.AddJob(order);
    daemon::ArenaServerOptions options;
    options.path = path();
    options.arena_max_bytes = 4 * arena::kMinBytes;
    server_ = daemon::ArenaServer::Create(options, &engine_, &table_).value();
    node::v1::AttachRequest request;
    request.set_job("j-1");
    request.set_token("token");
    request.set_layout_version(arena::kLayoutVersion);
    request.set_version(kVersion);
    secret_ = table_.AttachProgram({getpid(), getuid(), getgid()}, request).value().session();
    FuzzCheck(CreateSealedMemory("fuzz", arena::kMinBytes, &memory_) == 0, "no memory");
    pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    eventfd_.reset(eventfd(0, EFD_CLOEXEC));
  }

  UniqueFd Connect() const {
    UniqueFd socket;
    FuzzCheck(ConnectUnix(path(), SOCK_SEQPACKET, &socket) == 0, "the server does not listen");
    return socket;
  }
  const std::string& secret() const { return secret_; }
  daemon::FakeEngine& engine() { return engine_; }
  // A descriptor of each sort.
  int Descriptor(uint8_t sort) const {
    const int sorts[] = {memory_.get(), pidfd_.get(), eventfd_.get(), STDERR_FILENO};
    return sorts[sort % std::size(sorts)];
  }
  // The other packets' arenas go.
  void EndRanks() {
    server_->EndRank("j-1", 0);
    server_->EndRank("j-1", 1);
  }

 private:
  static std::string Directory() {
    char name[] = "/tmp/fuzz-XXXXXX";
    FuzzCheck(mkdtemp(name) != nullptr, "no folder");
    return name;
  }
  std::string path() const { return directory_ + "/a.sock"; }

  const std::string directory_;
  daemon::FakeEngine engine_;
  daemon::SessionTable table_;
  std::unique_ptr<daemon::ArenaServer> server_;
  std::string secret_;
  UniqueFd memory_, pidfd_, eventfd_;
};

// A message of one of the kinds with the fields that matter.
std::string TakeMessage(const std::string& secret, FuzzInput* input) {
  const uint8_t kind = input->Take<uint8_t>() % 4;
  std::string packet;
  const auto put = [&](auto message, attach::Kind header_kind) {
    message.header = {header_kind, attach::kVersion};
    std::memcpy(message.session, secret.data(), sizeof(message.session));
    message.arena = input->Take<uint8_t>() % 4;
    packet.assign(reinterpret_cast<const char*>(&message), sizeof(message));
  };
  if (kind == 0) {
    attach::ArenaOffer offer{};
    offer.segment = input->Take<uint8_t>() % 3;
    offer.bytes = arena::kMinBytes + (input->Take<uint8_t>() % 4) * 100;
    put(offer, attach::Kind::kArenaOffer);
  } else if (kind == 1) {
    attach::ClientAttached attached{};
    attached.pid = getpid() + input->Take<uint8_t>() % 2;
    put(attached, attach::Kind::kClientAttached);
  } else if (kind == 2) {
    put(attach::ClientDetached{}, attach::Kind::kClientDetached);
  } else {
    packet = input->TakeBytes(input->Take<uint8_t>());
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
  FuzzWriter writer;
  for (const uint8_t segment : {0, 1}) {  // Offer with a memfd.
    writer.Put(uint8_t{0}).Put(segment).Put(uint8_t{0}).Put(uint8_t{1}).Put(uint8_t{0});
    writer.Put(uint8_t{1}).Put(uint8_t{0});
  }
  writer.Put(uint8_t{1}).Put(uint8_t{0}).Put(uint8_t{1}).Put(uint8_t{0});  // Attached, a pidfd.
  writer.Put(uint8_t{1}).Put(uint8_t{1});
  writer.Put(uint8_t{2}).Put(uint8_t{1}).Put(uint8_t{0}).Put(uint8_t{0});  // Detached.
  writer.Put(uint8_t{3}).Put(uint8_t{5}).PutText("hello").Put(uint8_t{0}).Put(uint8_t{0});
  return {writer.bytes()};
}

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringd;
  QuietLogs();
  static Server server;  // Ends before the loggers that it uses.
  FuzzInput input(data, size);
  UniqueFd socket = server.Connect();
  for (size_t i = 0; i < kMaxPackets && !input.empty(); ++i) {
    const std::string packet = TakeMessage(server.secret(), &input);
    std::vector<int> fds;
    for (int count = input.Take<uint8_t>() % 4; count > 0; --count) {
      fds.push_back(server.Descriptor(input.Take<uint8_t>()));
    }
    if (packet.empty()) continue;
    if (SendPacket(socket.get(), packet.data(), packet.size(), fds.data(),
                   static_cast<int>(fds.size())) < 0) {
      socket = server.Connect();
      continue;
    }
    attach::ArenaAccept accept{};
    std::vector<UniqueFd> links;
    const ssize_t got = ReceivePacket(socket.get(), &accept, sizeof(accept), &links, kAnswerMicros);
    FuzzCheck(got != -ETIMEDOUT, "a packet that is never answered");
    if (got != sizeof(accept)) socket = server.Connect();
  }
  server.EndRanks();
  server.engine().Take();
  return 0;
}
