// Rings as a whole: bytes on the wire, memory in place, failures, random interleavings.
#include "daemon/collectives/ring/ring.h"

#include <string.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/base/sanitizers.h"
#include "daemon/collectives/ring/ring_cluster.h"
#include "gtest/gtest.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

using Values = std::vector<int32_t>;

// One operation on int32 over all ranks: memory by rank, outcomes by node.
struct Work {
  std::vector<Values> inputs;
  std::vector<Values> outputs;  // Empty: in place.
  std::vector<std::shared_ptr<Collective>> by_node;
  std::vector<std::vector<Outcome>> outcomes;

  Values& output(int rank) { return outputs.empty() ? inputs[rank] : outputs[rank]; }
  bool IsOver() const {
    for (const auto& list : outcomes) {
      if (list.empty()) return false;
    }
    return true;
  }
  bool IsOk() const {
    for (const auto& list : outcomes) {
      if (list.size() != 1 || !list[0].ok()) return false;
    }
    return true;
  }
};

class RingTest : public testing::Test {
 protected:
  void Form(const std::vector<int>& ranks) {
    cluster_ = std::make_unique<RingCluster>(MakeLayouts(ranks));
    size_ = cluster_->layout(0).size();
    node_count_ = cluster_->node_count();
  }

  std::shared_ptr<Work> Make(const Collective& prototype, std::vector<Values> inputs,
                             std::vector<Values> outputs) {
    auto run = std::make_shared<Work>();
    run->inputs = std::move(inputs);
    run->outputs = std::move(outputs);
    run->outcomes.resize(node_count_);
    for (int node = 0; node < node_count_; ++node) {
      auto collective = std::make_shared<Collective>(prototype);
      const GroupLayout& layout = cluster_->layout(node);
      for (int i = 0; i < layout.local_count(); ++i) {
        const int rank = layout.first_local_rank() + i;
        collective->ranks.push_back({reinterpret_cast<const std::byte*>(run->inputs[rank].data()),
                                     reinterpret_cast<std::byte*>(run->output(rank).data())});
      }
      run->by_node.push_back(std::move(collective));
    }
    return run;
  }

  static Collective Prototype(Operation operation, uint64_t count) {
    Collective c;
    c.operation = operation;
    c.dtype = DType::kInt32;
    c.reduction = Reduction::kSum;
    c.count = count;
    c.signature = count + 1;
    c.description = "rank 0: " + std::string(OperationName(operation)) + " int32[" +
                    std::to_string(count) + "] sum";
    return c;
  }

  // Every rank's input: rank + position, so that sums are known.
  std::vector<Values> Ramps(uint64_t count) const {
    std::vector<Values> inputs(size_, Values(count));
    for (int rank = 0; rank < size_; ++rank) {
      std::iota(inputs[rank].begin(), inputs[rank].end(), 1000 * rank);
    }
    return inputs;
  }
  int32_t RampSum(uint64_t position) const {
    return static_cast<int32_t>(size_ * position) + 1000 * size_ * (size_ - 1) / 2;
  }

  std::shared_ptr<Work> MakeAllreduce(uint64_t count) {
    return Make(Prototype(Operation::kAllreduce, count), Ramps(count), {});
  }
  void ExpectSums(Work* run) const {
    for (int rank = 0; rank < size_; ++rank) {
      const Values& output = run->output(rank);
      for (size_t i = 0; i < output.size(); ++i) ASSERT_EQ(output[i], RampSum(i)) << rank;
    }
  }

  void StartOn(int node, OperationKey key, const std::shared_ptr<Work>& run) {
    cluster_->communicator(node)->Start(
        key, run->by_node[node],
        [run, node](const Outcome& outcome) { run->outcomes[node].push_back(outcome); });
  }
  void StartOnAll(OperationKey key, const std::shared_ptr<Work>& run) {
    for (int node = 0; node < node_count_; ++node) StartOn(node, key, run);
  }
  bool DriveUntil(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      cluster_->Drive();
    }
    return true;
  }
  bool Finish(const std::shared_ptr<Work>& run) {
    return DriveUntil([&] { return run->IsOver(); });
  }
  uint64_t BytesSent(int node) { return cluster_->communicator(node)->counters().bytes_sent; }

  std::unique_ptr<RingCluster> cluster_;
  int size_ = 0;
  int node_count_ = 0;
};

