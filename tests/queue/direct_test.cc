// Small operations that ranks carry out in their shared segment: the library's clients as threads,
// beside a production engine that takes over where a rank doesn't do its part.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/ringd.h"
#include "common/base/fd.h"
#include "common/base/types.h"
#include "daemon/engine/engine.h"
#include "gtest/gtest.h"
#include "proto/segment.h"
#include "tests/queue/queue_node.h"

namespace ringd {
namespace {

using client::ArenaClient;
using client::LastError;

constexpr int64_t kTimeoutMicros = 60'000'000;

ringd_operation Describe(Operation kind, DType dtype, Reduction reduction, uint64_t count,
                         const void* input, void* output, uint64_t output_count) {
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

// The shape of that many elements, for good.
const int64_t* ShapeOf(uint64_t count) {
  static std::mutex mu;
  static std::map<uint64_t, int64_t> shapes;
  std::lock_guard lock(mu);
  return &shapes.try_emplace(count, static_cast<int64_t>(count)).first->second;
}

ringd_operation Sum(std::vector<float>* values) {
  auto operation = Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, values->size(),
                            values->data(), values->data(), values->size());
  operation.ndim = 1;
  operation.shape = ShapeOf(values->size());
  return operation;
}

int RunOne(ArenaClient& client, const ringd_operation& operation) {
  ringd_handle handle = 0;
  return client.Run(operation, kTimeoutMicros, &handle);
}

// Operations that the daemon has carried out for this client.
uint64_t DaemonOperations(ArenaClient& client) {
  return client.memory()->header().operations.load();
}

int64_t MillisSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

// A small whole number as an element of `dtype`. float16 has 10 bits of fraction, bfloat16 has 7.
void Store(DType dtype, int value, std::byte* to) {
  const auto put = [to](auto element) { std::memcpy(to, &element, sizeof(element)); };
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
      return put(static_cast<uint8_t>(value));
    case DType::kBool:
      return put(static_cast<uint8_t>(value != 0));
    case DType::kUInt16:
    case DType::kInt16:
      return put(static_cast<uint16_t>(value));
    case DType::kUInt32:
    case DType::kInt32:
      return put(static_cast<uint32_t>(value));
    case DType::kUInt64:
    case DType::kInt64:
      return put(static_cast<uint64_t>(value));
    case DType::kFloat32:
      return put(static_cast<float>(value));
    case DType::kFloat64:
      return put(static_cast<double>(value));
    default: {
      if (value == 0) return put(uint16_t{0});
      const int exponent = 31 - __builtin_clz(static_cast<unsigned>(value));
      const bool is_half = dtype == DType::kFloat16;
      const int fraction_bits = is_half ? 10 : 7;
      const int bias = is_half ? 15 : 127;
      const int fraction = exponent <= fraction_bits ? value << (fraction_bits - exponent)
                                                     : value >> (exponent - fraction_bits);
      return put(static_cast<uint16_t>((exponent + bias) << fraction_bits |
                                       (fraction & ((1 << fraction_bits) - 1))));
    }
  }
}

struct Case {
  Reduction reduction;
  int expected;  // Of the ranks' values 1, 2 and 3.
};

class DTypeTest : public testing::TestWithParam<int> {};

TEST_P(DTypeTest, EveryReductionAndSize_IsRight) {
  const auto dtype = static_cast<DType>(GetParam());
  const bool is_bool = dtype == DType::kBool;
  const uint64_t element = DTypeBytes(dtype);
  QueueNode node(3);
  const std::vector<Case> cases = {{Reduction::kSum, is_bool ? 1 : 6},
                                   {Reduction::kAverage, 2},
                                   {Reduction::kMin, 1},
                                   {Reduction::kMax, is_bool ? 1 : 3},
                                   {Reduction::kProduct, is_bool ? 1 : 6}};
  node.ForEachRank([&](int rank, ArenaClient& client) {
    for (const Case& one : cases) {
      if (is_bool && one.reduction == Reduction::kAverage) continue;
      for (const uint64_t bytes :
           {uint64_t{0}, uint64_t{8}, uint64_t{264}, uint64_t{4096}, uint64_t{4104}}) {
        const uint64_t count = bytes / element;
        // One byte off: results go where they may lie unaligned.
        std::vector<std::byte> input(count * element), output(count * element + 1),
            expected(count * element);
        for (uint64_t i = 0; i < count; ++i) {
          Store(dtype, rank + 1, &input[i * element]);
          Store(dtype, one.expected, &expected[i * element]);
        }
        const auto operation = Describe(Operation::kAllreduce, dtype, one.reduction, count,
                                        input.data(), output.data() + 1, count);
        ASSERT_EQ(RunOne(client, operation), RINGD_OK) << LastError().message;
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), output.begin() + 1))
            << DTypeName(dtype) << " " << ReductionName(one.reduction) << " " << bytes;
      }
    }
    // Those above 4 KB, and perhaps one of a rank that was kept from its core.
    const uint64_t large = is_bool ? 4 : 5;
    EXPECT_GE(DaemonOperations(client), large);
    EXPECT_LT(DaemonOperations(client), 2 * large);
    EXPECT_EQ(client.counters().operations, 5 * large);
  });
}

