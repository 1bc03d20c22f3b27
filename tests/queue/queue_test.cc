// The submission queue with its real two sides, libringd's and the engine's, as threads on one
// mapping: what ThreadSanitizer is for. Values are small whole numbers: every sum is exact.
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/plan.h"
#include "client/c/ringd.h"
#include "common/base/types.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/engine.h"
#include "gtest/gtest.h"
#include "proto/arena.h"
#include "tests/queue/queue_node.h"

namespace ringd {
namespace {

using client::ArenaClient;

constexpr int64_t kTimeoutMicros = 60'000'000;
// Lost wake-ups. Not 0: on a busy machine a sleep's time limit may pass just before its operation's
// end.
constexpr uint64_t kMaxBackstops = 3;

ringd_operation Describe(Operation kind, uint64_t count = 0, const float* input = nullptr,
                         float* output = nullptr, uint64_t output_count = 0) {
  const bool reduces = kind == Operation::kAllreduce;
  const auto reduction = reduces ? Reduction::kSum : Reduction::kNone;
  const auto dtype = input == nullptr ? DType::kInvalid : DType::kFloat32;
  return ringd_operation{.size = sizeof(ringd_operation),
                         .operation = static_cast<uint32_t>(kind),
                         .dtype = static_cast<uint32_t>(dtype),
                         .reduction = static_cast<uint32_t>(reduction),
                         .count = count,
                         .input = input,
                         .output = output,
                         .output_count = output_count,
                         .prescale = 1.0,
                         .postscale = 1.0};
}

int Submit(ArenaClient& client, const ringd_operation& operation, ringd_handle* handle) {
  return client.SubmitBatch(&operation, 1, handle);
}

int Run(ArenaClient& client, const ringd_operation& operation) {
  ringd_handle handle = 0;
  const int code = Submit(client, operation, &handle);
  return code != RINGD_OK ? code : client.Wait(handle, kTimeoutMicros);
}

int RunAllreduce(ArenaClient& client, float* data, uint64_t count) {
  return Run(client, Describe(Operation::kAllreduce, count, data, data, count));
}

// One rank's stream of operations: the same kinds and sizes on every rank, its own pauses and
// memory.
class Stream {
 public:
  Stream(int rank, int size, ArenaClient* client)
      : rank_(rank), size_(size), client_(client), shared_(7), own_(100 + rank) {}

  void Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      Start();
      if (testing::Test::HasFatalFailure()) return;
      while (pending_.size() > own_() % kWindow) Finish();
      Pause();
    }
    while (!pending_.empty()) Finish();
  }

 private:
  static constexpr size_t kWindow = 16;
  static constexpr size_t kMaxCount = 64;

  struct Pending {
    ringd_handle handle = 0;
    std::unique_ptr<float[]> outside;
    float* inside = nullptr;  // Or memory of the arena.
    const float* result = nullptr;
    std::vector<float> expected;
  };

  void Start() {
    const uint64_t count = 1 + shared_() % kMaxCount;
    Pending pending;
    float* const data = Allocate(count * (1 + size_), &pending);
    ASSERT_NE(data, nullptr) << client::LastError().message;
    pending.result = data;
    ringd_operation operation = Describe(Operation::kNoop);
    switch (shared_() % 5) {
      case 0:
        operation = Describe(Operation::kBarrier);
        break;
      case 1:
        operation = Describe(Operation::kAllreduce, count, data, data, count);
        for (uint64_t i = 0; i < count; ++i) {
          data[i] = Value(rank_, i);
          pending.expected.push_back(Sum(i));
        }
        break;
      case 2:
        operation = Describe(Operation::kBroadcast, count, data, data, count);
        operation.root = static_cast<int32_t>(shared_() % size_);
        for (uint64_t i = 0; i < count; ++i) {
          data[i] = Value(rank_, i);
          pending.expected.push_back(Value(operation.root, i));
        }
        break;
      case 3:
        pending.result = data + count;
        operation = Describe(Operation::kAllgather, count, data, data + count, count * size_);
        for (uint64_t i = 0; i < count; ++i) data[i] = Value(rank_, i);
        for (int rank = 0; rank < size_; ++rank) {
          for (uint64_t i = 0; i < count; ++i) pending.expected.push_back(Value(rank, i));
        }
        break;
      default:
        break;
    }
    ++step_;
    ASSERT_EQ(Submit(*client_, operation, &pending.handle), RINGD_OK)
        << client::LastError().message;
    pending_.push_back(std::move(pending));
  }

