#include "common/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "common/reduce/kernel_table.h"

namespace ringd {
namespace {

using reduce_internal::KernelTable;
using reduce_internal::ReduceBy;
using reduce_internal::Target;
using reduce_internal::Targets;

// Every case runs on every target that this CPU has.
class ReduceTest : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    size_t target_count = 0;
    target_ = Targets(&target_count) + GetParam();
    if (!target_->is_supported()) GTEST_SKIP() << "this CPU lacks " << target_->name;
  }

  // Reduces one element (repeated, so that vector loops and remainders both see it) and checks that
  // all come out equal.
  template <typename T>
  T ReduceOne(DType dtype, Reduction reduction, const std::vector<T>& values,
              const Scaling& scaling = Scaling()) {
    constexpr size_t kCount = 301;
    std::vector<std::vector<T>> buffers;
    for (const T& value : values) buffers.emplace_back(kCount, value);
    std::vector<const void*> inputs;
    for (const auto& buffer : buffers) inputs.push_back(buffer.data());
    std::vector<T> result(kCount);
    void* output = result.data();
    ReduceBy(*target_->kernels, dtype, reduction, inputs.data(), inputs.size(), &output, 1, kCount,
             scaling, false);
    for (const T& value : result) {
      EXPECT_EQ(std::memcmp(&value, result.data(), sizeof(T)), 0);
    }
    return result[0];
  }

  const Target* target_ = nullptr;
};

std::vector<size_t> TargetIndexes() {
  size_t target_count = 0;
  Targets(&target_count);
  std::vector<size_t> indexes;
  for (size_t i = 0; i < target_count; ++i) indexes.push_back(i);
  return indexes;
}

std::string TargetName(const testing::TestParamInfo<size_t>& info) {
  size_t target_count = 0;
  return Targets(&target_count)[info.param].name;
}

INSTANTIATE_TEST_SUITE_P(Targets, ReduceTest, testing::ValuesIn(TargetIndexes()), TargetName);

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_P(ReduceTest, Average_Float16BeyondItsRange_AccumulatesInFloat32) {
  // 40000 in float16: 2^15 * 1.220703125, bits 0x78E2.
  Scaling scaling;
  scaling.divisor = 4.0;
  const std::vector<uint16_t> inputs(4, 0x78E2);
  EXPECT_EQ(ReduceOne(DType::kFloat16, Reduction::kAverage, inputs, scaling), 0x78E2);
  EXPECT_EQ(ReduceOne(DType::kFloat16, Reduction::kSum, inputs), 0x7C00);
}

TEST_P(ReduceTest, Sum_Float16Ties_RoundToEven) {
  const auto sum = [&](uint16_t a, uint16_t b) {
    return ReduceOne<uint16_t>(DType::kFloat16, Reduction::kSum, {a, b});
  };
  EXPECT_EQ(sum(0x6800, 0x3C00), 0x6800);  // 2048 + 1 = 2049 -> 2048
  EXPECT_EQ(sum(0x6800, 0x4200), 0x6802);  // 2048 + 3 = 2051 -> 2052
  EXPECT_EQ(sum(0x7BFF, 0x4C00), 0x7C00);  // 65504 + 16 = 65520 -> infinity
  EXPECT_EQ(sum(0x7BFF, 0x4BFF), 0x7BFF);  // 65504 + 15.99 -> 65504
  EXPECT_EQ(sum(0x0001, 0x0001), 0x0002);  // Subnormals.
  EXPECT_EQ(sum(0x03FF, 0x0001), 0x0400);  // The largest subnormal + the smallest = 2^-14.
}

TEST_P(ReduceTest, Product_Float16BelowSmallestSubnormal_RoundsToEven) {
  const auto product = [&](uint16_t a, uint16_t b) {
    return ReduceOne<uint16_t>(DType::kFloat16, Reduction::kProduct, {a, b});
  };
  EXPECT_EQ(product(0x0001, 0x3800), 0x0000);  // 2^-24 / 2: a tie, to 0.
  EXPECT_EQ(product(0x0003, 0x3800), 0x0002);  // 1.5 * 2^-24: a tie, to 2 * 2^-24.
  EXPECT_EQ(product(0x0001, 0xB801), 0x8001);  // Just beyond the tie, negative.
}