TEST_F(RingTest, Allreduce_AnyRanksANode_SendsTwiceTheShareOfTheOthers) {
  for (const std::vector<int>& ranks : {std::vector<int>{1, 1}, {2, 2}, {1, 2, 1}, {2, 1, 3, 1}}) {
    Form(ranks);
    const uint64_t count = 12 * 100'000;  // Divisible by every node count.
    auto run = MakeAllreduce(count);
    StartOnAll({0, 1}, run);
    ASSERT_TRUE(Finish(run));
    ASSERT_TRUE(run->IsOk());
    ExpectSums(run.get());
    const uint64_t n = node_count_;
    for (int node = 0; node < node_count_; ++node) {
      EXPECT_EQ(BytesSent(node), 2 * (n - 1) * count * 4 / n) << node << " of " << n;
    }
  }
}

TEST_F(RingTest, OtherOperations_SendNoMoreThanTheyMust) {
  Form({1, 2, 1});
  const uint64_t count = 12'000;
  auto broadcast = Make(Prototype(Operation::kBroadcast, count), Ramps(count), {});
  StartOnAll({0, 1}, broadcast);
  ASSERT_TRUE(Finish(broadcast));
  EXPECT_EQ(BytesSent(0), count * 4);
  EXPECT_EQ(BytesSent(1), count * 4);
  EXPECT_EQ(BytesSent(2), 0u);
  Collective scatter = Prototype(Operation::kReduceScatter, count);
  scatter.counts = {count / 4, count / 4, count / 4, count / 4};
  auto run = Make(scatter, Ramps(count), std::vector<Values>(4, Values(count / 4)));
  const uint64_t before = BytesSent(0);
  StartOnAll({0, 2}, run);
  ASSERT_TRUE(Finish(run));
  ASSERT_TRUE(run->IsOk());
  // Node 0 sends the segments of the other two nodes: 1/4 and 2/4 of the tensor.
  EXPECT_EQ(BytesSent(0) - before, count * 3);
}

