// The engine with fake clients on threads, over the loopback communicator.
#include "daemon/engine/engine.h"

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/engine/testing/engine_fixture.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;
using Result = FakeClient::Result;
using Ticket = FakeClient::Ticket;

// What rank r contributes at element i: small whole numbers, so that every dtype holds every sum.
template <typename T>
std::vector<T> Ramp(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(rank + static_cast<int>(i % 5));
  return values;
}

template <typename T>
void TestSum(DType dtype, int size) {
  constexpr size_t kCount = 1000;
  TestNode node(size);
  node.ForEachRank([&](int rank, FakeClient& client) {
    const auto input = client.Put(Ramp<T>(rank, kCount));
    const auto output = client.Allocate(kCount * sizeof(T));
    EXPECT_EQ(client
                  .Run(client.Describe(Operation::kAllreduce, dtype, Reduction::kSum, kCount, input,
                                       output))
                  .code,
              Code::kOk);
    const auto result = client.Get<T>(output, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const int expected = size * (size - 1) / 2 + size * static_cast<int>(i % 5);
      ASSERT_EQ(result[i], static_cast<T>(expected)) << i;
    }
    EXPECT_EQ(client.Get<T>(input, kCount), Ramp<T>(rank, kCount));
  });
}

TEST(EngineTest, Allreduce_SumOfEveryTypeAndTwoToFourRanks_IsRight) {
  for (int size = 1; size <= 4; ++size) {
    TestSum<float>(DType::kFloat32, size);
    TestSum<double>(DType::kFloat64, size);
    TestSum<int32_t>(DType::kInt32, size);
    TestSum<int64_t>(DType::kInt64, size);
    TestSum<uint8_t>(DType::kUInt8, size);
    TestSum<uint16_t>(DType::kUInt16, size);
  }
}

TEST(EngineTest, Allreduce_AverageWithScales_DividesByTheGroup) {
  TestNode node(4);
  node.ForEachRank([&](int rank, FakeClient& client) {
    const auto data = client.Put(std::vector<float>{static_cast<float>(rank), 10.0f});
    auto descriptor =
        client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kAverage, 2, data, data);
    descriptor.prescale = 2.0;
    descriptor.postscale = 3.0;
    EXPECT_EQ(client.Run(descriptor).code, Code::kOk);
    // (0 + 1 + 2 + 3) * 2 * 3 / 4 and 40 * 2 * 3 / 4.
    EXPECT_EQ(client.Get<float>(data, 2), (std::vector<float>{9.0f, 60.0f}));
    EXPECT_EQ(client.header()->operations.load(), 1u);
    EXPECT_EQ(client.header()->bytes_reduced.load(), 8u);
  });
}

TEST(EngineTest, OtherOperations_AreRight) {
  TestNode node(3);
  node.ForEachRank([&](int rank, FakeClient& client) {
    const auto all = client.Allocate(6 * 4);
    const std::vector<int64_t> counts = {1, 2, 3};
    const auto mine = client.Put(std::vector<int32_t>(counts[rank], rank + 1));
    auto gather = client.Describe(Operation::kAllgather, DType::kInt32, Reduction::kNone,
                                  counts[rank], mine, all);
    client.SetCounts(counts, &gather);
    EXPECT_EQ(client.Run(gather).code, Code::kOk);
    EXPECT_EQ(client.Get<int32_t>(all, 6), (std::vector<int32_t>{1, 2, 2, 3, 3, 3}));

    const auto value = client.Put(std::vector<int32_t>{rank * 7});
    auto broadcast =
        client.Describe(Operation::kBroadcast, DType::kInt32, Reduction::kNone, 1, value, value);
    broadcast.root = 2;
    EXPECT_EQ(client.Run(broadcast).code, Code::kOk);
    EXPECT_EQ(client.Get<int32_t>(value, 1), std::vector<int32_t>{14});

    const auto parts = client.Put(std::vector<int32_t>{10 * rank, 10 * rank + 1, 10 * rank + 2});
    const auto received = client.Allocate(3 * 4);
    EXPECT_EQ(client
                  .Run(client.Describe(Operation::kAlltoall, DType::kInt32, Reduction::kNone, 3,
                                       parts, received))
                  .code,
              Code::kOk);
    EXPECT_EQ(client.Get<int32_t>(received, 3), (std::vector<int32_t>{rank, 10 + rank, 20 + rank}));

    const auto slice = client.Allocate(4);
    EXPECT_EQ(client
                  .Run(client.Describe(Operation::kReduceScatter, DType::kInt32, Reduction::kMax, 3,
                                       parts, slice))
                  .code,
              Code::kOk);
    EXPECT_EQ(client.Get<int32_t>(slice, 1), std::vector<int32_t>{20 + rank});

    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
    EXPECT_EQ(client.Run(client.Describe(Operation::kNoop)).code, Code::kOk);
    EXPECT_EQ(
        client.Run(client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 0))
            .code,
        Code::kOk);
  });
}