TEST_P(ReduceTest, Sum_BFloat16Ties_RoundToEven) {
  const auto sum = [&](uint16_t a, uint16_t b) {
    return ReduceOne<uint16_t>(DType::kBFloat16, Reduction::kSum, {a, b});
  };
  EXPECT_EQ(sum(0x4380, 0x3F80), 0x4380);  // 256 + 1 = 257 -> 256
  EXPECT_EQ(sum(0x4381, 0x3F80), 0x4382);  // 258 + 1 = 259 -> 260
  EXPECT_EQ(sum(0x7F7F, 0x7F7F), 0x7F80);  // Overflow -> infinity.
  EXPECT_EQ(sum(0xC380, 0xBF80), 0xC380);  // -257 -> -256
}

TEST_P(ReduceTest, Sum_BFloat16OfMany_RoundsOnce) {
  // 256 + 1 + 1 + 1 = 259 in float32, a tie to 260; rounding each step would give 256.
  EXPECT_EQ(
      ReduceOne<uint16_t>(DType::kBFloat16, Reduction::kSum, {0x4380, 0x3F80, 0x3F80, 0x3F80}),
      0x4382);
}

TEST_P(ReduceTest, BFloat16_NanOfAnyKind_StaysNan) {
  Scaling scaling;
  scaling.postscale = std::nan("0x7FFFFFFFFFFFF");
  const auto is_nan = [](uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; };
  for (uint16_t nan : {0x7F81, 0x7FFF, 0xFF81, 0xFFFF}) {
    EXPECT_TRUE(is_nan(ReduceOne<uint16_t>(DType::kBFloat16, Reduction::kSum, {nan})));
    EXPECT_TRUE(is_nan(ReduceOne<uint16_t>(DType::kBFloat16, Reduction::kMax, {nan, 0x3F80})));
    EXPECT_TRUE(is_nan(ReduceOne<uint16_t>(DType::kBFloat16, Reduction::kSum, {0x3F80, nan})));
  }
  // Infinity - infinity, and a factor with every bit set.
  EXPECT_TRUE(is_nan(ReduceOne<uint16_t>(DType::kBFloat16, Reduction::kSum, {0x7F80, 0xFF80})));
  EXPECT_TRUE(is_nan(ReduceOne<uint16_t>(DType::kBFloat16, Reduction::kSum, {0x3F80}, scaling)));
}

TEST_P(ReduceTest, MinMax_Nan_PropagatesFromEitherSide) {
  for (Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    EXPECT_TRUE(std::isnan(ReduceOne<float>(DType::kFloat32, reduction, {kNan, 1})));
    EXPECT_TRUE(std::isnan(ReduceOne<float>(DType::kFloat32, reduction, {1, kNan})));
    EXPECT_TRUE(std::isnan(ReduceOne<double>(DType::kFloat64, reduction, {1, kNan, 2})));
  }
}

TEST_P(ReduceTest, MinMax_InfinityAndZeros_AreOrdered) {
  EXPECT_EQ(ReduceOne<float>(DType::kFloat32, Reduction::kMin, {1, -kInf, kInf}), -kInf);
  EXPECT_EQ(ReduceOne<float>(DType::kFloat32, Reduction::kMax, {1, -kInf, kInf}), kInf);
  EXPECT_TRUE(std::signbit(ReduceOne<float>(DType::kFloat32, Reduction::kMax, {-0.0f, 0.0f})));
  EXPECT_FALSE(std::signbit(ReduceOne<float>(DType::kFloat32, Reduction::kMin, {0.0f, -0.0f})));
}

TEST_P(ReduceTest, Average_WholeFloats_IsExact) {
  Scaling scaling;
  scaling.divisor = 3.0;  // 21 * (1 / 3.0f) rounds to a neighbour of 7; the division doesn't.
  EXPECT_EQ(ReduceOne<float>(DType::kFloat32, Reduction::kAverage, {20, 0, 1}, scaling), 7.0f);
  scaling.divisor = 49.0;
  EXPECT_EQ(ReduceOne<double>(DType::kFloat64, Reduction::kAverage, {48, 1}, scaling), 1.0);
}

