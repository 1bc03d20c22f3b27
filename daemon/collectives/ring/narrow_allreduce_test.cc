// Allreduces that travel narrower, on rings of several shapes.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "common/reduce/wire_dtype.h"
#include "daemon/collectives/ring/ring_cluster.h"

namespace ringd::daemon {
namespace {

using Floats = std::vector<float>;

constexpr WireDType kWires[] = {WireDType::kBFloat16, WireDType::kFloat16, WireDType::kFloat8E4M3,
                                WireDType::kFloat8E5M2};
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<std::vector<int>> Shapes() { return {{1, 1}, {2, 2}, {1, 1, 1}, {1, 2, 3, 1}}; }

// Half a unit in the last place, relative to the number.
double Precision(WireDType wire) {
  switch (wire) {
    case WireDType::kBFloat16:
      return std::ldexp(1, -8);
    case WireDType::kFloat16:
      return std::ldexp(1, -11);
    case WireDType::kFloat8E4M3:
      return std::ldexp(1, -4);
    default:
      return std::ldexp(1, -3);
  }
}

class NarrowAllreduceTest : public testing::Test {
 protected:
  void Form(const std::vector<int>& ranks) {
    cluster_ = std::make_unique<RingCluster>(MakeLayouts(ranks));
    size_ = cluster_->layout(0).size();
    sequence_ = 0;
  }

  static Collective Allreduce(WireDType wire, uint64_t count, DType dtype = DType::kFloat32,
                              Reduction reduction = Reduction::kSum) {
    Collective c;
    c.operation = Operation::kAllreduce;
    c.dtype = dtype;
    c.reduction = reduction;
    c.wire = wire;
    c.count = count;
    c.signature = 1;
    return c;
  }

