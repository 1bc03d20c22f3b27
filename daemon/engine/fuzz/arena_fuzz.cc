// A whole job of three ranks over their arenas and shared segment, in one thread: ranks 0 and 2
// keep to the protocol, whatever rank 1 writes where it can write.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/base/futex.h"
#include "common/fuzz/fuzz.h"
#include "common/fuzz/quiet.h"
#include "daemon/collectives/local.h"
#include "daemon/collectives/slice_pool.h"
#include "daemon/engine/job.h"
#include "daemon/engine/testing/fake_client.h"
#include "daemon/engine/testing/plan_record.h"
#include "proto/operations.h"
#include "proto/segment_view.h"
#include "proto/wire.h"

namespace ringd {
namespace {

using daemon::FakeClient;
using daemon::Job;

constexpr size_t kMaxCommands = 200;
constexpr int kMaxIdlePolls = 5000;  // A full queue takes 256 rounds.
constexpr uint64_t kHoldBytes = 4096;
constexpr uint64_t kIncarnation = 5;
constexpr int kRanks = 3;
constexpr int kHonestRanks[] = {0, 2};
constexpr int kLiar = 1;

enum Command : uint8_t {
  kHonestSubmit,
  kSubmit,
  kSubmitRecord,
  kPublishRaw,
  kWriteHeader,
  kWriteSlot,
  kWriteQueue,
  kWriteSlab,
  kWriteSegment,
  kPoll,
  kReattach,
  kAddSegment,
  kHonestDirect,
  kDirect,
  kOpenGroups,
  kCheckStalls,
  kRankEnded,
  kFail,
  kCommandCount,
};

// Memory that is mapped once for all inputs: making an arena takes milliseconds.
struct Memory {
  FakeClient clients[kRanks];  // By rank.
  FakeClient further;
};

class World {
 public:
  explicit World(FuzzInput* input) : input_(*input), pool_(1) {
    for (FakeClient& client : memory().clients) client.Renew();
    for (const int rank : kHonestRanks) honest_data_ = client(rank).Allocate(kHoldBytes);
    daemon::JobGeneration generation;
    generation.job = "job";
    generation.generation = 1;
    generation.layout.nodes = {{"node-a", 0, kRanks}};
    job_ = std::make_unique<Job>(generation, Local(generation.layout), &loop_, kIncarnation,
                                 MakeEvents());
    for (int rank = 0; rank < kRanks; ++rank) {
      FuzzCheck(Attach(rank, 1), "a sound arena is refused");
    }
    segment_fd_.reset(*job_->ShareSegment());
    segment_bytes_ = segment::SegmentBytes(kRanks);
    void* const base =
        mmap(nullptr, segment_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd_.get(), 0);
    FuzzCheck(base != MAP_FAILED, "no shared segment");
    segment_ = static_cast<std::byte*>(base);
  }

  ~World() {
    job_.reset();
    munmap(segment_, segment_bytes_);
  }

  void Run() {
    for (size_t i = 0; i < kMaxCommands && !input_.empty(); ++i) Do(input_.Take<uint8_t>());
    Poll("a job that is never done with what it has got");
    for (const int rank : kHonestRanks) CheckHonest(client(rank));
    daemon::Outcome over;
    over.code = arena::Code::kUnavailable;
    over.message = "over";
    job_->Remove(over);
    OpenGroups();
    Poll("a job that is never removed");
    FuzzCheck(job_->removed(), "removed, but buffers are in use");
  }

 private:
  static Memory& memory() {
    static Memory& memory = *new Memory;
    return memory;
  }
  static FakeClient& client(int rank) { return memory().clients[rank]; }
  static FakeClient& liar() { return client(kLiar); }

  std::unique_ptr<daemon::Communicator> Local(const daemon::GroupLayout& layout) {
    return MakeLocalCommunicator(layout, &pool_);
  }

  Job::Events MakeEvents() {
    Job::Events events;
    events.client_failed = [](int rank, const std::string& reason) {
      FuzzCheck(rank == kLiar, ("an honest rank is cut off: " + reason).c_str());
    };
    events.client_died = [](int, int) {};
    events.stalled = [](const daemon::Stall&) {};
    events.open_communicator = [this](uint32_t group, const daemon::GroupLayout& layout,
                                      const std::vector<int>&, daemon::Messages::Opened opened) {
      if (group == wire::kMessages) return opened(Local(layout));  // Those of one node.
      opening_.push_back({layout, std::move(opened)});
    };
    return events;
  }

