// Small allreduces give the ring's bits, whichever way they take.
#include <gtest/gtest.h>
#include <string.h>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "common/base/types.h"
#include "common/reduce/reduce.h"
#include "daemon/collectives/ring/ring_cluster.h"

namespace ringd::daemon {
namespace {

using Tensors = std::vector<std::vector<std::byte>>;  // By rank.

class GatherAllreduceTest : public testing::TestWithParam<std::vector<int>> {
 protected:
  GatherAllreduceTest() {
    for (const int64_t gather_bytes : {0, 1 << 20}) {
      const auto costs = std::make_shared<RingCosts>(RingCosts{.gather_bytes = gather_bytes});
      clusters_.push_back(
          std::make_unique<RingCluster>(MakeLayouts(GetParam()), RingTuning{.costs = costs}));
    }
  }

  int rank_count() const { return clusters_[0]->layout(0).size(); }
  auto node_count() const { return static_cast<uint64_t>(clusters_[0]->node_count()); }

  // In place. Returns the bytes that the first node has sent.
  uint64_t Run(RingCluster* cluster, const Collective& all, Tensors* tensors) {
    std::vector<std::byte*> data;
    for (auto& tensor : *tensors) data.push_back(tensor.data());
    return cluster->RunInPlace({0, sequence_}, all, data);
  }

  Collective Allreduce(DType dtype, Reduction reduction, uint64_t count) {
    Collective collective;
    collective.operation = Operation::kAllreduce;
    collective.dtype = dtype;
    collective.reduction = reduction;
    collective.count = count;
    if (reduction == Reduction::kAverage) collective.scaling.divisor = rank_count();
    return collective;
  }

  // Bytes below 0x78 in the place of exponents: neither infinite nor NaN.
  Tensors RandomTensors(DType dtype, uint64_t count) {
    Tensors tensors(rank_count());
    for (auto& tensor : tensors) {
      tensor.resize(count * DTypeBytes(dtype));
      for (std::byte& byte : tensor) byte = static_cast<std::byte>(random_() % 0x78);
      if (dtype == DType::kBool) {
        for (std::byte& byte : tensor) byte &= std::byte{1};
      }
    }
    return tensors;
  }

  std::vector<std::unique_ptr<RingCluster>> clusters_;  // By the ring, gathered.
  uint64_t sequence_ = 0;
  std::mt19937 random_{20};
};

TEST_P(GatherAllreduceTest, EveryDTypeAndReduction_SameBitsAsByTheRing) {
  for (int d = 1; d < static_cast<int>(kDTypeCount); ++d) {
    for (int r = 1; r < static_cast<int>(kReductionCount); ++r) {
      const auto dtype = static_cast<DType>(d);
      const auto reduction = static_cast<Reduction>(r);
      if (!IsReducible(dtype, reduction)) continue;
      for (const uint64_t count : {1u, 2u, 3u, 100u, 1001u}) {
        SCOPED_TRACE(testing::Message()
                     << DTypeName(dtype) << " " << ReductionName(reduction) << " " << count);
        Collective collective = Allreduce(dtype, reduction, count);
        if (count == 100) collective.scaling.prescale = 0.75;
        Tensors by_ring = RandomTensors(dtype, count);
        Tensors gathered = by_ring;
        ++sequence_;
        Run(clusters_[0].get(), collective, &by_ring);
        Run(clusters_[1].get(), collective, &gathered);
        for (int rank = 0; rank < rank_count(); ++rank) {
          EXPECT_EQ(gathered[rank], by_ring[rank]) << "rank " << rank;
        }
      }
    }
  }
}

TEST_P(GatherAllreduceTest, Float32_IsSummedFromTheSegmentsNodeOn) {
  const uint64_t count = 8 * node_count();  // Segments of 8 elements.
  std::uniform_real_distribution<float> values(-1.0f, 1.0f);
  Tensors tensors(rank_count(), std::vector<std::byte>(count * sizeof(float)));
  for (auto& tensor : tensors) {
    for (uint64_t i = 0; i < count; ++i) {
      const float value = values(random_);
      memcpy(&tensor[i * sizeof(float)], &value, sizeof(value));
    }
  }
  const auto node_sum = [&](uint64_t node, uint64_t element) {
    const GroupLayout::Node& part = clusters_[0]->layout(0).nodes[node];
    float sum = 0;
    for (int rank = part.first_rank; rank < part.first_rank + part.rank_count; ++rank) {
      float value;
      memcpy(&value, &tensors[rank][element * sizeof(float)], sizeof(value));
      sum = rank == part.first_rank ? value : sum + value;
    }
    return sum;
  };
  std::vector<float> expected(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t segment = i / 8;
    expected[i] = node_sum(segment, i);
    for (uint64_t step = 1; step < node_count(); ++step) {
      expected[i] += node_sum((segment + step) % node_count(), i);
    }
  }
  ++sequence_;
  for (const auto& cluster : clusters_) {
    Tensors results = tensors;
    Run(cluster.get(), Allreduce(DType::kFloat32, Reduction::kSum, count), &results);
    for (const auto& result : results) {
      EXPECT_EQ(memcmp(result.data(), expected.data(), result.size()), 0);
    }
  }
}

TEST_P(GatherAllreduceTest, WholeSumsGoOnce_WhileAllNodesSumsFitAPiece) {
  const uint64_t limit = (256 << 10) / node_count() / sizeof(float);
  const uint64_t n = node_count();
  for (const uint64_t count : {limit, limit + 1}) {
    Tensors tensors = RandomTensors(DType::kFloat32, count);
    ++sequence_;
    const uint64_t sent =
        Run(clusters_[1].get(), Allreduce(DType::kFloat32, Reduction::kSum, count), &tensors);
    const double bytes = static_cast<double>(count * sizeof(float));
    const double expected = count == limit ? static_cast<double>(n - 1) * bytes
                                           : 2 * bytes * static_cast<double>(n - 1) / n;
    EXPECT_NEAR(static_cast<double>(sent), expected, 64) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatherAllreduceTest,
                         testing::Values(std::vector<int>{1, 1}, std::vector<int>{2, 2},
                                         std::vector<int>{1, 1, 1}, std::vector<int>{1, 2, 3, 1},
                                         std::vector<int>{1, 1, 1, 1},
                                         std::vector<int>{1, 2, 1, 1, 1}, std::vector<int>(8, 1)));

}  // namespace
}  // namespace ringd::daemon
