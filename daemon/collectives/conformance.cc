#include "daemon/collectives/conformance.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace ringd::daemon {
namespace {

constexpr DType kDTypes[] = {DType::kUInt8,   DType::kInt8,     DType::kUInt16,  DType::kInt16,
                             DType::kUInt32,  DType::kInt32,    DType::kUInt64,  DType::kInt64,
                             DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64,
                             DType::kBool};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kAverage, Reduction::kMin,
                                     Reduction::kMax, Reduction::kProduct};
constexpr uint64_t kCounts[] = {0, 1, 3, 1000, 65537};
constexpr auto kTimeLimit = std::chrono::seconds(60);

// One operation over all ranks: memory by global rank, started on every node.
struct Running {
  std::vector<Bytes> inputs, outputs;
  std::vector<std::shared_ptr<Collective>> by_node;
  std::vector<Outcome> outcomes;
  int finished = 0;
};

class Driver {
 public:
  Driver(Cluster* cluster, int node_count) : cluster_(cluster), node_count_(node_count) {}

  // outputs empty: in place.
  std::shared_ptr<Running> Prepare(const Collective& prototype, std::vector<Bytes> inputs,
                                   std::vector<Bytes> outputs) {
    auto running = std::make_shared<Running>();
    running->inputs = std::move(inputs);
    running->outputs = std::move(outputs);
    running->outcomes.resize(node_count_);
    for (int node = 0; node < node_count_; ++node) {
      auto collective = std::make_shared<Collective>(prototype);
      const GroupLayout& layout = cluster_->layout(node);
      for (int i = 0; i < layout.local_count(); ++i) {
        const int rank = layout.first_local_rank() + i;
        RankBuffer buffer;
        if (rank < static_cast<int>(running->inputs.size()))
          buffer.input = running->inputs[rank].data();
        buffer.output = running->outputs.empty() ? const_cast<std::byte*>(buffer.input)
                                                 : running->outputs[rank].data();
        collective->ranks.push_back(buffer);
      }
      running->by_node.push_back(std::move(collective));
    }
    return running;
  }

  void StartOn(int node, OperationKey key, const std::shared_ptr<Running>& running) {
    cluster_->communicator(node)->Start(key, running->by_node[node],
                                        [running, node](const Outcome& outcome) {
                                          running->outcomes[node] = outcome;
                                          ++running->finished;
                                        });
  }
  void Start(OperationKey key, const std::shared_ptr<Running>& running) {
    for (int node = 0; node < node_count_; ++node) StartOn(node, key, running);
  }
  // False when time is up.
  bool Finish(const std::shared_ptr<Running>& running) {
    const auto deadline = std::chrono::steady_clock::now() + kTimeLimit;
    while (running->finished < node_count_) {
      cluster_->Drive();
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

 private:
  Cluster* const cluster_;
  const int node_count_;
};

void ExpectEqual(DType dtype, const Bytes& expected, const Bytes& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  if (expected == actual) return;
  const uint64_t count = expected.size() / DTypeBytes(dtype);
  for (uint64_t i = 0; i < count; ++i) {
    ASSERT_EQ(ElementValue(dtype, expected, i), ElementValue(dtype, actual, i))
        << what << " element " << i;
  }
}

std::vector<Bytes> MakeInputs(DType dtype, const std::vector<uint64_t>& counts, unsigned seed) {
  std::vector<Bytes> inputs;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    inputs.push_back(MakeInput(dtype, counts[rank], static_cast<int>(rank), seed));
  }
  return inputs;
}

std::vector<Bytes> MakeOutputs(DType dtype, const std::vector<uint64_t>& counts) {
  std::vector<Bytes> outputs;
  for (const uint64_t count : counts)
    outputs.emplace_back(count * DTypeBytes(dtype), std::byte{0xee});
  return outputs;
}

std::string Describe(const Collective& c) {
  return std::string(OperationName(c.operation)) + " " + DTypeName(c.dtype) + " " +
         ReductionName(c.reduction) + " count " + std::to_string(c.count);
}

Bytes Slice(DType dtype, const Bytes& bytes, uint64_t start, uint64_t count) {
  const size_t width = DTypeBytes(dtype);
  return Bytes(bytes.begin() + static_cast<ptrdiff_t>(start * width),
               bytes.begin() + static_cast<ptrdiff_t>((start + count) * width));
}

Collective MakeReduction(Operation operation, DType dtype, Reduction reduction, int size) {
  Collective c;
  c.operation = operation;
  c.dtype = dtype;
  c.reduction = reduction;
  c.signature = 7;
  if (reduction == Reduction::kAverage) c.scaling.divisor = size;
  return c;
}

// Averages of whole numbers that don't divide are not exact in every order of rounding; give 16-bit
// ones a multiple.
bool IsExact(DType dtype, Reduction reduction, int size) {
  const bool sixteen = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  if (reduction == Reduction::kProduct) return size <= 4;
  return !(sixteen && reduction == Reduction::kAverage && (size & (size - 1)) != 0);
}

}  // namespace