  void Finish() {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    while (own_() % 4 == 0 && client_->Poll(pending.handle) == 0) std::this_thread::yield();
    ASSERT_EQ(client_->Wait(pending.handle, kTimeoutMicros), RINGD_OK)
        << client::LastError().message;
    const std::vector<float> result(pending.result, pending.result + pending.expected.size());
    ASSERT_EQ(result, pending.expected);
    if (pending.inside != nullptr) {
      ASSERT_EQ(client_->Free(pending.inside), RINGD_OK);
    }
  }

  float* Allocate(uint64_t count, Pending* pending) {
    if (own_() % 2 == 0) {
      pending->outside = std::make_unique<float[]>(count);
      return pending->outside.get();
    }
    pending->inside = static_cast<float*>(client_->Allocate(count * sizeof(float)));
    return pending->inside;
  }

  // Around the time after which the engine goes to sleep; mostly none.
  void Pause() {
    const uint32_t kind = own_() % 32;
    if (kind < 2) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 500));
  }

  float Value(int rank, uint64_t i) const {
    return static_cast<float>(rank * 100 + step_ % 50 + static_cast<int>(i % 8));
  }
  float Sum(uint64_t i) const {
    return static_cast<float>(size_) * Value(0, i) +
           static_cast<float>(100 * size_ * (size_ - 1) / 2);
  }

  const int rank_;
  const int size_;
  ArenaClient* const client_;
  std::mt19937 shared_;
  std::mt19937 own_;
  int step_ = 0;
  std::deque<Pending> pending_;
};

TEST(QueueTest, EngineAndClient_WorkOnOneMapping) {
  QueueNode node(2);
  EXPECT_EQ(node.CountMappings(0), 2);
  EXPECT_EQ(node.CountMappings(1), 2);
}

class StreamTest : public testing::TestWithParam<int> {};

TEST_P(StreamTest, ThousandsOfOperations_AreRight) {
  constexpr int kOperations = 4000;
  QueueNode node(GetParam());
  node.ForEachRank([&](int rank, ArenaClient& client) {
    Stream(rank, node.size(), &client).Run(kOperations);
    EXPECT_EQ(client.counters().operations, static_cast<uint64_t>(kOperations));
    EXPECT_LE(client.counters().backstops, kMaxBackstops);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, StreamTest, testing::Values(2, 3, 4));

TEST(QueueTest, ManyThreadsOfAClient_ShareTheQueue) {
  constexpr int kThreads = 3;
  constexpr int kBatch = 64;
  constexpr int kBatches = arena::kSlotCount / kBatch / kThreads + 10;  // Goes round the queue.
  QueueNode node(2);
  node.ForEachRank([&](int, ArenaClient& client) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        const std::vector<ringd_operation> batch(kBatch, Describe(Operation::kNoop));
        ringd_handle handles[kBatch];
        for (int k = 0; k < kBatches; ++k) {
          ASSERT_EQ(client.SubmitBatch(batch.data(), kBatch, handles), RINGD_OK);
          for (const ringd_handle handle : handles) {
            ASSERT_EQ(client.Wait(handle, kTimeoutMicros), RINGD_OK);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(client.counters().operations, uint64_t{kThreads} * kBatches * kBatch);
  });
}

TEST(QueueTest, Plans_EveryStep_IsRight) {
  constexpr int kSteps = 500;
  QueueNode node(3);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    static constexpr int64_t kShape[] = {50};
    static constexpr ringd_plan_bucket kSum{.dtype = static_cast<uint32_t>(DType::kFloat32),
                                            .reduction = static_cast<uint32_t>(Reduction::kSum),
                                            .prescale = 1.0,
                                            .postscale = 1.0};
    const ringd_plan_bucket buckets[] = {kSum, kSum};
    const ringd_plan_tensor tensors[] = {
        {"a", kShape, 1, 0}, {"b", kShape, 1, 0}, {"c", kShape, 1, 1}};
    ringd_plan id = 0;
    ASSERT_EQ(client.RegisterPlan(0, buckets, 2, tensors, 3, kTimeoutMicros, &id), RINGD_OK);
    client::Plan* const plan = client.FindPlan(id);
    for (int step = 0; step < kSteps; ++step) {
      for (uint32_t tensor = 0; tensor < 3; ++tensor) {
        auto* const data = static_cast<float*>(plan->TensorData(tensor));
        std::fill(data, data + kShape[0], static_cast<float>(rank + step));
      }
      // Gradients become ready on a thread of the framework.
      std::thread backward([&] {
        for (const uint32_t tensor : {2u, 1u, 0u}) ASSERT_EQ(plan->MarkReady(tensor), RINGD_OK);
      });
      backward.join();
      ASSERT_EQ(plan->Wait(kTimeoutMicros), RINGD_OK) << client::LastError().message;
      for (uint32_t tensor = 0; tensor < 3; ++tensor) {
        const auto* const data = static_cast<const float*>(plan->TensorData(tensor));
        for (int i = 0; i < kShape[0]; ++i) ASSERT_EQ(data[i], static_cast<float>(3 * step + 3));
      }
    }
    EXPECT_EQ(client.UnregisterPlan(id), RINGD_OK);
  });
}

TEST(QueueTest, ErrorRecords_OverwrittenWhileTheyAreRead_LoseNoCode) {
  constexpr int kRounds = 20;
  constexpr int kBatch = 3 * arena::kErrorRecordCount;
  QueueNode node(2);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    float data[4] = {};
    const uint64_t count = rank == 0 ? 3 : 4;
    const std::vector<ringd_operation> batch(
        kBatch, Describe(Operation::kAllreduce, count, data, data, count));
    std::vector<ringd_handle> handles(kBatch);
    int sequence = 0;
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_EQ(client.SubmitBatch(batch.data(), kBatch, handles.data()), RINGD_OK);
      for (const ringd_handle handle : handles) {
        ASSERT_EQ(client.Wait(handle, kTimeoutMicros), RINGD_MISMATCH);
        const std::string message = client::LastError().message;
        const std::string own = "operation s." + std::to_string(++sequence) + " is not the same";
        ASSERT_TRUE(message.starts_with(own) || message.find("overwritten") != std::string::npos)
            << message;
      }
    }
    float sum = 1;
    EXPECT_EQ(RunAllreduce(client, &sum, 1), RINGD_OK);
    EXPECT_EQ(sum, 2);
  });
}