TEST(EngineTest, TenThousandOperations_ManyInFlightAndInBatches_AllComplete) {
  constexpr int kRounds = 100, kBatch = 100;
  TestNode node(2);
  node.ForEachRank([&](int rank, FakeClient& client) {
    std::vector<arena::Ref> refs;
    for (int i = 0; i < kBatch; ++i) refs.push_back(client.Allocate(4));
    for (int round = 0; round < kRounds; ++round) {
      std::vector<arena::Descriptor> batch;
      for (int i = 0; i < kBatch; ++i) {
        *static_cast<int32_t*>(client.At(refs[i])) = round * (rank + 1) + i;
        batch.push_back(client.Describe(Operation::kAllreduce, DType::kInt32, Reduction::kSum, 1,
                                        refs[i], refs[i]));
      }
      const std::vector<Ticket> tickets = client.SubmitBatch(batch);
      for (int i = 0; i < kBatch; ++i) {
        ASSERT_EQ(client.Wait(tickets[i]).code, Code::kOk);
        ASSERT_EQ(client.Get<int32_t>(refs[i], 1)[0], 3 * round + 2 * i);
      }
    }
  });
  EXPECT_EQ(node.engine().backstops(), 0u);
}

TEST(EngineTest, Mismatch_NamesRanksAndBothSignatures_AndLaterOperationsGoOn) {
  TestNode node(3);
  node.ForEachRank([&](int rank, FakeClient& client) {
    const uint64_t count = rank == 0 ? 10 : 11;
    const auto data = client.Allocate(64);
    const Result result = client.Run(client.Describe(Operation::kAllreduce, DType::kFloat32,
                                                     Reduction::kSum, count, data, data));
    EXPECT_EQ(result.code, Code::kMismatch);
    EXPECT_NE(result.message.find("operation s.1 is not the same on all ranks: "),
              std::string::npos);
    EXPECT_NE(result.message.find("rank 0 called allreduce float32[10] sum"), std::string::npos)
        << result.message;
    EXPECT_NE(result.message.find("called allreduce float32[11] sum"), std::string::npos)
        << result.message;
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
}

TEST(EngineTest, Mismatch_FailsAtTheSecondArrival) {
  TestNode node(3);
  FakeClient& a = node.client(0);
  FakeClient& b = node.client(1);
  const Ticket first = a.Submit(a.Describe(Operation::kBarrier));
  const auto data = b.Allocate(4);
  const Result second =
      b.Run(b.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 1, data, data));
  EXPECT_EQ(second.code, Code::kMismatch);
  EXPECT_EQ(a.Wait(first).code, Code::kMismatch);
  EXPECT_EQ(node.client(2).Run(node.client(2).Describe(Operation::kBarrier)).code, Code::kMismatch);
}

TEST(EngineTest, ScalesThatDiffer_AreAMismatch) {
  TestNode node(2);
  node.ForEachRank([&](int rank, FakeClient& client) {
    const auto data = client.Allocate(4);
    auto descriptor =
        client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 1, data, data);
    descriptor.prescale = rank == 0 ? 1.0 : 0.5;
    const Result result = client.Run(descriptor);
    EXPECT_EQ(result.code, Code::kMismatch);
    EXPECT_NE(result.message.find("rank 1 called allreduce float32[1] sum prescale 0.5"),
              std::string::npos)
        << result.message;
  });
}

