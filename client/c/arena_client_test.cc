#include "client/c/arena_client.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "client/c/error.h"
#include "client/c/fake_daemon.h"
#include "common/base/futex.h"
#include "common/base/types.h"

namespace ringd::client {
namespace {

using Reply = FakeDaemon::Reply;

// Doubles an allreduce of float32, where it lies or beside it.
Reply Double(FakeDaemon& daemon, const arena::Descriptor& descriptor) {
  const auto* const input = reinterpret_cast<const float*>(daemon.Pointer(descriptor.input));
  auto* const output = reinterpret_cast<float*>(daemon.Pointer(descriptor.output));
  for (uint64_t i = 0; i < descriptor.count; ++i) output[i] = 2 * input[i];
  return Reply{};
}

class ArenaClientTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Handler handler, int rank = 0, int size = 1) {
    daemon_ = std::make_unique<FakeDaemon>();
    ASSERT_EQ(ArenaClient::Create(daemon_->Options(rank, size), &client_), RINGD_OK);
    daemon_->Serve(*client_, std::move(handler));
  }
  void StartDoubling() {
    Start([this](const arena::Descriptor& d) { return Double(*daemon_, d); });
  }

  static ringd_operation Allreduce(const float* input, float* output, uint64_t count) {
    return ringd_operation{.size = sizeof(ringd_operation),
                           .operation = static_cast<uint32_t>(Operation::kAllreduce),
                           .dtype = static_cast<uint32_t>(DType::kFloat32),
                           .reduction = static_cast<uint32_t>(Reduction::kSum),
                           .count = count,
                           .input = input,
                           .output = output,
                           .output_count = count,
                           .prescale = 1.0,
                           .postscale = 1.0};
  }
  static ringd_operation Noop() {
    return ringd_operation{.size = sizeof(ringd_operation),
                           .operation = static_cast<uint32_t>(Operation::kNoop)};
  }
  int Run(const ringd_operation& operation) {
    ringd_handle handle = 0;
    const int code = client_->SubmitBatch(&operation, 1, &handle);
    return code != RINGD_OK ? code : client_->Wait(handle, -1);
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<ArenaClient> client_;
};

TEST_F(ArenaClientTest, Wait_TensorsOutsideTheArena_AreCopiedInAndOut) {
  StartDoubling();
  const std::vector<float> input = {1, 2, 3};
  std::vector<float> output(3);
  EXPECT_EQ(Run(Allreduce(input.data(), output.data(), 3)), RINGD_OK);
  EXPECT_EQ(output, (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(client_->counters().bytes_copied, 24u);
}

TEST_F(ArenaClientTest, Submit_TensorsInTheArena_AreUsedWhereTheyLie) {
  StartDoubling();
  auto* const data = static_cast<float*>(client_->Allocate(8 * sizeof(float)));
  std::iota(data, data + 8, 0.0f);
  EXPECT_EQ(Run(Allreduce(data + 2, data + 2, 3)), RINGD_OK);
  EXPECT_EQ(std::vector<float>(data, data + 8), (std::vector<float>{0, 1, 4, 6, 8, 5, 6, 7}));
  EXPECT_EQ(client_->counters().bytes_copied, 0u);
  const arena::Descriptor descriptor = daemon_->seen().at(0);
  EXPECT_EQ(descriptor.input, descriptor.output);
  EXPECT_EQ(descriptor.serial, 1u);
}

TEST_F(ArenaClientTest, Submit_OneTensorInTheArena_CopiesTheOtherOnly) {
  StartDoubling();
  auto* const inside = static_cast<float*>(client_->Allocate(4 * sizeof(float)));
  std::vector<float> outside = {1, 2, 3, 4};
  EXPECT_EQ(Run(Allreduce(outside.data(), inside, 4)), RINGD_OK);
  EXPECT_EQ(inside[3], 8);
  EXPECT_EQ(client_->counters().bytes_copied, 16u);
  EXPECT_EQ(Run(Allreduce(inside, outside.data(), 4)), RINGD_OK);
  EXPECT_EQ(outside[3], 16);
  EXPECT_EQ(inside[3], 8);
}

TEST_F(ArenaClientTest, Submit_Beside_LeavesTheInputAlone) {
  StartDoubling();
  std::vector<float> data = {5};
  ringd_operation operation = Allreduce(data.data(), data.data(), 1);
  operation.flags = arena::kFlagBeside;
  EXPECT_EQ(Run(operation), RINGD_OK);
  EXPECT_EQ(data[0], 10);
  const arena::Descriptor descriptor = daemon_->seen().at(0);
  EXPECT_NE(descriptor.input, descriptor.output);
}

TEST_F(ArenaClientTest, Submit_NoElements_IsLegal) {
  StartDoubling();
  EXPECT_EQ(Run(Allreduce(nullptr, nullptr, 0)), RINGD_OK);
}

TEST_F(ArenaClientTest, Submit_WrongArguments_AreNamedAndReachNobody) {
  StartDoubling();
  float data[4] = {};
  const auto expect_refused = [&](auto change) {
    ringd_operation operation = Allreduce(data, data, 4);
    change(operation);
    EXPECT_EQ(Run(operation), RINGD_INVALID_ARGUMENT);
    EXPECT_NE(LastError().message[0], '\0');
  };
  expect_refused([](auto& o) { o.size = 8; });
  expect_refused([](auto& o) { o.operation = 99; });
  expect_refused([](auto& o) { o.dtype = 0; });
  expect_refused([](auto& o) { o.dtype = 14; });
  expect_refused([](auto& o) { o.reduction = 0; });
  expect_refused([](auto& o) { o.reduction = 6; });
  expect_refused([](auto& o) { o.group = 1; });
  expect_refused([](auto& o) { o.output_count = 3; });
  expect_refused([](auto& o) { o.input = nullptr; });
  expect_refused([](auto& o) { o.ndim = 33; });
  expect_refused([](auto& o) { o.flags = 128; });
  expect_refused([](auto& o) { o.wire = 5; });
  expect_refused([](auto& o) { o.wire = 1, o.dtype = static_cast<uint32_t>(DType::kFloat64); });
  expect_refused([](auto& o) {
    o.operation = static_cast<uint32_t>(Operation::kReduceScatter);
    o.wire = 1;
  });
  expect_refused([](auto& o) {
    o.operation = static_cast<uint32_t>(Operation::kBroadcast);
    o.reduction = 0;
    o.root = 1;
  });
  EXPECT_TRUE(daemon_->seen().empty());
}

TEST_F(ArenaClientTest, Submit_Counts_MustAddUp) {
  Start([](const arena::Descriptor&) { return Reply{}; }, 1, 2);
  float data[6] = {};
  float result[6] = {};
  const int64_t counts[] = {2, 4};
  ringd_operation operation = Allreduce(data, result, 4);
  operation.operation = static_cast<uint32_t>(Operation::kAllgather);
  operation.reduction = 0;
  operation.counts = counts;
  operation.count_count = 2;
  operation.output_count = 6;
  EXPECT_EQ(Run(operation), RINGD_OK);
  operation.output_count = 5;
  EXPECT_EQ(Run(operation), RINGD_INVALID_ARGUMENT);
  // Rank 1 sends 1 and 2 elements, and receives 3 and 2.
  const int64_t matrix[] = {0, 3, 1, 2};
  operation.operation = static_cast<uint32_t>(Operation::kAlltoall);
  operation.counts = matrix;
  operation.count_count = 4;
  operation.count = 3;
  operation.output_count = 5;
  EXPECT_EQ(Run(operation), RINGD_OK);
  operation.count = 4;
  EXPECT_EQ(Run(operation), RINGD_INVALID_ARGUMENT);
}

TEST_F(ArenaClientTest, Submit_NameSiteAndManyDimensions_GoToTheMetaRecord) {
  std::vector<char> record;
  Start([&](const arena::Descriptor& d) {
    const auto* const bytes = reinterpret_cast<const char*>(daemon_->Pointer(d.meta));
    record.assign(bytes, bytes + d.meta_bytes);
    return Reply{};
  });
  const int64_t shape[] = {1, 1, 1, 1, 2};
  float data[2] = {};
  ringd_operation operation = Allreduce(data, data, 2);
  operation.shape = shape;
  operation.ndim = 5;
  operation.name = "w";
  operation.site = "t.py:1";
  ASSERT_EQ(Run(operation), RINGD_OK);
  ASSERT_EQ(record.size(), 16u + 40 + 1 + 6);
  arena::Meta meta;
  std::memcpy(&meta, record.data(), sizeof(meta));
  EXPECT_EQ(meta.ndim, 5u);
  int64_t last_dim = 0;
  std::memcpy(&last_dim, record.data() + 16 + 32, sizeof(last_dim));
  EXPECT_EQ(last_dim, 2);
  EXPECT_EQ(std::string(record.data() + 56, 7), "wt.py:1");
}

TEST_F(ArenaClientTest, Wait_FailedOperation_HasTheDaemonsRecord) {
  Start([](const arena::Descriptor&) {
    return Reply{.code = arena::Code::kPeerFailed, .message = "rank 3 died", .rank = 3};
  });
  float data[1] = {7};
  EXPECT_EQ(Run(Allreduce(data, data, 1)), RINGD_PEER_FAILED);
  EXPECT_EQ(LastError().rank, 3);
  EXPECT_EQ(LastError().signal, 9);
  EXPECT_STREQ(LastError().node, "node-a");
  EXPECT_STREQ(LastError().message, "rank 3 died");
  EXPECT_STREQ(LastError().stderr_tail, "last line");
  EXPECT_EQ(data[0], 7);
}

TEST_F(ArenaClientTest, Wait_RecordOverwritten_StillHasTheCode) {
  Start([](const arena::Descriptor&) {
    return Reply{.code = arena::Code::kMismatch, .message = "differs"};
  });
  std::vector<ringd_operation> operations(65, Noop());
  std::vector<ringd_handle> handles(65);
  ASSERT_EQ(client_->SubmitBatch(operations.data(), 65, handles.data()), RINGD_OK);
  EXPECT_EQ(client_->Wait(handles[64], -1), RINGD_MISMATCH);
  EXPECT_STREQ(LastError().message, "differs");
  EXPECT_EQ(client_->Wait(handles[0], -1), RINGD_MISMATCH);
  EXPECT_NE(std::string(LastError().message).find("overwritten"), std::string::npos);
}

TEST_F(ArenaClientTest, Wait_HandleUsedUp_IsRefused) {
  Start([](const arena::Descriptor&) { return Reply{}; });
  const ringd_operation operation = Noop();
  ringd_handle handle = 0;
  ASSERT_EQ(client_->SubmitBatch(&operation, 1, &handle), RINGD_OK);
  EXPECT_EQ(client_->Wait(handle, -1), RINGD_OK);
  EXPECT_EQ(client_->Wait(handle, -1), RINGD_INVALID_ARGUMENT);
  EXPECT_EQ(client_->Poll(handle), -1);
}

TEST_F(ArenaClientTest, Wait_Timeout_LeavesTheHandleGood) {
  Start([](const arena::Descriptor&) { return Reply{.hold = true}; });
  const ringd_operation operation = Noop();
  ringd_handle handle = 0;
  ASSERT_EQ(client_->SubmitBatch(&operation, 1, &handle), RINGD_OK);
  EXPECT_EQ(client_->Wait(handle, 0), RINGD_DEADLINE_EXCEEDED);
  EXPECT_EQ(client_->Wait(handle, 20'000), RINGD_DEADLINE_EXCEEDED);
  EXPECT_EQ(client_->Poll(handle), 0);
  while (daemon_->seen().empty()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  daemon_->CompleteHeld();
  EXPECT_EQ(client_->Wait(handle, -1), RINGD_OK);
}

TEST_F(ArenaClientTest, Wait_Sleeping_IsWokenAndNoBackstopCounts) {
  Start([](const arena::Descriptor&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return Reply{};
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Run(Noop()), RINGD_OK);
  EXPECT_EQ(client_->counters().backstops, 0u);
}

TEST_F(ArenaClientTest, Submit_DaemonAsleep_RingsTheDoorbell) {
  Start([](const arena::Descriptor&) { return Reply{}; });
  EXPECT_EQ(Run(Noop()), RINGD_OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(Run(Noop()), RINGD_OK);
  EXPECT_GE(daemon_->doorbells(), 1);
}

TEST_F(ArenaClientTest, Wait_SignalWhileSleeping_IsInterrupted) {
  Start([](const arena::Descriptor&) { return Reply{.hold = true}; });
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);
  const ringd_operation operation = Noop();
  ringd_handle handle = 0;
  ASSERT_EQ(client_->SubmitBatch(&operation, 1, &handle), RINGD_OK);
  const pthread_t waiter = pthread_self();
  std::thread other([waiter] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    pthread_kill(waiter, SIGUSR1);
  });
  EXPECT_EQ(client_->Wait(handle, 5'000'000), RINGD_INTERRUPTED);
  other.join();
  daemon_->CompleteHeld();
  EXPECT_EQ(client_->Wait(handle, -1), RINGD_OK);
}

TEST_F(ArenaClientTest, Poison_FailsPendingAndLaterOperations) {
  Start([](const arena::Descriptor&) { return Reply{.hold = true}; });
  const ringd_operation operation = Noop();
  ringd_handle handle = 0;
  ASSERT_EQ(client_->SubmitBatch(&operation, 1, &handle), RINGD_OK);
  std::thread other([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    daemon_->Poison(arena::Code::kPeerFailed, "rank 1 was killed");
  });
  EXPECT_EQ(client_->Wait(handle, -1), RINGD_PEER_FAILED);
  other.join();
  EXPECT_STREQ(LastError().message, "rank 1 was killed");
  EXPECT_EQ(Run(Noop()), RINGD_PEER_FAILED);
  EXPECT_EQ(LastError().rank, 1);
}

TEST_F(ArenaClientTest, Wait_WorkerGone_IsUnavailableWithinASecond) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  const UniqueFd ours(pair[0]);
  daemon_ = std::make_unique<FakeDaemon>();
  ArenaClientOptions options = daemon_->Options();
  options.liveness_fd = ours.get();
  ASSERT_EQ(ArenaClient::Create(std::move(options), &client_), RINGD_OK);
  daemon_->Serve(*client_, [](const arena::Descriptor&) { return Reply{.hold = true}; });
  const ringd_operation operation = Noop();
  ringd_handle handle = 0;
  ASSERT_EQ(client_->SubmitBatch(&operation, 1, &handle), RINGD_OK);
  EXPECT_EQ(client_->Wait(handle, 150'000), RINGD_DEADLINE_EXCEEDED);
  close(pair[1]);
  const int64_t start_us = MonotonicMicros();
  EXPECT_EQ(client_->Wait(handle, -1), RINGD_UNAVAILABLE);
  EXPECT_LT(MonotonicMicros() - start_us, 1'000'000);
  EXPECT_STREQ(LastError().message, "the ringd worker of this rank is gone; the job has ended");
  EXPECT_EQ(Run(Noop()), RINGD_UNAVAILABLE);
}

TEST_F(ArenaClientTest, Submit_AtTheSlotLimit_NamesIt) {
  Start([](const arena::Descriptor&) { return Reply{.hold = true}; });
  const std::vector<ringd_operation> operations(arena::kSlotCount, Noop());
  std::vector<ringd_handle> handles(arena::kSlotCount);
  ASSERT_EQ(client_->SubmitBatch(operations.data(), operations.size(), handles.data()), RINGD_OK);
  EXPECT_EQ(Run(Noop()), RINGD_RESOURCE_EXHAUSTED);
  EXPECT_NE(std::string(LastError().message).find("65536"), std::string::npos);
  while (daemon_->seen().size() < arena::kSlotCount) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  daemon_->CompleteHeld();
  for (const ringd_handle handle : handles) ASSERT_EQ(client_->Wait(handle, -1), RINGD_OK);
  ringd_handle handle = 0;
  EXPECT_EQ(client_->SubmitBatch(operations.data(), 1, &handle), RINGD_OK);
}

TEST_F(ArenaClientTest, Free_DuringAnOperation_KeepsTheMemoryUntilItIsOver) {
  Start([](const arena::Descriptor&) { return Reply{.hold = true}; });
  auto* const data = static_cast<float*>(client_->Allocate(1024));
  const ringd_operation operation = Allreduce(data, data, 256);
  ringd_handle handle = 0;
  ASSERT_EQ(client_->SubmitBatch(&operation, 1, &handle), RINGD_OK);
  EXPECT_EQ(client_->Free(data), RINGD_OK);
  EXPECT_EQ(client_->Free(data), RINGD_INVALID_ARGUMENT);
  void* const other = client_->Allocate(1024);
  EXPECT_NE(other, data);
  while (daemon_->seen().empty()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  daemon_->CompleteHeld();
  EXPECT_EQ(client_->Wait(handle, -1), RINGD_OK);
  EXPECT_EQ(client_->Allocate(1024), data);
  EXPECT_EQ(Run(Allreduce(data + 1000, data + 1000, 1)), RINGD_INVALID_ARGUMENT);
}

TEST_F(ArenaClientTest, Allocate_MoreThanASegment_GrowsTheArena) {
  StartDoubling();
  auto* const large = static_cast<float*>(client_->Allocate(100u << 20));
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 128, 0u);
  EXPECT_GE(client_->counters().arena_bytes, 116u << 20);
  large[(25u << 20) - 1] = 4;
  EXPECT_EQ(Run(Allreduce(large + (25u << 20) - 1, large + (25u << 20) - 1, 1)), RINGD_OK);
  EXPECT_EQ(large[(25u << 20) - 1], 8);
}

TEST_F(ArenaClientTest, Submit_SeveralThreads_LosesNothing) {
  StartDoubling();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        float data = static_cast<float>(t * 1000 + i);
        const float expected = 2 * data;
        if (Run(Allreduce(&data, &data, 1)) == RINGD_OK && data == expected) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 2000);
  const std::vector<arena::Descriptor> seen = daemon_->seen();
  ASSERT_EQ(seen.size(), 2000u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i].serial, i + 1);
}

TEST_F(ArenaClientTest, Shutdown_OperationInFlight_IsAbandonedAfterTheTimeout) {
  Start([](const arena::Descriptor&) { return Reply{.hold = true}; });
  const ringd_operation operation = Noop();
  ringd_handle handle = 0;
  ASSERT_EQ(client_->SubmitBatch(&operation, 1, &handle), RINGD_OK);
  const int64_t start_us = MonotonicMicros();
  client_->Shutdown(50'000);
  EXPECT_GE(MonotonicMicros() - start_us, 50'000);
  EXPECT_EQ(Run(Noop()), RINGD_NOT_INITIALIZED);
}

}  // namespace
}  // namespace ringd::client