  bool Attach(int rank, uint64_t arena) {
    const auto doorbell = job_->AddClient(rank, arena, client(rank).Segment());
    if (doorbell.ok()) bells_[rank].reset(*doorbell);
    return doorbell.ok();
  }

  void OpenGroups() {
    for (auto& [layout, opened] : std::exchange(opening_, {})) opened(Local(layout));
  }

  void Poll(const char* what) {
    int polls = 0;
    while (job_->Poll()) FuzzCheck(++polls < kMaxIdlePolls, what);
  }

  void CheckHonest(FakeClient& honest) {
    FuzzCheck(failed_ || !honest.IsPoisoned(), "an honest rank was cut off");
    // Its operations use the first half alone.
    const auto* const bytes = static_cast<const unsigned char*>(honest.At(honest_data_));
    FuzzCheck(std::all_of(bytes + kHoldBytes / 2, bytes + kHoldBytes,
                          [](unsigned char byte) { return byte == 0; }),
              "memory that an honest rank gave to no operation was written to");
  }

  arena::Descriptor TakeDescriptor(FakeClient* client, arena::Ref data) {
    const auto operation =
        static_cast<Operation>(1 + input_.Take<uint8_t>() % (kOperationCount - 1));
    const auto dtype = static_cast<DType>(1 + input_.Take<uint8_t>() % (kDTypeCount - 1));
    const auto reduction = static_cast<Reduction>(input_.Take<uint8_t>() % kReductionCount);
    const uint64_t count = input_.Take<uint8_t>() % 32;
    arena::Descriptor descriptor =
        client->Describe(operation, dtype, reduction, count, data, data + kHoldBytes / 4);
    descriptor.signature = 0;
    return descriptor;
  }

  // What the library would let pass, on both honest ranks.
  void HonestSubmit() {
    const arena::Descriptor drawn = TakeDescriptor(&client(0), honest_data_);
    for (const int rank : kHonestRanks) {
      arena::Descriptor descriptor = drawn;
      MakeSound(drawn, &client(rank), &descriptor);
      if (!IsMessage(descriptor.operation)) arena::SetSequence(sequence_ + 1, &descriptor);
      tickets_.push_back({&client(rank), client(rank).Submit(descriptor)});
    }
    if (!IsMessage(drawn.operation)) ++sequence_;
  }

  static void MakeSound(const arena::Descriptor& drawn, FakeClient* honest,
                        arena::Descriptor* descriptor) {
    const std::vector<int64_t> members[] = {{1}, {0, 1}, {1, 2}};
    switch (drawn.operation) {
      case Operation::kAllreduce:
      case Operation::kBroadcast:
        break;
      case Operation::kSend:
      case Operation::kRecv:
        descriptor->root = kLiar;
        break;
      case Operation::kGroupRegister:
      case Operation::kGroupUnregister:
        honest->SetCounts(members[drawn.count % 3], descriptor);
        descriptor->root = 1;
        break;
      default:
        *descriptor = honest->Describe(Operation::kBarrier);
        descriptor->signature = 0;
    }
  }

  // Some bytes of it are other ones.
  void Patch(arena::Descriptor* descriptor) {
    auto* const bytes = reinterpret_cast<unsigned char*>(descriptor);
    for (int patches = input_.Take<uint8_t>() % 4; patches > 0; --patches) {
      const size_t place = input_.Take<uint8_t>() % sizeof(*descriptor);
      bytes[place] = input_.Take<uint8_t>();
    }
  }

  void Submit(bool with_record) {
    arena::Descriptor descriptor = TakeDescriptor(&liar(), LiarData());
    if (with_record) {
      const std::string record = input_.TakeBytes(input_.Take<uint16_t>() % 1024);
      descriptor.meta = LiarRecord();
      descriptor.meta_bytes = static_cast<uint32_t>(record.size());
      std::memcpy(liar().At(descriptor.meta), record.data(), record.size());
      descriptor.root = input_.Take<uint8_t>() % 8;
    }
    descriptor.group = input_.Take<uint8_t>() % 4;
    liar().Number(&descriptor);
    Patch(&descriptor);
    liar().Publish({descriptor});
  }

  void PublishRaw() {
    auto descriptor = input_.Take<arena::Descriptor>();
    if (input_.Take<uint8_t>() % 2 == 0) liar().Number(&descriptor);
    liar().Publish({descriptor});
  }

  template <typename Word>
  void Write(std::byte* base, uint64_t bytes) {
    const uint64_t words = bytes / sizeof(Word);
    const uint64_t place = input_.Take<uint32_t>() % words;
    const auto value = input_.Take<Word>();
    std::memcpy(base + place * sizeof(Word), &value, sizeof(value));
  }