INSTANTIATE_TEST_SUITE_P(All, DTypeTest, testing::Range(1, kDTypeCount));

TEST(DirectTest, Float16_AccumulatesInFloat32) {
  QueueNode node(4);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    // 40000 = 1.220703125 * 2^15: four of them are above float16's range, their average is not.
    uint16_t value = static_cast<uint16_t>((15 + 15) << 10 | 226);
    const uint16_t expected = value;
    const auto operation =
        Describe(Operation::kAllreduce, DType::kFloat16, Reduction::kAverage, 1, &value, &value, 1);
    ASSERT_EQ(RunOne(client, operation), RINGD_OK) << LastError().message;
    EXPECT_EQ(value, expected);
    // 256 + 1 + 1 + 1 in bfloat16, whose neighbours are 256, 258 and 260: 259 is rounded once.
    uint16_t part = rank == 0 ? 0x4380 : 0x3f80;
    const auto sum =
        Describe(Operation::kAllreduce, DType::kBFloat16, Reduction::kSum, 1, &part, &part, 1);
    ASSERT_EQ(RunOne(client, sum), RINGD_OK);
    EXPECT_EQ(part, 0x4382);
  });
}

TEST(DirectTest, Scales_ApplyAsTheDaemonAppliesThem) {
  QueueNode node(2);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    for (const uint64_t count : {uint64_t{3}, uint64_t{3000}}) {
      std::vector<float> values(count, static_cast<float>(rank + 1));
      ringd_operation operation = Sum(&values);
      operation.prescale = 0.5;
      operation.postscale = 4.0;
      ASSERT_EQ(RunOne(client, operation), RINGD_OK);
      EXPECT_EQ(values, std::vector<float>(count, 6.0f));
    }
  });
}

TEST(DirectTest, BroadcastAllgatherBarrier_AreRight) {
  QueueNode node(3);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    for (int root = 0; root < 3; ++root) {
      for (const uint64_t count : {uint64_t{1}, uint64_t{50}, uint64_t{1024}}) {
        std::vector<int32_t> values(count, rank == root ? 70 + root : -1);
        auto broadcast = Describe(Operation::kBroadcast, DType::kInt32, Reduction::kNone, count,
                                  values.data(), values.data(), count);
        broadcast.root = root;
        ASSERT_EQ(RunOne(client, broadcast), RINGD_OK) << LastError().message;
        EXPECT_EQ(values, std::vector<int32_t>(count, 70 + root));
        std::vector<int32_t> mine(count, rank), all(3 * count);
        auto gather = Describe(Operation::kAllgather, DType::kInt32, Reduction::kNone, count,
                               mine.data(), all.data(), 3 * count);
        const std::vector<int64_t> counts(3, static_cast<int64_t>(count));
        if (root == 1) gather.counts = counts.data();
        if (root == 1) gather.count_count = 3;
        ASSERT_EQ(RunOne(client, gather), RINGD_OK) << LastError().message;
        for (uint64_t i = 0; i < 3 * count; ++i) ASSERT_EQ(all[i], static_cast<int>(i / count));
      }
      ASSERT_EQ(RunOne(client, Describe(Operation::kBarrier, DType::kInvalid, Reduction::kNone, 0,
                                        nullptr, nullptr, 0)),
                RINGD_OK);
    }
    EXPECT_LT(DaemonOperations(client), 21u);
    EXPECT_EQ(client.counters().operations, 21u);
  });
}

