// Whatever a peer sends on an authenticated connection: frames of any kind, cut anywhere.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/fuzz/fuzz.h"
#include "daemon/transport/link.h"

namespace ringd {
namespace {

using daemon::EventLoop;
using daemon::Link;

constexpr uint64_t kGeneration = 4;
constexpr int kMaxRounds = 200;

// Memory of exactly the frame's size; some frames are discarded or refused, as their header says.
class Handler : public Link::Handler {
 public:
  absl::StatusOr<std::byte*> OnData(const wire::FrameHeader& header) override {
    FuzzCheck(header.generation == kGeneration, "another generation's frame");
    FuzzCheck(header.payload_bytes <= wire::kMaxPayloadBytes, "a payload that is too long");
    if (header.channel == 13) return absl::InvalidArgumentError("refused");
    payload_ = std::make_unique<std::byte[]>(header.payload_bytes);
    expected_ = header.channel == 7 || header.payload_bytes == 0 ? nullptr : payload_.get();
    return expected_;
  }
  absl::Status OnFrame(const wire::FrameHeader& header, const std::byte* payload) override {
    FuzzCheck(header.type != wire::FrameType::kPing, "a ping");
    FuzzCheck(header.type != wire::FrameType::kData || payload == expected_, "another payload");
    if (payload != nullptr)
      sum_ += std::count(payload, payload + header.payload_bytes, std::byte{});
    return absl::OkStatus();
  }
  void OnSent(uint64_t) override {}

 private:
  std::unique_ptr<std::byte[]> payload_;
  std::byte* expected_ = nullptr;
  int64_t sum_ = 0;  // Reads every byte.
};

}  // namespace

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<FuzzBytes> seeds;
  for (const wire::FrameType type : {wire::FrameType::kReady, wire::FrameType::kData,
                                     wire::FrameType::kAbort, wire::FrameType::kPing}) {
    FuzzWriter writer;
    writer.Put(uint8_t{100});
    for (uint64_t channel : {0, 7, 13}) {
      wire::FrameHeader header{};
      header.magic = wire::kMagic;
      header.type = type;
      header.generation = kGeneration;
      header.channel = channel;
      header.sequence = 1;
      const bool has_payload = type == wire::FrameType::kData || type == wire::FrameType::kAbort;
      header.payload_bytes = has_payload ? sizeof(wire::Failure) + 3 : 0;
      writer.Put(header).PutText(std::string(header.payload_bytes, 'x'));
    }
    seeds.push_back(writer.bytes());
  }
  return seeds;
}

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringd;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return 0;
  UniqueFd peer(pair[1]);
  EventLoop loop;
  Handler handler;
  FuzzInput input(data, size);
  const size_t step = 1 + input.Take<uint8_t>();
  Link link(&loop, UniqueFd(pair[0]), kGeneration, &handler);
  int rounds = 0;
  while (!input.empty() && link.status().ok() && ++rounds < kMaxRounds) {
    const std::string part = input.TakeBytes(step * 16);
    if (send(peer.get(), part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
    loop.Poll(absl::ZeroDuration());
    link.Receive(step * 8);
    link.Flush(step);
  }
  peer.reset();
  for (int i = 0; i < 2 * kMaxRounds && link.status().ok(); ++i) {
    loop.Poll(absl::ZeroDuration());
    link.Receive(1 << 20);
  }
  FuzzCheck(!link.status().ok(), "a link that does not see its peer's end");
  return 0;
}