  void WriteBytes(std::byte* base, uint64_t bytes) {
    const std::string data = input_.TakeBytes(input_.Take<uint8_t>());
    const uint64_t place = input_.Take<uint32_t>() % (bytes - data.size());
    std::memcpy(base + place, data.data(), data.size());
  }

  std::byte* Arena() { return reinterpret_cast<std::byte*>(liar().header()); }
  static arena::Ref LiarData() { return arena::MakeRef(0, arena::SegmentOffsets().slab); }
  static arena::Ref LiarRecord() { return LiarData() + kHoldBytes; }

  void Reattach() {
    job_->RemoveClient(kLiar, arena_);
    // What has been in use before is what a former daemon served.
    if (input_.Take<uint8_t>() % 2 == 0) liar().Renew();
    Attach(kLiar, ++arena_);
  }

  void Publish(int rank, uint64_t sequence, const arena::Descriptor& description, const void* data,
               uint32_t bytes) {
    const segment::View view(segment_, kRanks);
    const uint32_t index = view.NextSlot(rank);
    segment::Publication publication;
    publication.sequence = sequence;
    publication.signature = segment::SignatureOf(description);
    publication.data = data;
    publication.bytes = bytes;
    view.Open(rank, index);
    std::memcpy(&view.slot(rank, index).description, &description, sizeof(description));
    view.Publish(rank, index, publication);
  }

  // The honest ranks publish a barrier by themselves, as they may while the daemon has nothing of
  // theirs.
  void HonestDirect() {
    std::erase_if(tickets_, [](const auto& each) { return each.first->IsOver(each.second); });
    if (!tickets_.empty()) return;
    ++sequence_;
    for (const int rank : kHonestRanks) {
      arena::Descriptor description = client(rank).Describe(Operation::kBarrier);
      description.signature = 0;
      Publish(rank, sequence_, description, nullptr, 0);
    }
  }

  // As the library would, but for the number and some bytes.
  void Direct() {
    arena::Descriptor description = TakeDescriptor(&liar(), LiarData());
    Patch(&description);
    const uint64_t sequence = sequence_ + input_.Take<uint8_t>() % 4;
    const auto bytes = static_cast<uint32_t>(input_.Take<uint8_t>());
    Publish(kLiar, sequence, description, liar().At(LiarData()), bytes);
  }

  void End(bool whole_job) {
    daemon::Outcome outcome;
    outcome.code = arena::Code::kPeerFailed;
    outcome.message = "it is over";
    outcome.exit_code = 1;
    if (whole_job) failed_ = true;
    if (whole_job) return job_->Fail(outcome);
    job_->RankEnded(kLiar, outcome);
  }

  void Do(uint8_t command) {
    switch (command % kCommandCount) {
      case kHonestSubmit:
        return HonestSubmit();
      case kSubmit:
        return Submit(false);
      case kSubmitRecord:
        return Submit(true);
      case kPublishRaw:
        return PublishRaw();
      case kWriteHeader:
        return Write<uint64_t>(Arena(), arena::kHeaderBytes);
      case kWriteSlot:
        return Write<uint32_t>(Arena() + arena::SegmentOffsets().slots, 64 * sizeof(arena::Slot));
      case kWriteQueue:
        return WriteBytes(Arena() + arena::SegmentOffsets().queue, 64 * sizeof(arena::Descriptor));
      case kWriteSlab:
        return WriteBytes(Arena() + arena::SegmentOffsets().slab, 2 * kHoldBytes);
      case kWriteSegment:
        return WriteBytes(segment_, segment_bytes_);
      case kPoll:
        for (int polls = input_.Take<uint8_t>() % 8; polls >= 0; --polls) job_->Poll();
        return;
      case kReattach:
        return Reattach();
      case kAddSegment:
        job_->AddSegment(kLiar, arena_, input_.Take<uint8_t>() % 4, memory().further.Segment())
            .IgnoreError();
        return;
      case kHonestDirect:
        return HonestDirect();
      case kDirect:
        return Direct();
      case kOpenGroups:
        return OpenGroups();
      case kCheckStalls:
        job_->SetSleeping(input_.Take<uint8_t>() % 2 == 0);
        job_->HasWork();
        job_->CheckMemory();
        return job_->CheckStalls(MonotonicMicros() + input_.Take<uint8_t>() * int64_t{1'000'000});
      case kRankEnded:
        return End(false);
      case kFail:
        return End(true);
    }
  }