TEST_F(RingTest, ReduceScatter_FarBeyondTheStaging_Works) {
  Form({1, 2, 1, 1});
  Collective c = Prototype(Operation::kReduceScatter, 0);
  c.counts = {3'000'000, 10, 0, 1'500'001, 777'777};
  c.count = std::accumulate(c.counts.begin(), c.counts.end(), uint64_t{0});
  std::vector<Values> outputs;
  for (const uint64_t count : c.counts) outputs.emplace_back(count);
  auto run = Make(c, Ramps(c.count), std::move(outputs));
  StartOnAll({0, 1}, run);
  ASSERT_TRUE(Finish(run));
  ASSERT_TRUE(run->IsOk());
  uint64_t position = 0;
  for (int rank = 0; rank < size_; ++rank) {
    for (const int32_t value : run->outputs[rank]) ASSERT_EQ(value, RampSum(position++)) << rank;
  }
}

TEST_F(RingTest, ReduceScatter_InPlace_GivesEachRankItsSlice) {
  for (const std::vector<int>& ranks : {std::vector<int>{1, 1}, {2, 1, 2}}) {
    Form(ranks);
    Collective c = Prototype(Operation::kReduceScatter, 0);
    for (int rank = 0; rank < size_; ++rank) {
      c.counts.push_back(rank == 1 ? 2'000'000 : 500'000u + rank);
    }
    c.count = std::accumulate(c.counts.begin(), c.counts.end(), uint64_t{0});
    auto run = Make(c, Ramps(c.count), {});
    StartOnAll({0, 1}, run);
    ASSERT_TRUE(Finish(run));
    ASSERT_TRUE(run->IsOk());
    uint64_t position = 0;
    for (int rank = 0; rank < size_; ++rank) {
      for (uint64_t i = 0; i < c.counts[rank]; ++i) {
        ASSERT_EQ(run->inputs[rank][i], RampSum(position++)) << "rank " << rank << " at " << i;
      }
    }
  }
}

TEST_F(RingTest, Allgather_InPlace_MovesEachInputToItsPlace) {
  Form({2, 1, 2});
  Collective c = Prototype(Operation::kAllgather, 0);
  c.counts = {10, 400'000, 0, 300'000, 5};
  const uint64_t total = std::accumulate(c.counts.begin(), c.counts.end(), uint64_t{0});
  auto run = Make(c, Ramps(total), {});
  StartOnAll({0, 1}, run);
  ASSERT_TRUE(Finish(run));
  ASSERT_TRUE(run->IsOk());
  for (int rank = 0; rank < size_; ++rank) {
    uint64_t position = 0;
    for (int from = 0; from < size_; ++from) {
      for (uint64_t i = 0; i < c.counts[from]; ++i) {
        ASSERT_EQ(run->inputs[rank][position++], static_cast<int32_t>(1000 * from + i));
      }
    }
  }
}

// counts[from * size + to]; values tell sender, receiver and position.
class AlltoallRingTest : public RingTest {
 protected:
  static int32_t Value(int from, int to, uint64_t i) {
    return static_cast<int32_t>(from * 100'000'000 + to * 10'000'000 + i);
  }
  void Check(const Collective& c, bool in_place) {
    std::vector<Values> inputs(size_), outputs(size_);
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        const uint64_t count = c.counts[from * size_ + to];
        for (uint64_t i = 0; i < count; ++i) inputs[from].push_back(Value(from, to, i));
        outputs[to].resize(outputs[to].size() + count);
      }
    }
    if (in_place) {
      for (int rank = 0; rank < size_; ++rank) {
        inputs[rank].resize(std::max(inputs[rank].size(), outputs[rank].size()));
      }
    }
    auto run = Make(c, std::move(inputs), in_place ? std::vector<Values>{} : std::move(outputs));
    StartOnAll({0, 1}, run);
    ASSERT_TRUE(Finish(run));
    ASSERT_TRUE(run->IsOk());
    for (int to = 0; to < size_; ++to) {
      uint64_t position = 0;
      for (int from = 0; from < size_; ++from) {
        for (uint64_t i = 0; i < c.counts[from * size_ + to]; ++i) {
          ASSERT_EQ(run->output(to)[position++], Value(from, to, i)) << from << " to " << to;
        }
      }
    }
  }
};