// Each rank chooses for itself how it calls, and how far it runs ahead; sizes on both sides of the
// limit. Values tell which operation they are of.
class MixTest : public testing::TestWithParam<int> {};

TEST_P(MixTest, RunAndSubmit_InAnyMixture_AreRight) {
  const int size = GetParam();
  QueueNode node(size);
  const uint32_t seed = std::random_device{}();
  node.ForEachRank([&](int rank, ArenaClient& client) {
    std::mt19937 shared(seed), own(seed + 1 + static_cast<uint32_t>(rank));
    struct Pending {
      ringd_handle handle;
      std::vector<float> values;
      float expected;
    };
    std::vector<std::unique_ptr<Pending>> pending;
    const auto finish = [&](size_t left) {
      while (pending.size() > left) {
        Pending& first = *pending.front();
        ASSERT_EQ(client.Wait(first.handle, kTimeoutMicros), RINGD_OK)
            << LastError().message << " seed " << seed;
        ASSERT_EQ(first.values, std::vector<float>(first.values.size(), first.expected))
            << "seed " << seed;
        pending.erase(pending.begin());
      }
    };
    for (int i = 0; i < 600; ++i) {
      const uint64_t counts[] = {1, 2, 100, 1024, 1025, 20000};
      const uint64_t count = counts[shared() % 6];
      auto one = std::make_unique<Pending>();
      one->values.assign(count, static_cast<float>(rank + i));
      one->expected = static_cast<float>(size * i + size * (size - 1) / 2);
      if (own() % 3 == 0) {
        ASSERT_EQ(client.SubmitBatch(std::vector<ringd_operation>{Sum(&one->values)}.data(), 1,
                                     &one->handle),
                  RINGD_OK);
        pending.push_back(std::move(one));
      } else {
        ASSERT_EQ(RunOne(client, Sum(&one->values)), RINGD_OK)
            << LastError().message << " seed " << seed;
        ASSERT_EQ(one->values, std::vector<float>(count, one->expected)) << "seed " << seed;
      }
      finish(own() % 5);
      if (testing::Test::HasFatalFailure()) return;
      if (own() % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
    }
    finish(0);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, MixTest, testing::Values(2, 3, 4));

TEST(DirectTest, Submit_WithoutAWait_HoldsNobodyUp) {
  QueueNode node(2);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    std::vector<std::vector<float>> values(8, std::vector<float>(4, 1.0f));
    std::vector<ringd_handle> handles(8);
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < 8; ++i) {
      const ringd_operation operation = Sum(&values[i]);
      if (rank == 0) {
        ASSERT_EQ(client.SubmitBatch(&operation, 1, &handles[i]), RINGD_OK);
      } else {
        ASSERT_EQ(RunOne(client, operation), RINGD_OK) << LastError().message;
      }
    }
    if (rank == 1) {
      EXPECT_LT(MillisSince(start), 900);
      return;
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
    for (const ringd_handle handle : handles) ASSERT_EQ(client.Poll(handle), 1);
    for (const ringd_handle handle : handles) ASSERT_EQ(client.Wait(handle, 0), RINGD_OK);
    for (const auto& one : values) EXPECT_EQ(one, std::vector<float>(4, 2.0f));
    EXPECT_EQ(client.Wait(handles[0], 0), RINGD_INVALID_ARGUMENT);
  });
}

TEST(DirectTest, Run_TimeLimit_LeavesAHandleToGoOnWith) {
  QueueNode node(2);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    std::vector<float> values(2, static_cast<float>(rank));
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ringd_handle handle = 0;
    int code = client.Run(Sum(&values), rank == 0 ? 1000 : kTimeoutMicros, &handle);
    if (rank == 0) {
      ASSERT_EQ(code, RINGD_DEADLINE_EXCEEDED);
      ASSERT_NE(handle, 0u);
      EXPECT_EQ(client.Poll(handle), 0);
      code = client.Wait(handle, kTimeoutMicros);
    } else {
      EXPECT_EQ(handle, 0u);
    }
    ASSERT_EQ(code, RINGD_OK) << LastError().message;
    EXPECT_EQ(values, std::vector<float>(2, 1.0f));
  });
}