  FuzzInput& input_;
  daemon::SlicePool pool_;
  daemon::EventLoop loop_;
  std::unique_ptr<Job> job_;
  std::vector<std::pair<daemon::GroupLayout, daemon::Messages::Opened>> opening_;
  UniqueFd bells_[kRanks];
  UniqueFd segment_fd_;
  std::byte* segment_ = nullptr;
  uint64_t segment_bytes_ = 0;
  arena::Ref honest_data_ = 0;
  uint64_t sequence_ = 0;  // Of the honest ranks in group 0.
  std::vector<std::pair<FakeClient*, FakeClient::Ticket>> tickets_;
  uint64_t arena_ = 1;
  bool failed_ = false;
};

void PutOperation(Command command, Operation operation, uint8_t count, FuzzWriter* writer) {
  writer->Put(uint8_t{command}).Put(static_cast<uint8_t>(static_cast<int>(operation) - 1));
  writer->Put(static_cast<uint8_t>(static_cast<int>(DType::kFloat32) - 1));
  writer->Put(static_cast<uint8_t>(Reduction::kSum)).Put(count);
}

// All ranks submit the same, `count` elements of float32.
void PutAll(Operation operation, uint8_t count, FuzzWriter* writer) {
  PutOperation(kHonestSubmit, operation, count, writer);
  PutOperation(kSubmit, operation, count, writer);
  writer->Put(uint8_t{0}).Put(uint8_t{0});  // Group 0, no patches.
  writer->Put(uint8_t{kPoll}).Put(uint8_t{3});
}

void PutRecord(Operation operation, const std::string& record, uint8_t root, FuzzWriter* writer) {
  PutOperation(kSubmitRecord, operation, 4, writer);
  writer->Put(static_cast<uint16_t>(record.size()));
  writer->PutText(record).Put(root).Put(uint8_t{0}).Put(uint8_t{0});
  writer->Put(uint8_t{kPoll}).Put(uint8_t{3});
}

std::string CountsRecord(const std::vector<int64_t>& counts) {
  FuzzWriter record;
  record.Put(arena::Meta{0, static_cast<uint32_t>(counts.size()), 0, 0});
  for (const int64_t count : counts) record.Put(count);
  return {record.bytes().begin(), record.bytes().end()};
}

}  // namespace

std::vector<FuzzBytes> FuzzSeeds() {
  std::vector<FuzzBytes> seeds;
  for (const Operation operation :
       {Operation::kAllreduce, Operation::kBroadcast, Operation::kBarrier, Operation::kSend}) {
    FuzzWriter writer;
    PutAll(operation, 5, &writer);
    PutAll(operation, 0, &writer);
    writer.Put(uint8_t{kHonestDirect}).Put(uint8_t{kPoll}).Put(uint8_t{1});
    PutAll(operation, 31, &writer);
    PutOperation(kHonestSubmit, operation, 4, &writer);
    PutOperation(kDirect, operation, 4, &writer);
    writer.Put(uint8_t{0}).Put(uint8_t{0}).Put(uint8_t{16}).Put(uint8_t{kPoll}).Put(uint8_t{3});
    writer.Put(uint8_t{kCheckStalls}).Put(uint8_t{0}).Put(uint8_t{60});
    seeds.push_back(writer.bytes());
  }
  daemon::PlanRecord plan;
  plan.buckets = {daemon::MakePlanBucket(30, arena::SegmentOffsets().slab)};
  plan.tensors = {{"weight", 0, {5, 6}, 0}};
  const std::vector<char> plan_bytes = plan.Bytes();
  const std::pair<Operation, std::string> records[] = {
      {Operation::kAllgather, CountsRecord({4, 2, 1})},
      {Operation::kAlltoall, CountsRecord({1, 2, 3, 4, 5, 6, 7, 8, 9})},
      {Operation::kReduceScatter, CountsRecord({2, 1, 1})},
      {Operation::kGroupRegister, CountsRecord({0, 1})},
      {Operation::kPlanRegister, std::string(plan_bytes.begin(), plan_bytes.end())},
  };
  for (const auto& [operation, record] : records) {
    FuzzWriter writer;
    PutOperation(kHonestSubmit, operation, 1, &writer);  // Of a group: ranks 0 and 1.
    PutRecord(operation, record, 1, &writer);
    writer.Put(uint8_t{kOpenGroups}).Put(uint8_t{kReattach}).Put(uint8_t{1});
    PutAll(Operation::kAllreduce, 5, &writer);
    writer.Put(uint8_t{kWriteHeader}).Put(uint32_t{16}).Put(uint64_t{70000});
    writer.Put(uint8_t{kPoll}).Put(uint8_t{1}).Put(uint8_t{kRankEnded}).Put(uint8_t{kFail});
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
