// The C ABI as a program sees it: libringd.so, standalone, a fake worker, and fork.
#include "client/c/ringd.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "client/c/standalone.h"
#include "common/base/fd.h"
#include "common/base/types.h"
#include "common/base/unix_socket.h"
#include "proto/attach.h"

namespace ringd {
namespace {

constexpr ringd_init_options kStandalone{.size = sizeof(ringd_init_options), .standalone = 1};

std::string LastMessage() {
  ringd_error error{.size = sizeof(error)};
  ringd_last_error(&error);
  return error.message;
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

ringd_operation Scale(float* data, uint64_t count, double prescale) {
  return ringd_operation{.size = sizeof(ringd_operation),
                         .operation = static_cast<uint32_t>(Operation::kAllreduce),
                         .dtype = static_cast<uint32_t>(DType::kFloat32),
                         .reduction = static_cast<uint32_t>(Reduction::kSum),
                         .count = count,
                         .input = data,
                         .output = data,
                         .output_count = count,
                         .prescale = prescale,
                         .postscale = 1.0};
}

// Runs `body` in a forked child: whether it returned true.
template <typename Body>
bool InChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(RingdTest, Init_NoWorker_SaysWhatToDo) {
  unsetenv("RINGD_SOCKET");
  unsetenv("RINGD_STANDALONE");
  EXPECT_EQ(ringd_init(nullptr), RINGD_UNAVAILABLE);
  EXPECT_NE(LastMessage().find("ringctl run"), std::string::npos);
  EXPECT_EQ(ringd_is_initialized(), 0);
  const ringd_init_options missing{
      .size = sizeof(missing), .timeout_us = 1000, .socket = "/nowhere/x"};
  EXPECT_EQ(ringd_init(&missing), RINGD_UNAVAILABLE);
  EXPECT_NE(LastMessage().find("/nowhere/x"), std::string::npos);
}

TEST(RingdTest, Calls_BeforeInit_AreRefused) {
  ringd_info info{.size = sizeof(info)};
  EXPECT_EQ(ringd_get_info(&info), RINGD_NOT_INITIALIZED);
  EXPECT_EQ(ringd_allocate(1), nullptr);
  EXPECT_EQ(ringd_wait(1, 0), RINGD_NOT_INITIALIZED);
  EXPECT_EQ(ringd_plan_ready(1, 0), RINGD_NOT_INITIALIZED);
  EXPECT_EQ(ringd_shutdown(), RINGD_OK);
}

TEST(RingdTest, InitAndShutdown_ManyTimes_LeakNothing) {
  ASSERT_EQ(ringd_init(&kStandalone), RINGD_OK);
  ASSERT_EQ(ringd_shutdown(), RINGD_OK);
  const int before = OpenDescriptors();
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(ringd_init(&kStandalone), RINGD_OK);
    void* const memory = ringd_allocate(1000);
    ASSERT_NE(memory, nullptr);
    ASSERT_EQ(ringd_free(memory), RINGD_OK);
    ASSERT_EQ(ringd_shutdown(), RINGD_OK);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(RingdTest, Standalone_Allreduce_Scales) {
  ASSERT_EQ(ringd_init(&kStandalone), RINGD_OK);
  float data[] = {1, 2, 3};
  const ringd_operation operation = Scale(data, 3, 2.5);
  ringd_handle handle = 0;
  ASSERT_EQ(ringd_submit(&operation, &handle), RINGD_OK);
  EXPECT_EQ(ringd_poll(handle), 1);
  EXPECT_EQ(ringd_wait(handle, -1), RINGD_OK);
  EXPECT_EQ(data[2], 7.5f);
  ringd_counters counters{.size = sizeof(counters)};
  ASSERT_EQ(ringd_get_counters(&counters), RINGD_OK);
  EXPECT_EQ(counters.operations, 1u);
  EXPECT_EQ(counters.bytes_reduced, 12u);
  EXPECT_EQ(ringd_shutdown(), RINGD_OK);
}

TEST(RingdTest, Shutdown_MemoryStillHeld_StaysReadable) {
  ASSERT_EQ(ringd_init(&kStandalone), RINGD_OK);
  auto* const data = static_cast<float*>(ringd_allocate(4096));
  data[1000] = 42;
  ASSERT_EQ(ringd_shutdown(), RINGD_OK);
  EXPECT_EQ(data[1000], 42);
  ASSERT_EQ(ringd_init(&kStandalone), RINGD_OK);
  EXPECT_EQ(ringd_free(data), RINGD_OK);
  EXPECT_EQ(ringd_free(data), RINGD_INVALID_ARGUMENT);
  ASSERT_EQ(ringd_shutdown(), RINGD_OK);
}

TEST(RingdTest, Fork_TheChild_ReadsTensorsButCannotCall) {
  ASSERT_EQ(ringd_init(&kStandalone), RINGD_OK);
  auto* const data = static_cast<float*>(ringd_allocate(4096));
  data[0] = 5;
  EXPECT_TRUE(InChild([data] {
    const ringd_operation operation = Scale(data, 1, 2);
    ringd_handle handle = 0;
    if (ringd_submit(&operation, &handle) != RINGD_FORKED) return false;
    if (LastMessage().find("fork") == std::string::npos) return false;
    if (ringd_init(nullptr) != RINGD_FORKED || ringd_shutdown() != RINGD_FORKED) return false;
    if (ringd_wait(1, 0) != RINGD_FORKED || ringd_free(data) != RINGD_FORKED) return false;
    const bool read = data[0] == 5;
    data[0] = 6;  // The child's own copy.
    return read;
  }));
  EXPECT_EQ(data[0], 5);
  const ringd_operation operation = Scale(data, 1, 3);
  ringd_handle handle = 0;
  ASSERT_EQ(ringd_submit(&operation, &handle), RINGD_OK);
  EXPECT_EQ(ringd_wait(handle, -1), RINGD_OK);
  EXPECT_EQ(data[0], 15);
  EXPECT_EQ(ringd_free(data), RINGD_OK);
  EXPECT_EQ(ringd_shutdown(), RINGD_OK);
}

TEST(RingdTest, Fork_AfterShutdown_TheChildCanInit) {
  EXPECT_TRUE(InChild([] { return ringd_init(&kStandalone) == RINGD_OK; }));
}

// A worker's socket that answers clients one after the other.
class FakeWorker {
 public:
  enum class Behaviour { kWelcome, kRefuse, kRefuseOnceAsOwn, kGarbage };

  explicit FakeWorker(Behaviour behaviour) : behaviour_(behaviour) {
    // Bazel's own folder is too long for a socket's path.
    if (mkdtemp(folder_) == nullptr) std::abort();
    path_ = std::string(folder_) + "/w.sock";
    if (ListenUnix(path_, SOCK_SEQPACKET, 0600, &listener_) != 0) std::abort();
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeWorker() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    std::filesystem::remove_all(folder_);
  }
  int Init() const {
    const ringd_init_options options{
        .size = sizeof(options), .timeout_us = 5'000'000, .socket = path_.c_str()};
    return ringd_init(&options);
  }

 private:
  void Run() {
    while (true) {
      const UniqueFd client(accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      Serve(client.get());
    }
  }
  void Serve(int client) {
    std::byte packet[2048];
    std::vector<UniqueFd> fds;
    while (ReceivePacket(client, packet, sizeof(packet), &fds, -1) > 0) {
      attach::Header header;
      std::memcpy(&header, packet, sizeof(header));
      if (header.kind == attach::Kind::kClientHello) Greet(client);
      if (header.kind == attach::Kind::kNeedSegment) {
        attach::NeedSegment need;
        std::memcpy(&need, packet, sizeof(need));
        UniqueFd fd;
        client::CreateStandaloneSegment(need.bytes, false, &fd);
        const attach::SegmentGrant grant{.header = {attach::Kind::kSegmentGrant, attach::kVersion},
                                         .segment = 1,
                                         .bytes = need.bytes};
        const int raw = fd.get();
        SendPacket(client, &grant, sizeof(grant), &raw, 1);
      }
    }
  }
  void Greet(int client) {
    if (behaviour_ == Behaviour::kGarbage) {
      SendPacket(client, "garbage", 7, nullptr, 0);
      return;
    }
    if (behaviour_ != Behaviour::kWelcome) {
      const bool own = behaviour_ == Behaviour::kRefuseOnceAsOwn;
      attach::Refusal refusal{.header = {attach::Kind::kRefusal, attach::kVersion},
                              .code = RINGD_UNAVAILABLE,
                              .pid = own ? getpid() : 4711};
      std::strcpy(refusal.text, "process 4711 holds rank 1");
      SendPacket(client, &refusal, sizeof(refusal), nullptr, 0);
      if (own) behaviour_ = Behaviour::kWelcome;
      return;
    }
    attach::Welcome welcome{.header = {attach::Kind::kWelcome, attach::kVersion},
                            .rank = 1,
                            .size = 4,
                            .local_rank = 1,
                            .local_size = 2,
                            .node_rank = 0,
                            .node_count = 2,
                            .generation = 3,
                            .arena_bytes = arena::kMinBytes};
    std::strcpy(welcome.job, "job-1");
    std::strcpy(welcome.node, "a");
    UniqueFd segment;
    client::CreateStandaloneSegment(arena::kMinBytes, true, &segment);
    const UniqueFd doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const int raw[] = {segment.get(), doorbell.get()};
    SendPacket(client, &welcome, sizeof(welcome), raw, 2);
  }

  char folder_[24] = "/tmp/ringd-test-XXXXXX";
  std::string path_;
  std::atomic<Behaviour> behaviour_;
  UniqueFd listener_;
  std::thread thread_;
};

TEST(RingdTest, Init_Welcomed_KnowsItsRankAndGrows) {
  const FakeWorker worker(FakeWorker::Behaviour::kWelcome);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(worker.Init(), RINGD_OK) << LastMessage();
    ringd_info info{.size = sizeof(info)};
    ASSERT_EQ(ringd_get_info(&info), RINGD_OK);
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.world_size, 4);
    EXPECT_EQ(info.local_size, 2);
    EXPECT_EQ(info.node_count, 2);
    EXPECT_STREQ(info.job, "job-1");
    auto* const large = static_cast<char*>(ringd_allocate(80u << 20));
    ASSERT_NE(large, nullptr) << LastMessage();
    large[(80u << 20) - 1] = 1;
    EXPECT_EQ(ringd_free(large), RINGD_OK);
    ASSERT_EQ(ringd_shutdown(), RINGD_OK);
  }
}

TEST(RingdTest, Init_Refused_HasTheWorkersWords) {
  const FakeWorker worker(FakeWorker::Behaviour::kRefuse);
  EXPECT_EQ(worker.Init(), RINGD_UNAVAILABLE);
  EXPECT_EQ(LastMessage(), "process 4711 holds rank 1");
}

TEST(RingdTest, Init_RefusedForItsOwnPast_TriesAgain) {
  const FakeWorker worker(FakeWorker::Behaviour::kRefuseOnceAsOwn);
  ASSERT_EQ(worker.Init(), RINGD_OK) << LastMessage();
  ASSERT_EQ(ringd_shutdown(), RINGD_OK);
}

TEST(RingdTest, Init_Garbage_IsInternal) {
  const FakeWorker worker(FakeWorker::Behaviour::kGarbage);
  EXPECT_EQ(worker.Init(), RINGD_INTERNAL);
}

TEST(RingdTest, RoundToWire_KeepsWhatTheWireLoses) {
  // bf16 has 8 bits: 257 becomes 256, and 2 * 257 - 256 becomes 258.
  float data[] = {257.0f, 3.0f};
  float residual[] = {0.0f, 0.0f};
  const auto float32 = static_cast<uint32_t>(DType::kFloat32);
  ASSERT_EQ(ringd_round_to_wire(float32, 1, data, residual, 2), RINGD_OK);
  EXPECT_EQ(data[0], 256.0f);
  EXPECT_EQ(residual[0], 1.0f);
  EXPECT_EQ(data[1], 3.0f);
  EXPECT_EQ(residual[1], 0.0f);
  data[0] = 257.0f;
  ASSERT_EQ(ringd_round_to_wire(float32, 1, data, residual, 2), RINGD_OK);
  EXPECT_EQ(data[0], 258.0f);
  EXPECT_EQ(residual[0], 0.0f);
  for (const uint32_t wire : {0u, 5u, 300u}) {
    EXPECT_EQ(ringd_round_to_wire(float32, wire, data, residual, 2), RINGD_INVALID_ARGUMENT);
  }
  const auto float64 = static_cast<uint32_t>(DType::kFloat64);
  EXPECT_EQ(ringd_round_to_wire(float64, 1, data, residual, 1), RINGD_INVALID_ARGUMENT);
  EXPECT_EQ(LastMessage(), "round_to_wire: float64 can't travel as bf16");
}

}  // namespace
}  // namespace ringd