void CommunicatorConformanceTest::SetUp() {
  GroupLayout layout;
  for (size_t node = 0; node < GetParam().ranks.size(); ++node) {
    layout.nodes.push_back(
        {std::string(1, static_cast<char>('a' + node)), size_, GetParam().ranks[node]});
    size_ += GetParam().ranks[node];
  }
  for (size_t node = 0; node < layout.nodes.size(); ++node) {
    layout.node_index = static_cast<int>(node);
    layouts_.push_back(layout);
  }
  cluster_ = GetParam().create(layouts_);
}

TEST_P(CommunicatorConformanceTest, Allreduce_EveryDTypeAndReduction_MatchesReference) {
  Driver driver(cluster_.get(), node_count());
  uint64_t sequence = 0;
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      if (!IsReducible(dtype, reduction) || !IsExact(dtype, reduction, size_)) continue;
      for (const uint64_t count : kCounts) {
        if (count > 1000 && reduction != Reduction::kSum) continue;
        for (const bool in_place : {true, false}) {
          Collective c = MakeReduction(Operation::kAllreduce, dtype, reduction, size_);
          c.count = count;
          const std::vector<uint64_t> counts(size_, count);
          const auto inputs = MakeInputs(dtype, counts, 1);
          const Bytes expected = ReferenceReduce(dtype, reduction, c.scaling, inputs);
          auto running = driver.Prepare(
              c, inputs, in_place ? std::vector<Bytes>{} : MakeOutputs(dtype, counts));
          driver.Start({0, ++sequence}, running);
          ASSERT_TRUE(driver.Finish(running)) << Describe(c);
          for (int rank = 0; rank < size_; ++rank) {
            ExpectEqual(dtype, expected, (in_place ? running->inputs : running->outputs)[rank],
                        Describe(c));
            if (!in_place)
              ExpectEqual(dtype, inputs[rank], running->inputs[rank], "input of " + Describe(c));
          }
        }
      }
    }
  }
}

TEST_P(CommunicatorConformanceTest, Allreduce_Scaled_MatchesReference) {
  Driver driver(cluster_.get(), node_count());
  Collective c = MakeReduction(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, size_);
  c.count = 4097;
  c.scaling = {0.5, 8.0, 1.0};
  const std::vector<uint64_t> counts(size_, c.count);
  const auto inputs = MakeInputs(c.dtype, counts, 3);
  auto running = driver.Prepare(c, inputs, {});
  driver.Start({0, 1}, running);
  ASSERT_TRUE(driver.Finish(running));
  const Bytes expected = ReferenceReduce(c.dtype, c.reduction, c.scaling, inputs);
  for (const Bytes& output : running->inputs) ExpectEqual(c.dtype, expected, output, "scaled");
}

TEST_P(CommunicatorConformanceTest, Allreduce_HalfAverageNearItsLimit_DoesNotOverflow) {
  Driver driver(cluster_.get(), node_count());
  Collective c = MakeReduction(Operation::kAllreduce, DType::kFloat16, Reduction::kAverage, size_);
  c.count = 100;
  const uint16_t kFortyThousand = 0x78e2;  // 40000 in binary16: 1.2207 * 2^15.
  std::vector<Bytes> inputs(size_, Bytes(200));
  for (Bytes& input : inputs) {
    for (int i = 0; i < 100; ++i) std::memcpy(input.data() + i * 2, &kFortyThousand, 2);
  }
  auto running = driver.Prepare(c, inputs, {});
  driver.Start({0, 1}, running);
  ASSERT_TRUE(driver.Finish(running));
  for (const Bytes& output : running->inputs) {
    EXPECT_NEAR(ElementValue(c.dtype, output, 99), 40000.0,
                (size_ & (size_ - 1)) == 0 ? 0 : 40000.0 / 512);
  }
}