TEST(DirectTest, WaitingLong_ForTheDaemonsPart_IsStillRight) {
  QueueNode node(3);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    for (int i = 0; i < 3; ++i) {
      // The sleepers have handed theirs over by now; the last one finds the others' flags.
      if (rank == i) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      std::vector<float> values(100, static_cast<float>(rank + i));
      ASSERT_EQ(RunOne(client, Sum(&values)), RINGD_OK) << LastError().message;
      EXPECT_EQ(values, std::vector<float>(100, static_cast<float>(3 + 3 * i)));
    }
  });
}

// Rank 1 calls something else in the third operation.
void ExpectMismatch(const ringd_operation& odd, const std::string& odd_text, int size) {
  QueueNode node(size);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    for (int i = 1; i <= 6; ++i) {
      std::vector<float> values(4, static_cast<float>(rank));
      const auto start = std::chrono::steady_clock::now();
      const int code = RunOne(client, i == 3 && rank == 1 ? odd : Sum(&values));
      if (i != 3) {
        ASSERT_EQ(code, RINGD_OK) << LastError().message;
        ASSERT_EQ(values, std::vector<float>(4, static_cast<float>(size * (size - 1) / 2)));
        continue;
      }
      EXPECT_LT(MillisSince(start), 1000);
      ASSERT_EQ(code, RINGD_MISMATCH);
      const std::string message = LastError().message;
      EXPECT_NE(message.find("operation s.3 is not the same"), std::string::npos) << message;
      EXPECT_NE(message.find("rank 1 called " + odd_text), std::string::npos) << message;
      EXPECT_NE(message.find("called allreduce float32[4] sum"), std::string::npos) << message;
    }
  });
}

TEST(DirectTest, Mismatch_BetweenDirectOperations_NamesBoth_AndTheJobGoesOn) {
  std::vector<float> values(4);
  ringd_operation odd = Sum(&values);
  odd.reduction = static_cast<uint32_t>(Reduction::kMax);
  for (const int size : {2, 3, 4}) ExpectMismatch(odd, "allreduce float32[4] max", size);
}

TEST(DirectTest, Mismatch_WithTheDaemonsOperation_NamesBoth_AndTheJobGoesOn) {
  std::vector<float> values(5000);
  for (const int size : {2, 3, 4})
    ExpectMismatch(Sum(&values), "allreduce float32[5000] sum", size);
}

TEST(DirectTest, RankFinished_OthersAreTold) {
  QueueNode node(3);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    std::vector<float> values(4, 1.0f);
    for (int i = 0; i < 9; ++i) ASSERT_EQ(RunOne(client, Sum(&values)), RINGD_OK);
    if (rank == 1) {
      daemon::Outcome outcome;
      outcome.exit_code = 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      node.engine().RankEnded("job", 1, outcome);
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(RunOne(client, Sum(&values)), RINGD_PEER_FAILED);
    EXPECT_LT(MillisSince(start), 2000);
    EXPECT_STREQ(LastError().message, "rank 1 has finished after 9 operations, s.10 is pending");
    EXPECT_EQ(LastError().rank, 1);
    EXPECT_EQ(RunOne(client, Sum(&values)), RINGD_PEER_FAILED);
  });
}

