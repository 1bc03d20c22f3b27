// A rank's process that writes anything into its arena and the shared segment while the daemon
// reads there: another process, so that nothing but the memory is shared. What a single thread can
// do to a job is arena_fuzz's.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/fuzz/quiet.h"
#include "daemon/collectives/local.h"
#include "daemon/collectives/slice_pool.h"
#include "daemon/engine/job.h"
#include "daemon/engine/testing/fake_client.h"
#include "daemon/transport/event_loop.h"
#include "gtest/gtest.h"
#include "proto/arena.h"
#include "proto/segment.h"

namespace ringd::daemon {
namespace {

constexpr int kRounds = 150;
constexpr int kPolls = 400;
constexpr int kSubmissions = 20;
constexpr int kMaxSettlePolls = 100'000;
constexpr int kRanks = 3;
constexpr int kLiar = 1;
constexpr uint64_t kDataBytes = 4096;
constexpr uint64_t kDescriptors = 64;  // Of the queue, that are written again and again.

uint64_t Seed() {
  const char* const text = getenv("RINGD_FUZZ_SEED");
  return text == nullptr ? 1 : strtoull(text, nullptr, 0);
}

struct Target {
  std::byte* arena;
  std::byte* segment;
  uint64_t segment_bytes;
};

class Scribbler {
 public:
  Scribbler(const Target& target, uint64_t seed) : target_(target), random_(seed) {}

  [[noreturn]] void Run() {
    auto* const header = reinterpret_cast<arena::ArenaHeader*>(target_.arena);
    header->generation.store(0);  // The sign that it has begun.
    while (true) {
      switch (random_() % 6) {
        case 0:
          WriteDescriptor();
          break;
        case 1:
          header->head.fetch_add(random_() % 3);
          break;
        case 2:  // Behind the constants.
          WriteWord(target_.arena + 128, sizeof(arena::ArenaHeader) - 128);
          if (random_() % 16 != 0) header->head.store(random_() % kDescriptors);
          break;
        case 3:
          WriteWord(target_.arena + arena::SegmentOffsets().slots,
                    kDescriptors * sizeof(arena::Slot));
          break;
        case 4:
          WriteWord(target_.arena + arena::SegmentOffsets().slab, 64);  // Meta records.
          break;
        default:
          WriteWord(target_.segment, target_.segment_bytes);
      }
    }
  }

 private:
  void WriteWord(std::byte* base, uint64_t bytes) {
    const uint64_t value = random_() % 4 == 0 ? random_() : random_() % 8;
    std::memcpy(base + random_() % (bytes / 8) * 8, &value, sizeof(value));
  }

  // Sound but for its numbers, mostly; a field or two change a moment later.
  void WriteDescriptor() {
    arena::Descriptor descriptor{};
    const uint64_t place = random_() % kDescriptors;
    descriptor.size = sizeof(descriptor);
    descriptor.version = arena::kLayoutVersion;
    descriptor.operation = static_cast<Operation>(1 + random_() % (kOperationCount - 1));
    descriptor.dtype = DType::kFloat32;
    descriptor.reduction = Reduction::kSum;
    descriptor.slot = static_cast<uint32_t>(place);
    descriptor.number = 1;
    descriptor.generation = 1;
    descriptor.serial = place + 1;
    descriptor.input = arena::MakeRef(0, arena::SegmentOffsets().slab);
    descriptor.output = descriptor.input;
    descriptor.count = 4;
    descriptor.prescale = descriptor.postscale = 1.0;
    descriptor.root = static_cast<int32_t>(random_() % 3);
    descriptor.meta = random_() % 2 == 0 ? arena::kNullRef : descriptor.input;
    descriptor.meta_bytes = descriptor.meta == arena::kNullRef ? 0 : 48;
    std::byte* const queue = target_.arena + arena::SegmentOffsets().queue;
    std::memcpy(queue + place * sizeof(descriptor), &descriptor, sizeof(descriptor));
    WriteWord(queue + place * sizeof(descriptor), sizeof(descriptor));
  }

