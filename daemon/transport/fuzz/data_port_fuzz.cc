// Strangers at a node's data port, and a right neighbour that answers anything: handshakes of any
// bytes, cut and mixed in any way, while a ring is being made.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/fuzz/fuzz.h"
#include "common/fuzz/quiet.h"
#include "daemon/transport/data_port.h"
#include "daemon/transport/event_loop.h"
#include "daemon/transport/handshake.h"

namespace ringd {
namespace {

constexpr char kKey[] = "0123456789abcdef0123456789abcdef";
constexpr char kJob[] = "job-1";
constexpr uint64_t kGeneration = 3;
constexpr size_t kMaxCommands = 30;
constexpr size_t kStrangers = 4;

enum Command : uint8_t {
  kHello,
  kProof,
  kRaw,
  kEnd,
  kAnswer,
  kAnswerRaw,
  kPoll,
  kReopen,
  kCommandCount,
};

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Ends with a reset, so that no port waits for late packets.
void SetAbrupt(int fd) {
  const linger abrupt{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &abrupt, sizeof(abrupt));
}

// Listens as the right neighbour for all inputs.
struct Neighbour {
  Neighbour() : listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof(address);
    FuzzCheck(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                  listen(listener.get(), 16) == 0 &&
                  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
              "no listener");
    port = ntohs(address.sin_port);
  }
  UniqueFd listener;
  int port = 0;
};

class World {
 public:
  explicit World(FuzzInput* input) : input_(*input) {
    while (accept4(neighbour().listener.get(), nullptr, nullptr, SOCK_CLOEXEC) >= 0) {
    }
    auto port = daemon::DataPort::Create(&loop_, "127.0.0.1:0");
    FuzzCheck(port.ok(), "no data port");
    port_ = *std::move(port);
    port_->set_wanted_handler([](const daemon::RingRequest&) {});
    Open();
  }

  ~World() {
    for (UniqueFd& end : ends_) {
      if (end.valid()) SetAbrupt(end.get());
    }
  }

  void Run() {
    for (size_t i = 0; i < kMaxCommands && !input_.empty(); ++i) {
      Do(input_.Take<uint8_t>());
      loop_.Poll(absl::ZeroDuration());
    }
    for (int i = 0; i < 5; ++i) loop_.Poll(absl::ZeroDuration());
  }

 private:
  struct Stranger {
    UniqueFd fd;
    wire::Hello hello{};
  };

  static Neighbour& neighbour() {
    static Neighbour& neighbour = *new Neighbour;
    return neighbour;
  }

  void Open() {
    daemon::RingOptions options;
    options.job = kJob;
    options.generation = kGeneration;
    options.key = kKey;
    options.node_count = 2;
    options.right_address = absl::StrCat("127.0.0.1:", neighbour().port);
    port_->OpenRing(options, [this](absl::StatusOr<daemon::RingSockets> sockets) {
      if (!sockets.ok()) return;
      FuzzCheck(proved_ && answered_, "a ring with somebody who has not shown the key");
      for (const int fd : {sockets->left, sockets->right}) ends_.emplace_back(fd);
    });
  }

  template <typename Message>
  void Patch(Message* message) {
    auto* const bytes = reinterpret_cast<unsigned char*>(message);
    for (int patches = input_.Take<uint8_t>() % 3; patches > 0; --patches) {
      const size_t place = input_.Take<uint8_t>() % sizeof(*message);
      bytes[place] = input_.Take<uint8_t>();
    }
  }