TEST_P(CommunicatorConformanceTest, Broadcast_EveryRootAndDType_ReachesAllRanks) {
  Driver driver(cluster_.get(), node_count());
  uint64_t sequence = 0;
  for (const DType dtype : kDTypes) {
    for (int root = 0; root < size_; ++root) {
      for (const uint64_t count : kCounts) {
        Collective c;
        c.operation = Operation::kBroadcast;
        c.dtype = dtype;
        c.root = root;
        c.count = count;
        const std::vector<uint64_t> counts(size_, count);
        const auto inputs = MakeInputs(dtype, counts, 5);
        const bool in_place = sequence % 2 == 0;
        auto running =
            driver.Prepare(c, inputs, in_place ? std::vector<Bytes>{} : MakeOutputs(dtype, counts));
        driver.Start({0, ++sequence}, running);
        ASSERT_TRUE(driver.Finish(running)) << Describe(c);
        for (const Bytes& output : in_place ? running->inputs : running->outputs) {
          ExpectEqual(dtype, inputs[root], output, Describe(c));
        }
      }
    }
  }
}

TEST_P(CommunicatorConformanceTest, Allgather_UnevenCounts_ConcatenatesInRankOrder) {
  Driver driver(cluster_.get(), node_count());
  uint64_t sequence = 0;
  for (const DType dtype : kDTypes) {
    for (const uint64_t base : kCounts) {
      Collective c;
      c.operation = Operation::kAllgather;
      c.dtype = dtype;
      uint64_t total = 0;
      for (int rank = 0; rank < size_; ++rank) c.counts.push_back(rank == 1 ? 0 : base + rank);
      for (const uint64_t count : c.counts) total += count;
      const auto inputs = MakeInputs(dtype, c.counts, 2);
      Bytes expected;
      for (const Bytes& input : inputs) expected.insert(expected.end(), input.begin(), input.end());
      auto running =
          driver.Prepare(c, inputs, MakeOutputs(dtype, std::vector<uint64_t>(size_, total)));
      driver.Start({0, ++sequence}, running);
      ASSERT_TRUE(driver.Finish(running)) << Describe(c);
      for (const Bytes& output : running->outputs)
        ExpectEqual(dtype, expected, output, Describe(c));
    }
  }
}

TEST_P(CommunicatorConformanceTest, ReduceScatter_UnevenCounts_GivesEachRankItsSlice) {
  Driver driver(cluster_.get(), node_count());
  uint64_t sequence = 0;
  for (const DType dtype : kDTypes) {
    for (const uint64_t base : kCounts) {
      Collective c = MakeReduction(Operation::kReduceScatter, dtype, Reduction::kSum, size_);
      for (int rank = 0; rank < size_; ++rank) c.counts.push_back(base + (rank % 2));
      c.count = std::accumulate(c.counts.begin(), c.counts.end(), uint64_t{0});
      const auto inputs = MakeInputs(dtype, std::vector<uint64_t>(size_, c.count), 4);
      const Bytes expected = ReferenceReduce(dtype, c.reduction, c.scaling, inputs);
      auto running = driver.Prepare(c, inputs, MakeOutputs(dtype, c.counts));
      driver.Start({0, ++sequence}, running);
      ASSERT_TRUE(driver.Finish(running)) << Describe(c);
      uint64_t start = 0;
      for (int rank = 0; rank < size_; ++rank) {
        ExpectEqual(dtype, Slice(dtype, expected, start, c.counts[rank]), running->outputs[rank],
                    Describe(c));
        ExpectEqual(dtype, inputs[rank], running->inputs[rank], "input of " + Describe(c));
        start += c.counts[rank];
      }
    }
  }
}