  const Target target_;
  std::mt19937_64 random_;
};

class ScribblerTest : public testing::Test {
 protected:
  void BeginJob() {
    for (FakeClient& client : clients_) client.Renew();
    JobGeneration generation;
    generation.job = "job";
    generation.generation = 1;
    generation.layout.nodes = {{"node-a", 0, kRanks}};
    Job::Events events;
    events.client_failed = [](int rank, const std::string& reason) {
      EXPECT_EQ(rank, kLiar) << reason;
    };
    events.client_died = [](int, int) {};
    events.stalled = [](const Stall&) {};
    events.open_communicator = [this](uint32_t, const GroupLayout& layout, const std::vector<int>&,
                                      const Messages::Opened& opened) {
      opened(MakeLocalCommunicator(layout, &pool_));
    };
    job_ = std::make_unique<Job>(generation, MakeLocalCommunicator(generation.layout, &pool_),
                                 &loop_, 5, std::move(events));
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto bell = job_->AddClient(rank, 1, clients_[rank].Segment());
      ASSERT_TRUE(bell.ok()) << bell.status();
      bells_[rank].reset(*bell);
    }
    segment_fd_.reset(*job_->ShareSegment());
    target_.segment_bytes = segment::SegmentBytes(kRanks);
    void* const base = mmap(nullptr, target_.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            segment_fd_.get(), 0);
    ASSERT_NE(base, MAP_FAILED);
    target_.segment = static_cast<std::byte*>(base);
    target_.arena = reinterpret_cast<std::byte*>(clients_[kLiar].header());
  }

  void EndJob() {
    Outcome over;
    over.code = arena::Code::kUnavailable;
    over.message = "over";
    job_->Remove(over);
    int polls = 0;
    while (job_->Poll()) ASSERT_LT(++polls, kMaxSettlePolls);
    EXPECT_TRUE(job_->removed());
    job_.reset();
    munmap(target_.segment, target_.segment_bytes);
  }

  void SubmitHonest(uint64_t sequence) {
    for (const int rank : {0, 2}) {
      FakeClient& client = clients_[rank];
      const auto data = client.Allocate(kDataBytes);
      auto descriptor = sequence % 2 == 0 ? client.Describe(Operation::kBarrier)
                                          : client.Describe(Operation::kAllreduce, DType::kFloat32,
                                                            Reduction::kSum, 4, data, data);
      descriptor.signature = 0;
      arena::SetSequence(sequence, &descriptor);
      client.Submit(descriptor);
    }
  }

  FakeClient clients_[kRanks];
  SlicePool pool_{1};
  EventLoop loop_;
  UniqueFd bells_[kRanks];
  UniqueFd segment_fd_;
  Target target_{};
  std::unique_ptr<Job> job_;
};

TEST_F(ScribblerTest, WhateverARankWritesMeanwhile_TheOthersAreNotCutOff) {
  QuietLogs();
  printf("RINGD_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(Seed()));
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_NO_FATAL_FAILURE(BeginJob());
    const pid_t pid = fork();
    if (pid == 0) Scribbler(target_, Seed() + static_cast<uint64_t>(round)).Run();
    ASSERT_GT(pid, 0);
    while (clients_[kLiar].header()->generation.load() != 0) usleep(100);
    for (int poll = 0; poll < kPolls; ++poll) {
      if (poll % (kPolls / kSubmissions) == 0) {
        SubmitHonest(static_cast<uint64_t>(poll / (kPolls / kSubmissions)) + 1);
      }
      job_->Poll();
      job_->HasWork();
    }
    EXPECT_FALSE(clients_[0].IsPoisoned());
    EXPECT_FALSE(clients_[2].IsPoisoned());
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    ASSERT_NO_FATAL_FAILURE(EndJob());
  }
}

}  // namespace
}  // namespace ringd::daemon