TEST(QueueTest, FailJob_WhileClientsSubmitAndSleep_ReachesAll) {
  for (int round = 0; round < 10; ++round) {
    QueueNode node(3);
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      daemon::Outcome outcome;
      outcome.code = arena::Code::kPeerFailed;
      outcome.rank = 1;
      outcome.message = "rank 1 was killed by signal 9";
      node.engine().FailJob("job", outcome);
    });
    node.ForEachRank([&](int, ArenaClient& client) {
      float data[16] = {};
      int code = RINGD_OK;
      while (code == RINGD_OK) code = RunAllreduce(client, data, 16);
      EXPECT_EQ(code, RINGD_PEER_FAILED);
      EXPECT_STREQ(client::LastError().message, "rank 1 was killed by signal 9");
      EXPECT_EQ(client::LastError().rank, 1);
    });
    killer.join();
  }
}

TEST(QueueTest, Growth_NewSegments_AreUsedAtOnce) {
  constexpr uint64_t kCount = 3u << 20;  // 12 MB: more than a first segment has left.
  QueueNode node(2);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    for (int i = 0; i < 3; ++i) {
      auto* const data = static_cast<float*>(client.Allocate(kCount * sizeof(float)));
      ASSERT_NE(data, nullptr) << client::LastError().message;
      std::fill(data, data + kCount, static_cast<float>(rank + 1));
      ASSERT_EQ(RunAllreduce(client, data, kCount), RINGD_OK) << client::LastError().message;
      ASSERT_EQ(std::vector<float>(data, data + kCount), std::vector<float>(kCount, 3));
    }
    EXPECT_GT(client.memory()->segment_count(), 1u);
  });
}

TEST(QueueTest, NextClientOfARank_GoesOn) {
  QueueNode node(2);
  for (int round = 0; round < 10; ++round) {
    node.ForEachRank([&](int rank, ArenaClient& client) {
      for (int i = 0; i < 50; ++i) {
        auto sum = static_cast<float>(rank + i);
        ASSERT_EQ(RunAllreduce(client, &sum, 1), RINGD_OK) << client::LastError().message;
        ASSERT_EQ(sum, static_cast<float>(2 * i + 1));
      }
    });
    node.Reattach(round % 2);
  }
}

}  // namespace
}  // namespace ringd
