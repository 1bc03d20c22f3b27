// A node of a ring whose neighbours send whatever they like, while operations start and fail; or
// two nodes whose bytes are changed on their way.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/fuzz/fuzz.h"
#include "common/fuzz/quiet.h"
#include "daemon/collectives/ring/failure.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/collectives/ring/ring_cluster.h"
#include "proto/operations.h"
#include "proto/wire.h"

namespace ringd {
namespace {

using daemon::Collective;
using daemon::Outcome;

constexpr uint64_t kGeneration = 6;
constexpr uint64_t kSignature = 77;
constexpr int kChannels = 3;
constexpr size_t kMaxCommands = 200;
constexpr int kMaxIdleRounds = 20000;

enum Command : uint8_t {
  kStart,
  kFrameLeft,
  kFrameRight,
  kRawLeft,
  kRawRight,
  kFailure,
  kDrive,
  kRead,
  kAbort,
  kAbortFrom,
  kClose,
  kPatch,
  kCommandCount,
};

class World {
 public:
  explicit World(FuzzInput* input) : input_(*input) {
    const uint8_t shape = input_.Take<uint8_t>();
    has_peer_ = shape % 2 == 1;
    ranks_ = 1 + shape / 2 % 2;
    nodes_ = has_peer_ ? 2 : 2 + shape / 4 % 3;
    std::vector<int> counts(static_cast<size_t>(nodes_), 1);
    counts[0] = ranks_;
    layouts_ = daemon::MakeLayouts(counts);
    AddNode(&right_, &left_);
    if (has_peer_) AddNode(&peer_right_, &peer_left_);
  }

  void Run() {
    for (size_t i = 0; i < kMaxCommands && !input_.empty(); ++i) Do(input_.Take<uint8_t>());
    Settle();
    Outcome over;
    over.code = arena::Code::kUnavailable;
    over.message = "over";
    for (uint64_t channel = 0; channel < kChannels; ++channel) {
      for (const auto& each : communicators_) each->AbortFrom({channel, 1}, over);
    }
    Settle();
    FuzzCheck(running_.empty(), "an operation that was never told");
  }

 private:
  struct Running {
    std::vector<std::vector<std::byte>> memory;  // Freed when the operation is over.
  };
  using RunningKey = std::tuple<size_t, uint64_t, uint64_t>;  // Node, channel, sequence.
  // From one socket of ours to another; some of the bytes become other ones.
  struct Way {
    UniqueFd* from;
    UniqueFd* to;
    uint64_t moved = 0;
    uint64_t patch_at = ~uint64_t{0};
    char patch = 0;
    std::string held;
  };

  void AddNode(UniqueFd* right, UniqueFd* left) {
    daemon::RingSockets sockets;
    MakePair(&sockets.right, right);
    MakePair(&sockets.left, left);
    communicators_.push_back(MakeRingCommunicator(layouts_[communicators_.size()], kGeneration,
                                                  sockets, &loop_, [](const Outcome&) {}));
    communicators_.back()->set_peer_failure_handler(
        [](daemon::OperationKey, bool, const Outcome& outcome) {
          FuzzCheck(!outcome.ok(), "a failure that is none");
        });
  }

  static void MakePair(int* ours, UniqueFd* theirs) {
    int pair[2];
    FuzzCheck(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0,
              "no sockets");
    *ours = pair[0];
    theirs->reset(pair[1]);
  }

  bool Drive() {
    bool worked = false;
    loop_.Poll(absl::ZeroDuration());
    for (const auto& each : communicators_) worked |= each->Progress();
    for (Way& way : ways_) worked |= has_peer_ && Move(&way);
    return worked;
  }