TEST(EngineTest, OperationWithoutMeaning_FailsForAllAndLaterOnesGoOn) {
  TestNode node(2);
  node.ForEachRank([&](int, FakeClient& client) {
    const auto data = client.Allocate(4);
    const Result result = client.Run(
        client.Describe(Operation::kAllreduce, DType::kBool, Reduction::kAverage, 1, data, data));
    EXPECT_EQ(result.code, Code::kInvalidArgument);
    EXPECT_NE(result.message.find("there is no average of bool"), std::string::npos)
        << result.message;
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
}

TEST(EngineTest, RankEnded_FinishedEarly_SaysAfterHowManyOperations) {
  TestNode node(2);
  node.ForEachRank([&](int, FakeClient& client) {
    for (int i = 0; i < 9; ++i)
      EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
  FakeClient& client = node.client(0);
  const Ticket tenth = client.Submit(client.Describe(Operation::kBarrier));
  Outcome outcome;
  outcome.exit_code = 0;
  node.engine().RankEnded("job", 1, outcome);
  const Result result = client.Wait(tenth);
  EXPECT_EQ(result.code, Code::kPeerFailed);
  EXPECT_EQ(result.message, "rank 1 has finished after 9 operations, s.10 is pending");
  EXPECT_EQ(result.rank, 1);
  EXPECT_EQ(result.node, "node-a");
  EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kPeerFailed);
}

TEST(EngineTest, RankEnded_Killed_CarriesSignalAndStderr) {
  TestNode node(2);
  FakeClient& client = node.client(0);
  const Ticket pending = client.Submit(client.Describe(Operation::kBarrier));
  Outcome outcome;
  outcome.signal = 9;
  outcome.stderr_tail = "last words";
  node.engine().RankEnded("job", 1, outcome);
  const Result result = client.Wait(pending);
  EXPECT_EQ(result.code, Code::kPeerFailed);
  EXPECT_EQ(result.message, "rank 1 (node node-a) was killed by SIGKILL");
  EXPECT_EQ(result.signal, 9);
  EXPECT_EQ(result.stderr_tail, "last words");
}

TEST(EngineTest, RankEnded_WhatItHadSubmitted_IsCarriedOut) {
  TestNode node(2);
  FakeClient& gone = node.client(1);
  const auto data = gone.Put(std::vector<int32_t>{5});
  gone.Submit(gone.Describe(Operation::kAllreduce, DType::kInt32, Reduction::kSum, 1, data, data));
  Outcome outcome;
  outcome.exit_code = 0;
  node.engine().RankEnded("job", 1, outcome);
  FakeClient& client = node.client(0);
  const auto mine = client.Put(std::vector<int32_t>{2});
  EXPECT_EQ(client
                .Run(client.Describe(Operation::kAllreduce, DType::kInt32, Reduction::kSum, 1, mine,
                                     mine))
                .code,
            Code::kOk);
  EXPECT_EQ(client.Get<int32_t>(mine, 1)[0], 7);
  EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).message,
            "rank 1 has finished after 1 operations, s.2 is pending");
}

TEST(EngineTest, SecondClientOfARank_GoesOnCounting) {
  TestNode node(2);
  FakeClient& old_client = node.client(1);
  old_client.Submit(old_client.Describe(Operation::kBarrier));
  EXPECT_EQ(FakeClient().Attach(&node.engine(), "job", 1, 2).code(),
            absl::StatusCode::kAlreadyExists);
  node.engine().RemoveClient("job", 1, 1);
  FakeClient next;
  ASSERT_TRUE(next.Attach(&node.engine(), "job", 1, 2).ok());
  const Ticket second = next.Submit(next.Describe(Operation::kBarrier));
  FakeClient& other = node.client(0);
  EXPECT_EQ(other.Run(other.Describe(Operation::kBarrier)).code, Code::kOk);
  EXPECT_FALSE(next.IsOver(second));
  EXPECT_EQ(other.Run(other.Describe(Operation::kBarrier)).code, Code::kOk);
  EXPECT_EQ(next.Wait(second).code, Code::kOk);
}

TEST(EngineTest, FailJob_FailsPendingAndLaterOperations) {
  TestNode node(2);
  FakeClient& client = node.client(0);
  const Ticket pending = client.Submit(client.Describe(Operation::kBarrier));
  Outcome cause;
  cause.code = Code::kPeerFailed;
  cause.rank = 7;
  cause.message = "rank 7 (node b) exited with code 3";
  node.engine().FailJob("job", cause);
  EXPECT_EQ(client.Wait(pending).message, cause.message);
  EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).rank, 7);
  EXPECT_FALSE(client.IsPoisoned());
}