TEST_P(ReduceTest, Prescale_Float32_IsNotFused) {
  // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24, in float32 1 + 2^-11: a fused multiply-add would leave
  // 2^-24.
  Scaling scaling;
  scaling.prescale = 1.0 + std::ldexp(1.0, -12);
  const float a = -(1.0f + std::ldexp(1.0f, -12));
  const float b = 1.0f + std::ldexp(1.0f, -12);
  EXPECT_EQ(ReduceOne<float>(DType::kFloat32, Reduction::kSum, {a, b}, scaling), 0.0f);
}

TEST_P(ReduceTest, Average_Integers_TruncateTowardZero) {
  Scaling half;
  half.divisor = 2.0;
  EXPECT_EQ(ReduceOne<int32_t>(DType::kInt32, Reduction::kAverage, {-1, 0}, half), 0);
  EXPECT_EQ(ReduceOne<int32_t>(DType::kInt32, Reduction::kAverage, {2, 3}, half), 2);
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, Reduction::kAverage, {-3, -2}, half), -2);
  EXPECT_EQ(ReduceOne<uint8_t>(DType::kUInt8, Reduction::kAverage, {200, 55}, half), 127);
}

TEST_P(ReduceTest, Average_Int64BeyondDouble_IsExact) {
  Scaling third;
  third.divisor = 3.0;
  const int64_t odd = (int64_t{1} << 60) + 1;
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, Reduction::kAverage, {odd, odd, odd}, third), odd);
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, Reduction::kAverage, {-odd, -odd, -odd}, third),
            -odd);
  const uint64_t large = (uint64_t{1} << 63) + 3;
  EXPECT_EQ(ReduceOne<uint64_t>(DType::kUInt64, Reduction::kAverage, {large}, third),
            uint64_t{3074457345618258603});
}

TEST_P(ReduceTest, Scaling_IntegersOutOfRange_Saturate) {
  Scaling scaling;
  scaling.prescale = 2.0;
  EXPECT_EQ(ReduceOne<uint8_t>(DType::kUInt8, Reduction::kMax, {200}, scaling), 255);
  EXPECT_EQ(ReduceOne<int8_t>(DType::kInt8, Reduction::kMin, {-100}, scaling), -128);
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, Reduction::kMin, {INT64_MAX}, scaling), INT64_MAX);
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, Reduction::kMin, {INT64_MIN}, scaling), INT64_MIN);
  EXPECT_EQ(ReduceOne<uint64_t>(DType::kUInt64, Reduction::kMin, {UINT64_MAX}, scaling),
            UINT64_MAX);
  scaling.prescale = -1.0;
  EXPECT_EQ(ReduceOne<uint32_t>(DType::kUInt32, Reduction::kMin, {7}, scaling), 0u);
  scaling.prescale = kNan;
  EXPECT_EQ(ReduceOne<int16_t>(DType::kInt16, Reduction::kMin, {7}, scaling), 0);
}

TEST_P(ReduceTest, Scaling_ByZeroDivisor_DoesNotTrap) {
  Scaling scaling;
  scaling.divisor = 0.0;
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, Reduction::kSum, {5}, scaling), INT64_MAX);
  EXPECT_EQ(ReduceOne<int64_t>(DType::kInt64, Reduction::kSum, {0}, scaling), 0);
  EXPECT_EQ(ReduceOne<float>(DType::kFloat32, Reduction::kSum, {5}, scaling), kInf);
}