TEST_F(AlltoallRingTest, Alltoall_FarBeyondTheStagingAndUneven_Works) {
  Form({1, 2, 1, 1});
  Collective c = Prototype(Operation::kAlltoall, 0);
  for (int i = 0; i < size_ * size_; ++i) {
    c.counts.push_back(i % 4 == 0 ? 900'000 : i % 4 == 1 ? 0 : i * 1000);
  }
  Check(c, false);
}

TEST_F(AlltoallRingTest, Alltoall_InPlace_Works) {
  Form({1, 2, 1});
  Collective c = Prototype(Operation::kAlltoall, 0);
  for (int i = 0; i < size_ * size_; ++i) c.counts.push_back(i * 10'000);
  Check(c, true);
}

TEST_F(AlltoallRingTest, Alltoall_InPlaceBeyondItsBound_FailsOnAllNodes) {
  Form({1, 1});
  Collective c = Prototype(Operation::kAlltoall, 0);
  c.counts = {0, 20'000'000, 1, 0};
  auto run = Make(c, std::vector<Values>(2, Values(1)), {});
  StartOnAll({0, 1}, run);
  ASSERT_TRUE(Finish(run));
  for (const auto& outcomes : run->outcomes) {
    EXPECT_EQ(outcomes[0].code, arena::Code::kInvalidArgument);
    EXPECT_NE(outcomes[0].message.find("beside"), std::string::npos);
  }
}

TEST_F(RingTest, Allreduce_MoreRanksThanOneReductionTakes_Works) {
  Form({70, 1});
  for (const double prescale : {1.0, 2.0}) {
    Collective c = Prototype(Operation::kAllreduce, 1001);
    c.scaling.prescale = prescale;
    auto run = Make(c, Ramps(1001), {});
    StartOnAll({0, prescale == 1.0 ? 1u : 2u}, run);
    ASSERT_TRUE(Finish(run));
    for (int rank = 0; rank < size_; ++rank) {
      for (int i = 0; i < 1001; ++i) {
        ASSERT_EQ(run->output(rank)[i], static_cast<int32_t>(prescale) * RampSum(i));
      }
    }
  }
}

TEST_F(RingTest, Allreduce_AverageOfBool_IsInvalidOnAllNodes) {
  Form({1, 1});
  Collective c = Prototype(Operation::kAllreduce, 4);
  c.dtype = DType::kBool;
  c.reduction = Reduction::kAverage;
  auto run = Make(c, Ramps(1), {});
  StartOnAll({0, 1}, run);
  ASSERT_TRUE(Finish(run));
  EXPECT_EQ(run->outcomes[1][0].code, arena::Code::kInvalidArgument);
  auto next = MakeAllreduce(4);
  StartOnAll({0, 2}, next);
  ASSERT_TRUE(Finish(next));
  EXPECT_TRUE(next->IsOk());
}

TEST_F(RingTest, Mismatch_OneNodeDiffers_AllNodesNameBothAndLaterOnesWork) {
  for (int odd_node = 0; odd_node < 3; ++odd_node) {
    Form({1, 2, 1});
    auto run = MakeAllreduce(1000);
    auto odd = std::make_shared<Collective>(*run->by_node[odd_node]);
    odd->signature = 99;
    odd->description = "rank " + std::to_string(cluster_->layout(odd_node).first_local_rank()) +
                       ": allreduce float32[11] sum";
    run->by_node[odd_node] = odd;
    StartOnAll({0, 1}, run);
    ASSERT_TRUE(Finish(run)) << odd_node;
    for (const auto& outcomes : run->outcomes) {
      ASSERT_EQ(outcomes.size(), 1u);
      EXPECT_EQ(outcomes[0].code, arena::Code::kMismatch);
      EXPECT_NE(outcomes[0].message.find("int32[1000]"), std::string::npos) << outcomes[0].message;
      EXPECT_NE(outcomes[0].message.find("float32[11]"), std::string::npos) << outcomes[0].message;
      EXPECT_NE(outcomes[0].message.find(std::string("(node ") + "abc"[odd_node] + ")"),
                std::string::npos);
    }
    auto next = MakeAllreduce(1000);
    StartOnAll({0, 2}, next);
    ASSERT_TRUE(Finish(next));
    EXPECT_TRUE(next->IsOk());
  }
}

TEST_F(RingTest, Mismatch_ThirdNodeNotStarted_IsToldAndFailsAtItsStart) {
  Form({1, 1, 1});
  std::vector<OperationKey> told;
  cluster_->communicator(2)->set_peer_failure_handler(
      [&](OperationKey key, bool from, const Outcome& outcome) {
        EXPECT_FALSE(from);
        EXPECT_EQ(outcome.code, arena::Code::kMismatch);
        told.push_back(key);
      });
  auto run = MakeAllreduce(10);
  auto odd = std::make_shared<Collective>(*run->by_node[1]);
  odd->signature = 99;
  run->by_node[1] = odd;
  StartOn(0, {5, 1}, run);
  StartOn(1, {5, 1}, run);
  ASSERT_TRUE(DriveUntil([&] { return !told.empty() && !run->outcomes[1].empty(); }));
  EXPECT_EQ(told, (std::vector<OperationKey>{{5, 1}}));
  StartOn(2, {5, 1}, run);
  ASSERT_EQ(run->outcomes[2].size(), 1u);
  EXPECT_EQ(run->outcomes[2][0].code, arena::Code::kMismatch);
  ASSERT_TRUE(Finish(run));
}

TEST_F(RingTest, AbortFrom_ARankHasLeft_FailsTheChannelButNoOther) {
  Form({1, 1, 1});
  std::vector<std::pair<OperationKey, bool>> told;
  cluster_->communicator(2)->set_peer_failure_handler(
      [&](OperationKey key, bool from, const Outcome&) {
        told.push_back({key, from});
      });
  auto first = MakeAllreduce(1000);
  auto second = MakeAllreduce(100'000);
  auto third = MakeAllreduce(10);
  auto other = MakeAllreduce(10);
  StartOnAll({1, 1}, first);
  for (const int node : {1, 2}) StartOn(node, {1, 2}, second);
  for (int i = 0; i < 50; ++i) cluster_->Drive();
  Outcome gone{arena::Code::kPeerFailed, "rank 0 has finished after 1 operations", 0, "a", 0};
  cluster_->communicator(0)->AbortFrom({1, 2}, gone);
  StartOn(0, {1, 2}, second);
  ASSERT_TRUE(Finish(second));
  for (const auto& outcomes : second->outcomes) {
    EXPECT_EQ(outcomes[0].code, arena::Code::kPeerFailed);
    EXPECT_EQ(outcomes[0].message, gone.message);
    EXPECT_EQ(outcomes[0].rank, 0);
    EXPECT_EQ(outcomes[0].node, "a");
    EXPECT_EQ(outcomes[0].exit_code, 0);
  }
  EXPECT_TRUE(first->IsOk());
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].first, (OperationKey{1, 2}));
  EXPECT_TRUE(told[0].second);
  StartOnAll({1, 3}, third);
  EXPECT_TRUE(third->IsOver());
  StartOnAll({2, 1}, other);
  ASSERT_TRUE(Finish(other));
  EXPECT_TRUE(other->IsOk());
}

TEST_F(RingTest, Abort_ThousandsNotStartedYet_AreKept) {
  Form({1, 1, 1});
  constexpr uint64_t kCount = 3000;
  for (uint64_t sequence = 1; sequence <= kCount; ++sequence) {
    cluster_->communicator(0)->Abort(
        {0, sequence}, {arena::Code::kInvalidArgument, "no. " + std::to_string(sequence)});
    if (sequence % 10 == 0) cluster_->Drive();
  }
  auto last = MakeAllreduce(10);
  for (uint64_t sequence = 1; sequence <= kCount; ++sequence) {
    auto run = MakeAllreduce(1);
    StartOnAll({0, sequence}, run);
    ASSERT_TRUE(Finish(run));
    for (const auto& outcomes : run->outcomes) {
      ASSERT_EQ(outcomes[0].message, "no. " + std::to_string(sequence));
    }
  }
  StartOnAll({0, kCount + 1}, last);
  ASSERT_TRUE(Finish(last));
  EXPECT_TRUE(last->IsOk());
}

TEST_F(RingTest, Remove_ANodeWithWorkInFlight_FailsAllAndNamesIt) {
  Form({1, 1, 1, 1});
  auto run = MakeAllreduce(1'000'000);
  for (const int node : {0, 2, 3}) StartOn(node, {0, 1}, run);
  for (int i = 0; i < 20; ++i) cluster_->Drive();
  cluster_->Remove(1);
  ASSERT_TRUE(DriveUntil([&] {
    return !run->outcomes[0].empty() && !run->outcomes[2].empty() && !run->outcomes[3].empty();
  }));
  for (const int node : {0, 2, 3}) {
    ASSERT_EQ(run->outcomes[node].size(), 1u);
    EXPECT_EQ(run->outcomes[node][0].code, arena::Code::kPeerFailed);
    EXPECT_EQ(run->outcomes[node][0].node, "b");
    EXPECT_NE(run->outcomes[node][0].message.find("lost connection to node b"), std::string::npos);
    ASSERT_EQ(cluster_->ring_failures(node).size(), 1u);
    EXPECT_EQ(cluster_->ring_failures(node)[0].node, "b");
  }
  auto later = MakeAllreduce(1);
  StartOn(0, {7, 1}, later);
  ASSERT_EQ(later->outcomes[0].size(), 1u);
  EXPECT_EQ(later->outcomes[0][0].code, arena::Code::kPeerFailed);
}

TEST_F(RingTest, Remove_RightAfterItsLastOperation_OthersStillGetTheirResults) {
  Form({1, 1, 1});
  auto run = MakeAllreduce(3'000'000);
  StartOnAll({0, 1}, run);
  ASSERT_TRUE(DriveUntil([&] { return !run->outcomes[0].empty(); }));
  cluster_->Remove(0);
  ASSERT_TRUE(Finish(run));
  EXPECT_TRUE(run->IsOk());
  ExpectSums(run.get());
}

TEST_F(RingTest, Start_OutOfOrder_FailsAlone) {
  Form({1, 1});
  auto run = MakeAllreduce(1);
  StartOnAll({0, 2}, run);
  ASSERT_TRUE(Finish(run));
  EXPECT_TRUE(run->IsOk());  // Sequences may be skipped.
  auto late = MakeAllreduce(1);
  StartOn(0, {0, 1}, late);
  EXPECT_EQ(late->outcomes[0].at(0).code, arena::Code::kInternal);
}

// Random operations in random order and pace, some aborted, some with other signatures: each ends
// exactly once on each node, those that end well on a node have the right result there, and what
// follows still works.
TEST_F(RingTest, RandomInterleavingsWithFailures_EverythingEnds) {
  const unsigned first_seed = 1;
  const unsigned seeds = kSanitized ? 8 : 40;
  for (unsigned seed = first_seed; seed < first_seed + seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
    Form(seed % 3 == 0 ? std::vector<int>{1, 1} : std::vector<int>{1, 2, 1});
    constexpr int kChannels = 3, kOperations = 12;
    std::vector<std::vector<std::shared_ptr<Work>>> runs(kChannels);
    for (auto& channel : runs) {
      for (int i = 0; i < kOperations; ++i) {
        channel.push_back(MakeAllreduce(below(3) == 0 ? below(400'000) : below(3000)));
        if (below(6) > 0) continue;
        const int node = below(node_count_);
        auto odd = std::make_shared<Collective>(*channel.back()->by_node[node]);
        odd->signature ^= 1ull << 40;
        channel.back()->by_node[node] = odd;
      }
    }
    std::vector<std::vector<int>> next(node_count_, std::vector<int>(kChannels, 0));
    int left = node_count_ * kChannels * kOperations;
    while (left > 0) {
      const int node = below(node_count_), channel = below(kChannels);
      if (next[node][channel] < kOperations && below(2) == 0) {
        const int index = next[node][channel]++;
        StartOn(node, {static_cast<uint64_t>(channel), index + 1u}, runs[channel][index]);
        --left;
      }
      if (below(40) == 0) {
        cluster_->communicator(node)->Abort(
            {static_cast<uint64_t>(channel), below(kOperations) + 1u},
            {arena::Code::kInvalidArgument, "random"});
      }
      for (int i = below(4); i > 0; --i) cluster_->DriveNode(below(node_count_));
    }
    for (auto& channel : runs) {
      for (auto& run : channel) {
        ASSERT_TRUE(Finish(run));
        for (int node = 0; node < node_count_; ++node) {
          ASSERT_EQ(run->outcomes[node].size(), 1u);
          if (!run->outcomes[node][0].ok()) continue;
          const GroupLayout& layout = cluster_->layout(node);
          const Values& output = run->output(layout.first_local_rank());
          for (size_t i = 0; i < output.size(); ++i) ASSERT_EQ(output[i], RampSum(i));
        }
      }
    }
    auto last = MakeAllreduce(5);
    StartOnAll({0, kOperations + 1}, last);
    ASSERT_TRUE(Finish(last));
    ASSERT_TRUE(last->IsOk());
    for (int node = 0; node < node_count_; ++node) {
      ASSERT_TRUE(cluster_->ring_failures(node).empty());
    }
  }
}

TEST_F(RingTest, HalfAverage_WholeNumbersOverThreeNodes_IsExact) {
  Form({1, 2, 2});
  const uint16_t inputs[] = {0x4900, 0x5140, 0x5640, 0xc900, 0x5c00};  // 10, 42, 100, -10, 256.
  const uint16_t kExpected = 0x54fa;                                   // 398 / 5 = 79.6 rounded.
  Collective c = Prototype(Operation::kAllreduce, 1);
  c.dtype = DType::kFloat16;
  c.reduction = Reduction::kAverage;
  c.scaling.divisor = 5;
  std::vector<Values> values;
  for (const uint16_t input : inputs) values.push_back({input});
  auto run = Make(c, values, {});
  StartOnAll({0, 1}, run);
  ASSERT_TRUE(Finish(run));
  for (int rank = 0; rank < size_; ++rank) EXPECT_EQ(run->output(rank)[0] & 0xffff, kExpected);
}

}  // namespace
}  // namespace ringd::daemon