TEST(EngineTest, RemoveJob_PoisonsArenasAndCallsBack) {
  TestNode node(2);
  FakeClient& client = node.client(0);
  const Ticket pending = client.Submit(client.Describe(Operation::kBarrier));
  std::promise<void> removed;
  Outcome cause;
  cause.code = Code::kUnavailable;
  cause.message = "the job was cancelled";
  node.engine().RemoveJob("job", cause, [&] { removed.set_value(); });
  EXPECT_EQ(removed.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(client.Wait(pending).message, "the job was cancelled");
  EXPECT_TRUE(client.IsPoisoned());
  EXPECT_EQ(client.PoisonResult().code, Code::kUnavailable);
  EXPECT_TRUE(node.client(1).IsPoisoned());
  EXPECT_EQ(FakeClient().Attach(&node.engine(), "job", 0, 2).code(), absl::StatusCode::kNotFound);
}

TEST(EngineTest, Stop_FailsWhatIsPending) {
  TestNode node(2);
  FakeClient& client = node.client(0);
  const Ticket pending = client.Submit(client.Describe(Operation::kBarrier));
  node.engine().Stop();
  EXPECT_EQ(client.Wait(pending).code, Code::kUnavailable);
  EXPECT_EQ(FakeClient().Attach(&node.engine(), "job", 0, 2).code(),
            absl::StatusCode::kUnavailable);
}

TEST(EngineTest, ArenaOfAFormerDaemon_UnfinishedOperationsFail_LaterOnesGoOn) {
  FakeClient client;
  TestNode former(2);  // Stands still from RemoveClient on, as if it had died: nothing is told.
  former.engine().RemoveClient("job", 0, 1);
  ASSERT_TRUE(client.Attach(&former.engine(), "job", 0, 2).ok());
  for (int i = 0; i < 3; ++i) client.Run(client.Describe(Operation::kNoop));
  const Ticket pending = client.Submit(client.Describe(Operation::kBarrier));
  client.Run(client.Describe(Operation::kNoop));  // The one before has been read.
  former.engine().RemoveClient("job", 0, 2);
  TestNode node(2);
  node.engine().RemoveClient("job", 0, 1);
  ASSERT_FALSE(client.IsOver(pending));
  const Ticket unread = client.Submit(client.Describe(Operation::kBarrier));
  ASSERT_TRUE(client.Attach(&node.engine(), "job", 0, 2).ok());
  const Result failed = client.Wait(pending);
  EXPECT_EQ(failed.code, Code::kUnavailable);
  EXPECT_NE(failed.message.find("the daemon was restarted"), std::string::npos);
  auto bucket = client.Describe(Operation::kPlanBucket);
  bucket.root = 1;
  EXPECT_EQ(client.Run(bucket).code, Code::kUnavailable);
  EXPECT_EQ(node.client(1).Run(node.client(1).Describe(Operation::kBarrier)).code, Code::kOk);
  EXPECT_EQ(client.Wait(unread).code, Code::kOk);
  EXPECT_FALSE(client.IsPoisoned());
}

TEST(EngineTest, Calls_WhileTheEngineFallsAsleep_AreAnswered) {
  TestNode node(1);
  std::promise<void> removed;
  node.engine().RemoveJob("job", Outcome{}, [&] { removed.set_value(); });
  removed.get_future().wait();  // Without jobs it sleeps without a backstop.
  FakeClient client;
  for (int i = 0; i < 3000; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(i % 300));
    ASSERT_EQ(node.engine().AddSegment("job", 0, 1, 1, {}).code(), absl::StatusCode::kNotFound);
  }
}

TEST(EngineTest, PrepareJob_TwiceOrWithoutDataAddress_IsRefused) {
  TestNode node(1);
  EXPECT_EQ(node.Prepare("job", 1).code(), absl::StatusCode::kAlreadyExists);
  JobGeneration generation;
  generation.job = "wide";
  generation.layout.nodes = {{"a", 0, 1}, {"b", 1, 1}};
  std::promise<absl::Status> done;
  node.engine().PrepareJob(generation, [&](absl::Status status) { done.set_value(status); });
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ringd::daemon