TEST_P(CommunicatorConformanceTest, Reduce_EveryRoot_ReachesTheRootAlone) {
  Driver driver(cluster_.get(), node_count());
  uint64_t sequence = 0;
  for (const DType dtype : kDTypes) {
    for (int root = 0; root < size_; ++root) {
      for (const uint64_t count : kCounts) {
        Collective c = MakeReduction(Operation::kReduce, dtype, Reduction::kSum, size_);
        c.root = root;
        c.count = count;
        const auto inputs = MakeInputs(dtype, std::vector<uint64_t>(size_, count), 8);
        std::vector<uint64_t> received(size_, 0);
        received[root] = count;
        const bool in_place = ++sequence % 2 == 0;
        auto running = driver.Prepare(c, inputs, MakeOutputs(dtype, received));
        for (const auto& collective : running->by_node) {
          for (RankBuffer& rank : collective->ranks) {
            const bool is_root = rank.input == running->inputs[root].data();
            if (!is_root) rank.output = nullptr;
            if (is_root && in_place) rank.output = running->inputs[root].data();
          }
        }
        driver.Start({0, sequence}, running);
        ASSERT_TRUE(driver.Finish(running)) << Describe(c);
        const Bytes expected = ReferenceReduce(dtype, c.reduction, c.scaling, inputs);
        ExpectEqual(dtype, expected, (in_place ? running->inputs : running->outputs)[root],
                    Describe(c));
        for (int rank = 0; rank < size_; ++rank) {
          if (rank != root || !in_place)
            ExpectEqual(dtype, inputs[rank], running->inputs[rank], "input of " + Describe(c));
        }
      }
    }
  }
}

TEST_P(CommunicatorConformanceTest, GatherAndScatter_UnevenCounts_AreEachOthersReverse) {
  Driver driver(cluster_.get(), node_count());
  uint64_t sequence = 0;
  for (const DType dtype : kDTypes) {
    for (int root = 0; root < size_; ++root) {
      for (const uint64_t base : kCounts) {
        Collective c;
        c.operation = Operation::kGather;
        c.dtype = dtype;
        c.root = root;
        for (int rank = 0; rank < size_; ++rank) c.counts.push_back(rank == 1 ? 0 : base + rank);
        const auto parts = MakeInputs(dtype, c.counts, 9);
        Bytes whole;
        for (const Bytes& part : parts) whole.insert(whole.end(), part.begin(), part.end());
        std::vector<uint64_t> at_root(size_, 0);
        at_root[root] = whole.size() / DTypeBytes(dtype);
        auto gathered = driver.Prepare(c, parts, MakeOutputs(dtype, at_root));
        driver.Start({0, ++sequence}, gathered);
        ASSERT_TRUE(driver.Finish(gathered)) << Describe(c);
        ExpectEqual(dtype, whole, gathered->outputs[root], Describe(c));
        c.operation = Operation::kScatter;
        std::vector<Bytes> inputs(size_);
        inputs[root] = whole;
        auto scattered = driver.Prepare(c, inputs, MakeOutputs(dtype, c.counts));
        driver.Start({0, ++sequence}, scattered);
        ASSERT_TRUE(driver.Finish(scattered)) << Describe(c);
        for (int rank = 0; rank < size_; ++rank) {
          ExpectEqual(dtype, parts[rank], scattered->outputs[rank], Describe(c));
        }
      }
    }
  }
}

TEST_P(CommunicatorConformanceTest, Alltoall_UnevenSplits_DeliversEachPart) {
  Driver driver(cluster_.get(), node_count());
  uint64_t sequence = 0;
  for (const DType dtype : {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kInt64}) {
    for (const uint64_t base : kCounts) {
      Collective c;
      c.operation = Operation::kAlltoall;
      c.dtype = dtype;
      std::vector<uint64_t> sent(size_, 0), received(size_, 0);
      for (int from = 0; from < size_; ++from) {
        for (int to = 0; to < size_; ++to) {
          c.counts.push_back((from + to) % 3 == 0 ? 0 : base + from);
          sent[from] += c.counts.back();
          received[to] += c.counts.back();
        }
      }
      const auto inputs = MakeInputs(dtype, sent, 6);
      auto running = driver.Prepare(c, inputs, MakeOutputs(dtype, received));
      driver.Start({0, ++sequence}, running);
      ASSERT_TRUE(driver.Finish(running)) << Describe(c);
      std::vector<uint64_t> position(size_, 0);
      std::vector<Bytes> expected(size_);
      for (int from = 0; from < size_; ++from) {
        for (int to = 0; to < size_; ++to) {
          const uint64_t count = c.counts[from * size_ + to];
          const Bytes part = Slice(dtype, inputs[from], position[from], count);
          expected[to].insert(expected[to].end(), part.begin(), part.end());
          position[from] += count;
        }
      }
      for (int to = 0; to < size_; ++to)
        ExpectEqual(dtype, expected[to], running->outputs[to], Describe(c));
    }
  }
}