  // Results by rank. outputs null: in place.
  template <typename T>
  std::vector<Outcome> Run(const Collective& prototype, std::vector<std::vector<T>>* inputs,
                           std::vector<std::vector<T>>* outputs) {
    const int node_count = cluster_->node_count();
    std::vector<Outcome> outcomes(node_count);
    int finished = 0;
    ++sequence_;
    for (int node = 0; node < node_count; ++node) {
      auto collective = std::make_shared<Collective>(prototype);
      const GroupLayout& layout = cluster_->layout(node);
      for (int i = 0; i < layout.local_count(); ++i) {
        const int rank = layout.first_local_rank() + i;
        auto& output = outputs == nullptr ? (*inputs)[rank] : (*outputs)[rank];
        collective->ranks.push_back({reinterpret_cast<const std::byte*>((*inputs)[rank].data()),
                                     reinterpret_cast<std::byte*>(output.data())});
      }
      cluster_->communicator(node)->Start({0, sequence_}, collective,
                                          [&outcomes, &finished, node](const Outcome& outcome) {
                                            outcomes[node] = outcome;
                                            ++finished;
                                          });
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (finished < node_count && std::chrono::steady_clock::now() < end) cluster_->Drive();
    EXPECT_EQ(finished, node_count);
    return outcomes;
  }

  std::vector<Floats> RandomInputs(uint64_t count, unsigned seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<Floats> inputs(size_, Floats(count));
    for (Floats& input : inputs) {
      for (float& value : input) value = normal(random);
    }
    return inputs;
  }

  std::unique_ptr<RingCluster> cluster_;
  int size_ = 0;
  uint64_t sequence_ = 0;
};

// Sums up to 7 times a power of two have 3 significant bits: they fit every type.
TEST_F(NarrowAllreduceTest, NumbersThatFit_EverySizeAndPlace_AreExact) {
  for (const std::vector<int>& shape : Shapes()) {
    Form(shape);
    for (const WireDType wire : kWires) {
      for (const uint64_t count : {0, 1, 3, 31, 32, 33, 127, 1000, 65'537, 300'001}) {
        for (const bool in_place : {true, false}) {
          std::vector<Floats> inputs(size_, Floats(count));
          Floats expected(count);
          for (int rank = 0; rank < size_; ++rank) {
            for (uint64_t i = 0; i < count; ++i) {
              inputs[rank][i] = (i + rank) % 3 == 0 ? 0.0f : std::ldexp(1.0f, i / 7 % 4);
              expected[i] += inputs[rank][i];
            }
          }
          const std::vector<Floats> before = inputs;
          std::vector<Floats> outputs(size_, Floats(count, -1));
          for (const Outcome& outcome :
               Run(Allreduce(wire, count), &inputs, in_place ? nullptr : &outputs)) {
            ASSERT_TRUE(outcome.ok()) << outcome.message;
          }
          for (int rank = 0; rank < size_; ++rank) {
            ASSERT_EQ((in_place ? inputs : outputs)[rank], expected)
                << WireDTypeName(wire) << " count " << count << " rank " << rank;
          }
          if (!in_place) {
            ASSERT_EQ(inputs, before);
          }
        }
      }
    }
  }
}

// Every hop rounds a sum of at most the inputs' magnitudes; blocks bound what is lost of small
// ones.
TEST_F(NarrowAllreduceTest, RandomNumbers_AreNearAndEqualOnAllRanks) {
  constexpr uint64_t kCount = 200'003;
  for (const std::vector<int>& shape : Shapes()) {
    Form(shape);
    for (const WireDType wire : kWires) {
      std::vector<Floats> inputs = RandomInputs(kCount, 5);
      std::vector<double> expected(kCount), magnitude(kCount);
      for (const Floats& input : inputs) {
        for (uint64_t i = 0; i < kCount; ++i) {
          expected[i] += input[i] / double(size_);
          magnitude[i] += std::fabs(input[i]) / double(size_);
        }
      }
      Collective c = Allreduce(wire, kCount, DType::kFloat32, Reduction::kAverage);
      c.scaling.divisor = size_;
      Run(c, &inputs, static_cast<std::vector<Floats>*>(nullptr));
      for (int rank = 1; rank < size_; ++rank) ASSERT_EQ(inputs[rank], inputs[0]);
      const int hops = cluster_->node_count();
      for (uint64_t i = 0; i < kCount; ++i) {
        const double bound = hops * Precision(wire) * (1.2 * magnitude[i] + 1e-3);
        ASSERT_NEAR(inputs[0][i], expected[i], bound) << WireDTypeName(wire) << " at " << i;
      }
    }
  }
}

// Blocks of the tensor don't share a scale, wherever segments end.
TEST_F(NarrowAllreduceTest, LargeNumbersBesideABlock_CostItNothing) {
  for (const std::vector<int>& shape : Shapes()) {
    Form(shape);
    for (const uint64_t count : {64u, 96u, 1000u, 300'001u}) {
      std::vector<Floats> inputs(size_, Floats(count));
      for (Floats& input : inputs) {
        for (uint64_t i = 0; i < count; ++i) input[i] = i / 32 % 2 == 0 ? 1e-6f : 1e6f;
      }
      Run(Allreduce(WireDType::kFloat8E4M3, count), &inputs,
          static_cast<std::vector<Floats>*>(nullptr));
      for (uint64_t i = 0; i < count; ++i) {
        const double expected = size_ * (i / 32 % 2 == 0 ? 1e-6 : 1e6);
        ASSERT_NEAR(inputs[0][i], expected, expected / 4) << i << " of " << count;
      }
    }
  }
}

TEST_F(NarrowAllreduceTest, BytesOnTheWire_AreThoseOfTheNarrowType) {
  constexpr uint64_t kCount = 12 * 64 * 1000;  // Whole blocks in every segment.
  for (const std::vector<int>& shape : Shapes()) {
    Form(shape);
    const auto n = static_cast<uint64_t>(cluster_->node_count());
    uint64_t before = 0;
    for (const WireDType wire : kWires) {
      std::vector<Floats> inputs(size_, Floats(kCount, 1.0f));
      Run(Allreduce(wire, kCount), &inputs, static_cast<std::vector<Floats>*>(nullptr));
      const bool is_half = wire == WireDType::kBFloat16 || wire == WireDType::kFloat16;
      const uint64_t whole = is_half ? 2 * kCount : kCount + kCount / 32;
      const uint64_t sent = cluster_->communicator(0)->counters().bytes_sent - before;
      before += sent;
      EXPECT_EQ(sent, 2 * (n - 1) * whole / n) << WireDTypeName(wire);
    }
  }
}

TEST_F(NarrowAllreduceTest, InfinityAndNan_ReachAllRanksAsNotFinite) {
  for (const std::vector<int>& shape : Shapes()) {
    Form(shape);
    for (const WireDType wire : kWires) {
      std::vector<Floats> inputs(size_, Floats(1000, 1.0f));
      inputs[1][0] = inputs[0][500] = kInf;
      inputs[size_ - 1][999] = std::nanf("");
      Run(Allreduce(wire, 1000), &inputs, static_cast<std::vector<Floats>*>(nullptr));
      for (const Floats& result : inputs) {
        for (const int i : {0, 500, 999}) EXPECT_FALSE(std::isfinite(result[i])) << i;
        EXPECT_EQ(result[0] == kInf, wire != WireDType::kFloat8E4M3);
        EXPECT_EQ(result[1], size_);
      }
    }
  }
}

TEST_F(NarrowAllreduceTest, Float16AverageNearItsLimit_DoesNotOverflow) {
  Form({2, 1, 1});
  std::vector<Floats> inputs(size_, Floats(100, 40000.0f));
  Collective c = Allreduce(WireDType::kFloat16, 100, DType::kFloat32, Reduction::kAverage);
  c.scaling.divisor = size_;
  Run(c, &inputs, static_cast<std::vector<Floats>*>(nullptr));
  for (const Floats& result : inputs) EXPECT_EQ(result[99], 40000.0f);
}

TEST_F(NarrowAllreduceTest, MaxOf16BitTensors_TravelsAsFloat8) {
  Form({1, 2, 1});
  constexpr uint16_t kTwo = 0x4000, kThree = 0x4040;  // bfloat16
  std::vector<std::vector<uint16_t>> inputs(size_, std::vector<uint16_t>(5000, kTwo));
  inputs[2][4999] = kThree;
  Run(Allreduce(WireDType::kFloat8E4M3, 5000, DType::kBFloat16, Reduction::kMax), &inputs,
      static_cast<std::vector<std::vector<uint16_t>>*>(nullptr));
  for (const auto& result : inputs) {
    EXPECT_EQ(result[0], kTwo);
    EXPECT_EQ(result[4999], kThree);
  }
}

TEST_F(NarrowAllreduceTest, DTypeThatCannotNarrow_FailsByName) {
  Form({1, 1});
  std::vector<std::vector<int32_t>> inputs(size_, std::vector<int32_t>(10));
  const auto outcomes = Run(Allreduce(WireDType::kBFloat16, 10, DType::kInt32), &inputs,
                            static_cast<std::vector<std::vector<int32_t>>*>(nullptr));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, arena::Code::kInvalidArgument);
    EXPECT_EQ(outcome.message, "int32 can't travel as bf16");
  }
}

}  // namespace
}  // namespace ringd::daemon