TEST_P(ReduceTest, SumProduct_Integers_Wrap) {
  EXPECT_EQ(ReduceOne<int32_t>(DType::kInt32, Reduction::kSum, {INT32_MAX, 1}), INT32_MIN);
  EXPECT_EQ(ReduceOne<uint8_t>(DType::kUInt8, Reduction::kProduct, {16, 17}), 16);
  EXPECT_EQ(ReduceOne<int8_t>(DType::kInt8, Reduction::kProduct, {-3, 5, 7}), -105);
  EXPECT_EQ(ReduceOne<uint64_t>(DType::kUInt64, Reduction::kProduct,
                                {0x123456789ABCDEF0, 0xFEDCBA9876543210}),
            0x236D88FE5618CF00u);
}

TEST_P(ReduceTest, Bool_AnyNonzeroByte_IsTrueAndResultIsOne) {
  const auto reduce = [&](Reduction reduction, std::vector<uint8_t> values) {
    return static_cast<int>(ReduceOne<uint8_t>(DType::kBool, reduction, values));
  };
  EXPECT_EQ(reduce(Reduction::kSum, {0, 2, 0}), 1);
  EXPECT_EQ(reduce(Reduction::kMax, {0, 0}), 0);
  EXPECT_EQ(reduce(Reduction::kProduct, {2, 4}), 1);
  EXPECT_EQ(reduce(Reduction::kMin, {255, 0}), 0);
  EXPECT_EQ(reduce(Reduction::kSum, {128}), 1);
}

TEST_P(ReduceTest, SingleFloat16Input_EveryValue_KeepsItsBits) {
  std::vector<uint16_t> values(65536);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const uint16_t infinity = dtype == DType::kFloat16 ? 0x7C00 : 0x7F80;
    std::vector<uint16_t> result(values.size());
    const void* input = values.data();
    void* output = result.data();
    ReduceBy(*target_->kernels, dtype, Reduction::kSum, &input, 1, &output, 1, values.size(),
             Scaling(), false);
    for (size_t i = 0; i < values.size(); ++i) {
      if ((values[i] & 0x7FFF) > infinity) {
        ASSERT_GT(result[i] & 0x7FFF, infinity) << i;
      } else {
        ASSERT_EQ(result[i], values[i]) << DTypeName(dtype);
      }
    }
  }
}

TEST(IsReducible, EveryPair_MatchesTheTables) {
  size_t target_count = 0;
  const Target* targets = Targets(&target_count);
  for (size_t t = 0; t < target_count; ++t) {
    for (size_t d = 0; d < kDTypeCount; ++d) {
      for (size_t r = 0; r < kReductionCount; ++r) {
        if (!IsReducible(static_cast<DType>(d), static_cast<Reduction>(r))) continue;
        EXPECT_NE(targets[t].kernels->plain[d][r], nullptr) << d << " " << r;
        if (static_cast<DType>(d) == DType::kBool) continue;
        EXPECT_NE(targets[t].kernels->scaled[d][r], nullptr) << d << " " << r;
      }
    }
  }
}

TEST(IsReducible, OddPairs_AreRefused) {
  EXPECT_TRUE(IsReducible(DType::kBool, Reduction::kSum));
  EXPECT_FALSE(IsReducible(DType::kBool, Reduction::kAverage));
  EXPECT_FALSE(IsReducible(DType::kFloat32, Reduction::kAdasum));
  EXPECT_FALSE(IsReducible(DType::kFloat32, Reduction::kNone));
  EXPECT_FALSE(IsReducible(DType::kInvalid, Reduction::kSum));
  EXPECT_FALSE(IsReducible(static_cast<DType>(200), Reduction::kSum));
  EXPECT_FALSE(IsReducible(DType::kFloat32, static_cast<Reduction>(200)));
}

TEST(ReduceDeathTest, Reduce_NotReducible_EndsTheProcess) {
  float value = 0;
  const void* input = &value;
  void* output = &value;
  EXPECT_DEATH(Reduce(DType::kFloat32, Reduction::kAdasum, &input, 1, &output, 1, 1, Scaling()),
               "");
}

TEST(ActiveTarget, ThisCpu_IsTheFirstSupported) {
  size_t target_count = 0;
  const Target* target = Targets(&target_count);
  while (!target->is_supported()) ++target;
  EXPECT_STREQ(ActiveTarget(), target->name);
}

}  // namespace
}  // namespace ringd