TEST(DirectTest, WhatARankPublishedBeforeItsEnd_Counts) {
  QueueNode node(2);
  node.ForEachRank([&](int rank, ArenaClient& client) {
    std::vector<float> values(4, static_cast<float>(rank + 1));
    if (rank == 1) {
      ringd_handle handle = 0;
      const ringd_operation operation = Sum(&values);
      ASSERT_EQ(client.SubmitBatch(&operation, 1, &handle), RINGD_OK);
      daemon::Outcome outcome;
      outcome.signal = 9;
      node.engine().RankEnded("job", 1, outcome);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_EQ(RunOne(client, Sum(&values)), RINGD_OK) << LastError().message;
    EXPECT_EQ(values, std::vector<float>(4, 3.0f));
    ASSERT_EQ(RunOne(client, Sum(&values)), RINGD_PEER_FAILED);
    EXPECT_STREQ(LastError().message, "rank 1 (node node-a) was killed by SIGKILL");
  });
}

TEST(DirectTest, NextClientOfARank_GoesOnWhereTheLastOneWas) {
  QueueNode node(2);
  for (int round = 0; round < 6; ++round) {
    node.ForEachRank([&](int rank, ArenaClient& client) {
      for (int i = 0; i < 3; ++i) {
        std::vector<float> values(i == 1 ? 5000 : 1, static_cast<float>(rank));
        ASSERT_EQ(RunOne(client, Sum(&values)), RINGD_OK) << LastError().message;
        ASSERT_EQ(values, std::vector<float>(values.size(), 1.0f));
      }
    });
    node.Reattach(round % 2);
  }
}

TEST(DirectTest, ThreadsOfAClient_TakeTurns) {
  constexpr int kThreads = 3;
  constexpr int kOperations = 300;
  QueueNode node(2);
  node.ForEachRank([&](int, ArenaClient& client) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&client] {
        for (int i = 0; i < kOperations; ++i) {
          std::vector<float> values(16, 1.0f);  // All alike: whichever thread's meets the other's.
          ASSERT_EQ(RunOne(client, Sum(&values)), RINGD_OK) << LastError().message;
          ASSERT_EQ(values, std::vector<float>(16, 2.0f));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(client.counters().operations, uint64_t{kThreads} * kOperations);
  });
}

// Writes rubbish into the segment until it is killed.
[[noreturn]] void Scribble(void* base, uint64_t bytes, uint32_t seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::mt19937_64 random(seed);
  auto* const words = static_cast<std::atomic<uint64_t>*>(base);
  while (true) {
    // Mostly where it hurts: attention, lines, descriptions.
    const uint64_t place = random() % 3 == 0 ? random() % bytes : 128 + random() % 6000;
    const uint64_t values[] = {0, 1, random() % 100, random(), ~uint64_t{0}};
    words[place / 8].store(values[random() % 5], std::memory_order_relaxed);
    usleep(20);
  }
}

// Nothing that a rank writes there harms the daemon, or another rank's process.
TEST(DirectTest, Scribbles_CrashNobody) {
  QueueNode node(2);
  const UniqueFd fd(*node.engine().ShareSegment("job"));
  const uint64_t bytes = segment::SegmentBytes(2);
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(base, MAP_FAILED);
  const uint32_t seed = std::random_device{}();
  const pid_t liar = fork();
  ASSERT_GE(liar, 0);
  if (liar == 0) Scribble(base, bytes, seed);
  node.ForEachRank([&](int, ArenaClient& client) {
    const auto start = std::chrono::steady_clock::now();
    while (MillisSince(start) < 2000) {
      std::vector<float> values(7, 1.0f);
      ringd_handle handle = 0;
      client.Run(Sum(&values), 20'000, &handle);
    }
  });
  kill(liar, SIGKILL);
  waitpid(liar, nullptr, 0);
  munmap(base, bytes);
  const auto noop =
      Describe(Operation::kNoop, DType::kInvalid, Reduction::kNone, 0, nullptr, nullptr, 0);
  const int code = RunOne(node.client(0), noop);
  EXPECT_TRUE(code == RINGD_OK || code == RINGD_INVALID_ARGUMENT) << code << " seed " << seed;
  daemon::Outcome outcome;
  outcome.code = arena::Code::kUnavailable;
  node.engine().FailJob("job", outcome);
}

TEST(DirectTest, Poisoned_And_Shutdown_EndAWait) {
  QueueNode node(2);
  ArenaClient& client = node.client(0);
  std::vector<float> values(4);
  ringd_handle handle = 0;
  const ringd_operation operation = Sum(&values);
  ASSERT_EQ(client.SubmitBatch(&operation, 1, &handle), RINGD_OK);
  std::thread waiter(
      [&] { EXPECT_EQ(client.Wait(handle, kTimeoutMicros), RINGD_NOT_INITIALIZED); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  client.Shutdown(100'000);
  waiter.join();
}

}  // namespace
}  // namespace ringd