  static bool Move(Way* way) {
    if (!way->from->valid() || !way->to->valid()) return false;
    bool moved = false;
    if (way->held.empty()) {
      std::array<char, 16384> chunk;
      const ssize_t got = recv(way->from->get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (got <= 0) return false;
      const auto count = static_cast<uint64_t>(got);
      if (way->patch_at >= way->moved && way->patch_at < way->moved + count) {
        chunk[way->patch_at - way->moved] ^= way->patch;
      }
      way->moved += count;
      way->held.assign(chunk.data(), count);
      moved = true;
    }
    const ssize_t sent =
        send(way->to->get(), way->held.data(), way->held.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return moved;
    way->held.erase(0, static_cast<size_t>(sent));
    return true;
  }

  void Settle() {
    int rounds = 0;
    while (Drive()) FuzzCheck(++rounds < kMaxIdleRounds, "a ring that is never done");
  }

  // Some places of the buffers, at least one byte long and of exactly the size.
  std::byte* Allocate(uint64_t bytes, Running* running) {
    running->memory.emplace_back(std::max<uint64_t>(bytes, 1), std::byte{1});
    return running->memory.back().data();
  }

  void SetCounts(Collective* collective, uint64_t* input, uint64_t* output) {
    const auto size = static_cast<uint64_t>(nodes_ - 1 + ranks_);
    const uint64_t count = collective->count;
    switch (collective->operation) {
      case Operation::kAllgather:
      case Operation::kGather:
        collective->counts.assign(size, count);
        *output = size * count;
        break;
      case Operation::kReduceScatter:
      case Operation::kScatter:
        collective->counts.assign(size, count);
        *input = size * count;
        break;
      case Operation::kAlltoall:
        collective->counts.assign(size * size, count);
        *input = *output = size * count;
        break;
      default:
        break;
    }
  }

  void Start() {
    constexpr Operation kOperations[] = {
        Operation::kAllreduce,     Operation::kAllgather, Operation::kBroadcast,
        Operation::kReduceScatter, Operation::kAlltoall,  Operation::kBarrier,
        Operation::kReduce,        Operation::kGather,    Operation::kScatter};
    constexpr uint64_t kCounts[] = {0, 1, 2, 5, 31, 1000, 300'000};
    auto collective = std::make_shared<Collective>();
    collective->operation = kOperations[input_.Take<uint8_t>() % std::size(kOperations)];
    collective->dtype = input_.Take<uint8_t>() % 2 == 0 ? DType::kUInt8 : DType::kFloat16;
    const bool is_reduction = IsReduction(collective->operation);
    collective->reduction = is_reduction ? Reduction::kSum : Reduction::kNone;
    collective->count = kCounts[input_.Take<uint8_t>() % std::size(kCounts)];
    if (collective->operation == Operation::kBarrier) collective->count = 0;
    collective->root = input_.Take<uint8_t>() % (nodes_ - 1 + ranks_);
    collective->signature = kSignature;
    collective->description = "rank 0: something";
    const uint64_t channel = input_.Take<uint8_t>() % kChannels;
    const daemon::OperationKey key{channel, ++started_[channel]};
    for (size_t node = 0; node < communicators_.size(); ++node) StartOn(node, key, *collective);
  }

  void StartOn(size_t node, daemon::OperationKey key, const Collective& drawn) {
    auto collective = std::make_shared<Collective>(drawn);
    Running running;
    uint64_t input = collective->count, output = collective->count;
    SetCounts(collective.get(), &input, &output);
    collective->ranks.resize(layouts_[node].local_count());
    const bool moves = collective->operation != Operation::kBarrier;
    for (size_t rank = 0; rank < collective->ranks.size() && moves; ++rank) {
      const size_t element = DTypeBytes(collective->dtype);
      collective->ranks[rank] = {Allocate(input * element, &running),
                                 Allocate(output * element, &running)};
    }
    const RunningKey id{node, key.channel, key.sequence};
    running_[id] = std::move(running);
    communicators_[node]->Start(key, std::move(collective), [this, id](const Outcome&) {
      FuzzCheck(running_.erase(id) == 1, "an operation that was told twice");
    });
  }

  void Send(const UniqueFd& to, const void* data, size_t bytes) {
    // What does not fit is lost, in mid-frame.
    [[maybe_unused]] const ssize_t ignored =
        send(to.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  wire::FrameHeader TakeHeader() {
    constexpr uint32_t kBytes[] = {0, 1, 2, 3, 10, 16, 500, 1000, 256 << 10};
    wire::FrameHeader header{};
    header.magic = wire::kMagic;
    header.type = static_cast<wire::FrameType>(1 + input_.Take<uint8_t>() % 5);
    header.generation = kGeneration;
    header.channel = input_.Take<uint8_t>() % kChannels;
    header.sequence = input_.Take<uint8_t>() % 16;
    header.signature = kSignature;
    header.offset = input_.Take<uint16_t>();
    header.payload_bytes = kBytes[input_.Take<uint8_t>() % std::size(kBytes)];
    auto* const bytes = reinterpret_cast<unsigned char*>(&header);
    for (int patches = input_.Take<uint8_t>() % 3; patches > 0; --patches) {
      const size_t place = input_.Take<uint8_t>() % sizeof(header);
      bytes[place] = input_.Take<uint8_t>();
    }
    return header;
  }

  void SendFrame(const UniqueFd& to) {
    const wire::FrameHeader header = TakeHeader();
    std::string frame(reinterpret_cast<const char*>(&header), sizeof(header));
    if (header.type == wire::FrameType::kData) {
      frame.append(std::min<uint32_t>(header.payload_bytes, 256 << 10), 'x');
    }
    Send(to, frame.data(), frame.size());
  }

  void SendFailure() {
    daemon::RingFailureText failure;
    failure.outcome.code = static_cast<arena::Code>(1 + input_.Take<uint8_t>() % 11);
    failure.outcome.message = input_.TakeBytes(input_.Take<uint8_t>() % 32);
    failure.description = input_.TakeBytes(input_.Take<uint8_t>() % 64);
    std::string text = daemon::EncodeFailure(failure);
    if (const uint8_t place = input_.Take<uint8_t>(); place < text.size()) {
      text[place] = static_cast<char>(input_.Take<uint8_t>());
    }
    wire::FrameHeader header = TakeHeader();
    header.type = header.offset % 2 == 0 ? wire::FrameType::kAbort : wire::FrameType::kAbortFrom;
    header.payload_bytes = static_cast<uint32_t>(text.size());
    header.origin = input_.Take<uint8_t>() % 5;
    header.flood = input_.Take<uint8_t>();
    const UniqueFd& to = input_.Take<uint8_t>() % 2 == 0 ? left_ : right_;
    Send(to, &header, sizeof(header));
    Send(to, text.data(), text.size());
  }

  void SendRaw(const UniqueFd& to) {
    const std::string bytes = input_.TakeBytes(input_.Take<uint8_t>());
    Send(to, bytes.data(), bytes.size());
  }

  void Read() {
    std::array<char, 65536> chunk;
    for (const UniqueFd* from : {&left_, &right_}) {
      for (int i = 0; i < 8 && recv(from->get(), chunk.data(), chunk.size(), MSG_DONTWAIT) > 0;)
        ++i;
    }
  }

  void Do(uint8_t command) {
    switch (command % kCommandCount) {
      case kStart:
        return Start();
      case kFrameLeft:
        return SendFrame(left_);
      case kFrameRight:
        return SendFrame(right_);
      case kRawLeft:
        return SendRaw(left_);
      case kRawRight:
        return SendRaw(right_);
      case kFailure:
        return SendFailure();
      case kDrive:
        for (int rounds = input_.Take<uint8_t>() % 16; rounds >= 0; --rounds) Drive();
        return;
      case kRead:
        return Read();
      case kAbort:
      case kAbortFrom: {
        const uint64_t channel = input_.Take<uint8_t>() % kChannels;
        Outcome outcome;
        outcome.code = arena::Code::kPeerFailed;
        outcome.message = "no more";
        const daemon::OperationKey key{channel, uint64_t{1} + input_.Take<uint8_t>() % 8};
        if (command % kCommandCount == kAbort) return communicators_[0]->Abort(key, outcome);
        return communicators_[0]->AbortFrom(key, outcome);
      }
      case kPatch: {
        Way& way = ways_[input_.Take<uint8_t>() % std::size(ways_)];
        way.patch_at = way.moved + input_.Take<uint16_t>();
        way.patch = static_cast<char>(input_.Take<uint8_t>());
        return;
      }
      case kClose:
        (input_.Take<uint8_t>() % 2 == 0 ? left_ : right_).reset();
        return;
    }
  }

  FuzzInput& input_;
  bool has_peer_ = false;  // A second node, that keeps to the protocol.
  int ranks_ = 1;          // Of the first node; the others have one.
  int nodes_ = 2;
  std::vector<daemon::GroupLayout> layouts_;
  daemon::EventLoop loop_;
  UniqueFd left_, right_, peer_left_, peer_right_;  // The other ends of the nodes' sockets.
  Way ways_[4] = {{&right_, &peer_left_},
                  {&peer_left_, &right_},
                  {&peer_right_, &left_},
                  {&left_, &peer_right_}};
  std::map<RunningKey, Running> running_;
  std::array<uint64_t, kChannels> started_{};
  std::vector<std::unique_ptr<daemon::Communicator>> communicators_;
};

void PutFrame(Command command, wire::FrameType type, uint8_t sequence, uint16_t offset,
              uint8_t bytes_index, FuzzWriter* writer) {
  writer->Put(uint8_t{command}).Put(static_cast<uint8_t>(static_cast<int>(type) - 1));
  writer->Put(uint8_t{0}).Put(sequence).Put(offset).Put(bytes_index).Put(uint8_t{0});
}

void PutStart(uint8_t operation, uint8_t count_index, FuzzWriter* writer) {
  writer->Put(uint8_t{kStart}).Put(operation).Put(uint8_t{0}).Put(count_index);
  writer->Put(uint8_t{0}).Put(uint8_t{0});
}

}  // namespace

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<FuzzBytes> seeds;
  for (uint8_t operation = 0; operation < 9; ++operation) {
    FuzzWriter writer;
    writer.Put(uint8_t{3});  // With a peer, two ranks here.
    for (const uint8_t count_index : {3, 6, 0}) {
      PutStart(operation, count_index, &writer);
      writer.Put(uint8_t{kDrive}).Put(uint8_t{15});
    }
    writer.Put(uint8_t{kPatch}).Put(operation).Put(uint16_t{40}).Put(uint8_t{0});
    PutStart(operation, 5, &writer);
    writer.Put(uint8_t{kDrive}).Put(uint8_t{15}).Put(uint8_t{kAbort}).Put(uint8_t{0});
    writer.Put(uint8_t{4});
    seeds.push_back(writer.bytes());
  }
  for (uint8_t operation = 0; operation < 9; ++operation) {
    for (const bool early : {false, true}) {
      FuzzWriter writer;
      writer.Put(uint8_t{0});  // Two nodes, one rank here.
      if (!early) PutStart(operation, 3, &writer);
      PutFrame(kFrameRight, wire::FrameType::kReady, 1, 5, 0, &writer);
      PutFrame(kFrameLeft, wire::FrameType::kData, 1, 0, 2, &writer);
      writer.Put(uint8_t{kDrive}).Put(uint8_t{9});
      if (early) PutStart(operation, 3, &writer);
      PutFrame(kFrameLeft, wire::FrameType::kData, 1, 2, 3, &writer);
      writer.Put(uint8_t{kDrive}).Put(uint8_t{9}).Put(uint8_t{kRead});
      PutStart(operation, 6, &writer);
      PutFrame(kFrameRight, wire::FrameType::kReady, 2, 1000, 0, &writer);
      writer.Put(uint8_t{kFailure}).Put(uint8_t{2}).Put(uint8_t{1}).PutText("m");
      writer.Put(uint8_t{2}).PutText("de").Put(uint8_t{255});
      writer.Put(uint8_t{2}).Put(uint8_t{0}).Put(uint8_t{2}).Put(uint16_t{0}).Put(uint8_t{0});
      writer.Put(uint8_t{0}).Put(uint8_t{1}).Put(uint8_t{1}).Put(uint8_t{0});
      writer.Put(uint8_t{kDrive}).Put(uint8_t{9}).Put(uint8_t{kAbort}).Put(uint8_t{0});
      writer.Put(uint8_t{3}).Put(uint8_t{kClose}).Put(uint8_t{1});
      seeds.push_back(writer.bytes());
    }
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