TEST_P(CommunicatorConformanceTest, Barrier_OneNodeLate_HoldsTheOthers) {
  Driver driver(cluster_.get(), node_count());
  Collective c;
  c.operation = Operation::kBarrier;
  auto running = driver.Prepare(c, std::vector<Bytes>(size_), {});
  for (int node = 1; node < node_count(); ++node) driver.StartOn(node, {0, 1}, running);
  for (int i = 0; i < 1000; ++i) cluster_->Drive();
  EXPECT_EQ(running->finished, 0);
  driver.StartOn(0, {0, 1}, running);
  ASSERT_TRUE(driver.Finish(running));
  for (const Outcome& outcome : running->outcomes) EXPECT_TRUE(outcome.ok()) << outcome.message;
}

TEST_P(CommunicatorConformanceTest, ManyInFlight_RandomChannelsAndSizes_AllMatch) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Driver driver(cluster_.get(), node_count());
  struct Expected {
    std::shared_ptr<Running> running;
    Bytes result;
  };
  std::vector<Expected> all;
  constexpr uint32_t kChannels[] = {0, 3, 1 << 16};
  for (uint64_t sequence = 1; sequence <= 12; ++sequence) {
    for (const uint32_t channel : kChannels) {
      Collective c = MakeReduction(Operation::kAllreduce, DType::kInt32, Reduction::kSum, size_);
      c.count = std::uniform_int_distribution<uint64_t>(0, 200'000)(random);
      const auto inputs =
          MakeInputs(c.dtype, std::vector<uint64_t>(size_, c.count), channel + sequence);
      Bytes result = ReferenceReduce(c.dtype, c.reduction, c.scaling, inputs);
      all.push_back({driver.Prepare(c, inputs, {}), std::move(result)});
      all.back().running->finished = 0;
    }
  }
  // Every node starts the channels in an order of its own; within a channel the order is the same.
  for (int node = 0; node < node_count(); ++node) {
    uint64_t next[std::size(kChannels)] = {};
    for (size_t started = 0; started < all.size();) {
      const size_t channel =
          std::uniform_int_distribution<size_t>(0, std::size(kChannels) - 1)(random);
      if (next[channel] == 12) continue;
      driver.StartOn(node, {kChannels[channel], next[channel] + 1},
                     all[next[channel] * std::size(kChannels) + channel].running);
      ++next[channel];
      ++started;
      if (started % 5 == 0) cluster_->Drive();
    }
  }
  for (const Expected& expected : all) {
    ASSERT_TRUE(driver.Finish(expected.running));
    for (const Bytes& output : expected.running->inputs)
      ExpectEqual(DType::kInt32, expected.result, output, "in flight");
  }
}

TEST_P(CommunicatorConformanceTest, Abort_OperationOfOneNode_FailsOnAllAndLaterOnesWork) {
  // On one node all ranks are here and nobody is left to tell: what starts ends by itself.
  const arena::Code expected_code = node_count() == 1 ? arena::Code::kOk : arena::Code::kMismatch;
  Driver driver(cluster_.get(), node_count());
  Collective c = MakeReduction(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, size_);
  c.count = 100'000;
  const auto inputs = MakeInputs(c.dtype, std::vector<uint64_t>(size_, c.count), 1);
  auto first = driver.Prepare(c, inputs, {});
  for (int node = 1; node < node_count(); ++node) driver.StartOn(node, {0, 1}, first);
  for (int i = 0; i < 100; ++i) cluster_->Drive();
  cluster_->communicator(0)->Abort({0, 1}, {arena::Code::kMismatch, "shapes differ"});
  driver.StartOn(0, {0, 1}, first);
  ASSERT_TRUE(driver.Finish(first));
  for (const Outcome& outcome : first->outcomes) {
    EXPECT_EQ(outcome.code, expected_code);
    EXPECT_EQ(outcome.message, node_count() == 1 ? "" : "shapes differ");
  }
  auto second = driver.Prepare(c, inputs, {});
  driver.Start({0, 2}, second);
  ASSERT_TRUE(driver.Finish(second));
  const Bytes expected = ReferenceReduce(c.dtype, c.reduction, c.scaling, inputs);
  for (const Bytes& output : second->inputs)
    ExpectEqual(c.dtype, expected, output, "after the abort");
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformanceTest);

}  // namespace ringd::daemon
