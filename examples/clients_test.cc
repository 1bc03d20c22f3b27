// The C and C++ clients under a real worker; the daemon is played by the test, which adds what
// three other ranks would have contributed.
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "common/base/futex.h"
#include "gtest/gtest.h"
#include "proto/arena.h"
#include "worker/testing/worker_harness.h"

namespace ringd::worker {
namespace {

constexpr float kOtherRanks = 1 + 2 + 3;  // Ranks 0 to 2; the client is rank 3.

class ClientsTest : public WorkerTest {
 protected:
  // Serves arenas as they are offered and completes every allreduce in them.
  void Serve() {
    while (!stop_) {
      while (std::optional<ArenaEvent> event = daemon_.NextArenaEvent(absl::ZeroDuration()))
        Take(*event);
      Complete();
    }
  }

  void Take(const ArenaEvent& event) {
    if (event.kind == ArenaEvent::Kind::kAttached) ++attached_;
    if (event.kind == ArenaEvent::Kind::kDetached) ++detached_;
    if (event.kind != ArenaEvent::Kind::kOffer) return;
    EXPECT_TRUE(event.sound);
    void* memory =
        mmap(nullptr, event.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, event.fd.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    segments_[event.segment] = static_cast<char*>(memory);
  }

  float* Floats(arena::Ref ref) {
    return reinterpret_cast<float*>(segments_.at(arena::RefSegment(ref)) + arena::RefOffset(ref));
  }

  void Complete() {
    if (segments_.empty()) return;
    auto* header = reinterpret_cast<arena::ArenaHeader*>(segments_.at(0));
    const auto* queue =
        reinterpret_cast<arena::Descriptor*>(segments_.at(0) + header->queue_offset);
    auto* slots = reinterpret_cast<arena::Slot*>(segments_.at(0) + header->slots_offset);
    while (header->tail < header->head) {
      const arena::Descriptor operation = queue[header->tail % arena::kSlotCount];
      EXPECT_EQ(operation.operation, Operation::kAllreduce);
      EXPECT_EQ(operation.dtype, DType::kFloat32);
      for (uint64_t i = 0; i < operation.count; ++i) {
        Floats(operation.output)[i] = Floats(operation.input)[i] + kOtherRanks;
      }
      ++header->tail;
      slots[operation.slot].word = operation.number;
      FutexWakeAll(&slots[operation.slot].word);
    }
  }

  // The output of a program of the runfiles under a worker.
  std::string Run(const std::string& program, const std::vector<std::string>& arguments = {}) {
    char* here = realpath(".", nullptr);
    std::vector<std::string> command = {std::string(here) + "/" + program};
    free(here);
    command.insert(command.end(), arguments.begin(), arguments.end());
    SetCommand(command);
    StartWorker();
    std::thread server([this] { Serve(); });
    ExpectStarted();
    EXPECT_EQ(ExpectExited().exit_code(), 0);
    stop_ = true;
    server.join();
    while (std::optional<ArenaEvent> event = daemon_.NextArenaEvent(absl::ZeroDuration()))
      Take(*event);
    return ReadFile("log/rank-3.log");
  }

  std::atomic<bool> stop_{false};
  std::map<uint32_t, char*> segments_;
  int attached_ = 0;
  int detached_ = 0;
};

TEST_F(ClientsTest, CcClient_AttachesByGrpc_PrintsTheSum) {
  EXPECT_EQ(Run("examples/cc_client/cc_client"), "rank 3 of 4: sum 10 10 10 10\n");
  EXPECT_EQ(attached_, 1);
  EXPECT_EQ(detached_, 1);
}

TEST_F(ClientsTest, CClient_AttachesByWorker_PrintsTheSum) {
  EXPECT_EQ(Run("examples/c_client/c_client"), "rank 3 of 4: sum 10 10 10 10\n");
  EXPECT_EQ(attached_, 1);
  EXPECT_EQ(detached_, 1);
}

TEST_F(ClientsTest, CClient_NeedsMoreMemory_ArenaGrows) {
  EXPECT_EQ(Run("examples/c_client/c_client", {"20"}), "rank 3 of 4: sum 10 10 10 10\n");
  EXPECT_EQ(segments_.size(), 2u);
}

}  // namespace
}  // namespace ringd::worker