  // Everything, or a part that the input names.
  void Send(const UniqueFd& fd, const void* data, size_t bytes) {
    const uint8_t cut = input_.Take<uint8_t>();
    const size_t count = cut % 4 == 3 ? cut % bytes : bytes;
    [[maybe_unused]] const ssize_t ignored =
        send(fd.get(), data, count, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Sends what only the key's owner can know, with some bytes changed. Whether most of it is left:
  // what the input adds elsewhere can't make up for less.
  template <typename Message>
  bool SendSecret(const UniqueFd& fd, const Message& message) {
    Message patched = message;
    Patch(&patched);
    Send(fd, &patched, sizeof(patched));
    return std::memcmp(&patched, &message, sizeof(message) * 3 / 4) == 0;
  }

  Stranger& TakeStranger() {
    Stranger& stranger = strangers_[input_.Take<uint8_t>() % kStrangers];
    if (stranger.fd.valid()) return stranger;
    stranger = Stranger{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    SetAbrupt(stranger.fd.get());
    const sockaddr_in address = Loopback(port_->port());
    FuzzCheck(connect(stranger.fd.get(), reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)) == 0,
              "the data port does not accept");
    return stranger;
  }

  void SayHello() {
    Stranger& stranger = TakeStranger();
    stranger.hello = daemon::MakeHello(kJob, kGeneration, 1, 0);
    Patch(&stranger.hello);
    Send(stranger.fd, &stranger.hello, sizeof(stranger.hello));
  }

  void Prove() {
    Stranger& stranger = TakeStranger();
    for (int i = 0; i < 3; ++i) loop_.Poll(absl::ZeroDuration());
    wire::Challenge challenge{};
    [[maybe_unused]] const ssize_t ignored =
        recv(stranger.fd.get(), &challenge, sizeof(challenge), MSG_DONTWAIT);
    const wire::Proof proof = daemon::MakeProof(kKey, stranger.hello, challenge);
    proved_ |= SendSecret(stranger.fd, proof);
  }

  void SendRaw(const UniqueFd& fd) {
    const std::string bytes = input_.TakeBytes(input_.Take<uint8_t>());
    if (!bytes.empty()) Send(fd, bytes.data(), bytes.size());
  }

  // The right neighbour's part of the handshake.
  void Answer(bool raw) {
    if (!dialled_.valid()) {
      dialled_.reset(accept4(neighbour().listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!dialled_.valid()) return;
      SetAbrupt(dialled_.get());
    }
    if (raw) return SendRaw(dialled_);
    loop_.Poll(absl::ZeroDuration());
    wire::Hello hello{};
    if (recv(dialled_.get(), &hello, sizeof(hello), MSG_DONTWAIT) != sizeof(hello)) return;
    answered_ |= SendSecret(dialled_, daemon::MakeChallenge(kKey, hello));
  }

  void Do(uint8_t command) {
    switch (command % kCommandCount) {
      case kHello:
        return SayHello();
      case kProof:
        return Prove();
      case kRaw:
        return SendRaw(TakeStranger().fd);
      case kEnd:
        strangers_[input_.Take<uint8_t>() % kStrangers].fd.reset();
        return;
      case kAnswer:
        return Answer(false);
      case kAnswerRaw:
        return Answer(true);
      case kPoll:
        for (int i = input_.Take<uint8_t>() % 8; i >= 0; --i) loop_.Poll(absl::ZeroDuration());
        return;
      case kReopen:
        port_->CloseRing(kJob, kGeneration);
        dialled_.reset();
        return Open();
    }
  }

  FuzzInput& input_;
  daemon::EventLoop loop_;
  std::vector<UniqueFd> ends_;  // Of rings that stand.
  Stranger strangers_[kStrangers];
  UniqueFd dialled_;
  bool proved_ = false;    // Somebody has, as the left neighbour.
  bool answered_ = false;  // Somebody has, as the right one.
  std::unique_ptr<daemon::DataPort> port_;
};

}  // namespace

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<FuzzBytes> seeds;
  for (const uint8_t patches : {0, 1}) {
    FuzzWriter writer;
    writer.Put(uint8_t{kAnswer}).Put(uint8_t{0}).Put(uint8_t{0});
    writer.Put(uint8_t{kHello}).Put(uint8_t{0}).Put(uint8_t{0}).Put(uint8_t{0});
    writer.Put(uint8_t{kPoll}).Put(uint8_t{3});
    writer.Put(uint8_t{kProof}).Put(uint8_t{0}).Put(patches);
    if (patches == 1) writer.Put(uint8_t{9}).Put(uint8_t{1});
    writer.Put(uint8_t{0}).Put(uint8_t{kPoll}).Put(uint8_t{3});
    writer.Put(uint8_t{kAnswer}).Put(uint8_t{0}).Put(uint8_t{0}).Put(uint8_t{kReopen});
    writer.Put(uint8_t{kRaw}).Put(uint8_t{1}).Put(uint8_t{5}).PutText("hello").Put(uint8_t{0});
    writer.Put(uint8_t{kAnswerRaw}).Put(uint8_t{4}).PutText("what").Put(uint8_t{0});
    writer.Put(uint8_t{kEnd}).Put(uint8_t{1}).Put(uint8_t{kPoll}).Put(uint8_t{7});
    seeds.push_back(writer.bytes());
  }
  return seeds;
}

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringd::QuietLogs();
  ringd::FuzzInput input(data, size);
  ringd::World(&input).Run();
  return 0;
}
