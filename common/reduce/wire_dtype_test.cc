// Each target's conversions against arithmetic on doubles, for every code and around every
// boundary between codes.
#include "common/reduce/wire_dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "common/reduce/kernel_table.h"

namespace ringd {
namespace {

using reduce_internal::Target;
using reduce_internal::Targets;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A format by arithmetic on doubles. max: its largest number.
struct Format {
  WireDType wire;
  int bits;
  int mantissa_bits;
  int bias;
  double max;
  bool has_infinity;

  int sign() const { return 1 << (bits - 1); }
  int infinity() const { return (sign() - 1) & ~((1 << mantissa_bits) - 1); }
  bool IsNan(int code) const {
    const int magnitude = code & (sign() - 1);
    return has_infinity ? magnitude > infinity() : magnitude == sign() - 1;
  }
  double Decode(int code) const {
    if (IsNan(code)) return std::nan("");
    const int magnitude = code & (sign() - 1);
    const int exponent = magnitude >> mantissa_bits;
    const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : std::ldexp((1 << mantissa_bits) + mantissa,
                                              exponent - bias - mantissa_bits);
    if (has_infinity && magnitude == infinity()) value = HUGE_VAL;
    return (code & sign()) != 0 ? -value : value;
  }
  // To the nearest number, of two as near to the one with an even code.
  int Encode(double value) const {
    const int negative = std::signbit(value) ? sign() : 0;
    if (std::isnan(value)) return sign() - 1;
    const double magnitude = std::fabs(value);
    if (std::isinf(magnitude)) return has_infinity ? negative | infinity() : sign() - 1;
    const int smallest = 1 - bias;
    const int exponent = magnitude == 0 ? smallest : std::max(std::ilogb(magnitude), smallest);
    const double unit = std::ldexp(1.0, exponent - mantissa_bits);
    const double rounded = std::nearbyint(magnitude / unit) * unit;
    if (rounded > max) return negative | infinity();
    // A carry into the next exponent is right as it is.
    const int code = static_cast<int>(std::llround(rounded / unit));
    return negative | (code + ((exponent - smallest) << mantissa_bits));
  }
};

constexpr Format kBFloat16 = {WireDType::kBFloat16, 16, 7, 127, 0x1.FEp127, true};
constexpr Format kFloat16 = {WireDType::kFloat16, 16, 10, 15, 65504, true};
constexpr Format kE4M3 = {WireDType::kFloat8E4M3, 8, 3, 7, 448, false};
constexpr Format kE5M2 = {WireDType::kFloat8E5M2, 8, 2, 15, 57344, true};

void ForTargets(const std::function<void(const Target&)>& check) {
  size_t target_count = 0;
  const Target* const targets = Targets(&target_count);
  for (size_t t = 0; t < target_count; ++t) {
    if (!targets[t].is_supported()) continue;
    SCOPED_TRACE(targets[t].name);
    check(targets[t]);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Guarded behind its end; the address is odd.
Bytes NarrowBy(const Target& target, WireDType wire, const Floats& values) {
  constexpr size_t kGuard = 64;
  const size_t bytes = WireBytes(DType::kFloat32, wire, values.size());
  Bytes room(1 + bytes + kGuard, 0xA5);
  target.kernels->narrow[static_cast<size_t>(wire)](values.data(), values.size(), room.data() + 1);
  for (size_t i = 0; i < kGuard; ++i) EXPECT_EQ(room[1 + bytes + i], 0xA5);
  return Bytes(room.begin() + 1, room.begin() + 1 + static_cast<long>(bytes));
}

Floats WidenBy(const Target& target, WireDType wire, const Bytes& bytes, size_t count) {
  constexpr size_t kGuard = 32;
  Floats values(count + kGuard, -7);
  Bytes room(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), room.begin() + 1);
  target.kernels->widen[static_cast<size_t>(wire)](room.data() + 1, count, values.data());
  for (size_t i = 0; i < kGuard; ++i) EXPECT_EQ(values[count + i], -7);
  values.resize(count);
  return values;
}

bool Same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// Each number of the format, the middle between it and the next, and their neighbours in float32.
Floats Boundaries(const Format& format) {
  Floats values = {0.0f, -0.0f, kInf, -kInf, kNan, 1e-45f, -1e-45f};
  for (int code = 0; code < format.infinity(); ++code) {
    const double here = format.Decode(code);
    const double next = code + 1 < format.infinity() ? format.Decode(code + 1) : format.max;
    for (const double value : {here, (here + next) / 2}) {
      const auto single = static_cast<float>(value);
      for (const float near :
           {single, std::nextafter(single, kInf), std::nextafter(single, -kInf)}) {
        values.push_back(near);
        values.push_back(-near);
      }
    }
  }
  return values;
}

Floats RandomFloats(size_t count, int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  Floats values(count);
  for (float& value : values) {
    const auto bits = static_cast<uint32_t>(random());
    std::memcpy(&value, &bits, sizeof(value));
  }
  return values;
}

void Check16(const Format& format) {
  Floats values = Boundaries(format);
  const Floats more = RandomFloats(50'000, 1);
  values.insert(values.end(), more.begin(), more.end());
  ForTargets([&](const Target& target) {
    const Bytes narrow = NarrowBy(target, format.wire, values);
    const Floats wide = WidenBy(target, format.wire, narrow, values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t code = 0;
      std::memcpy(&code, narrow.data() + 2 * i, 2);
      const int expected = format.Encode(values[i]);
      if (format.IsNan(expected)) {
        ASSERT_TRUE(format.IsNan(code)) << values[i];
      } else {
        ASSERT_EQ(code, expected) << values[i] << " at " << i;
      }
      ASSERT_TRUE(Same(wide[i], format.Decode(code))) << code;
    }
  });
}

TEST(WireDTypeTest, Narrow_BFloat16_RoundsToNearestEven) { Check16(kBFloat16); }

TEST(WireDTypeTest, Narrow_Float16_RoundsToNearestEven) { Check16(kFloat16); }

TEST(WireDTypeTest, Narrow_NanWithALowPayload_StaysNan) {
  const uint32_t bits[] = {0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF};
  Floats values(4);
  std::memcpy(values.data(), bits, sizeof(bits));
  ForTargets([&](const Target& target) {
    for (const Format& format : {kBFloat16, kFloat16, kE4M3, kE5M2}) {
      const Bytes narrow = NarrowBy(target, format.wire, values);
      for (const float value : WidenBy(target, format.wire, narrow, 4)) {
        EXPECT_TRUE(std::isnan(value));
      }
    }
  });
}

TEST(WireDTypeTest, Widen_EveryCodeOf16Bits_IsItsNumber) {
  Bytes codes(2 * 65536);
  for (int code = 0; code < 65536; ++code) std::memcpy(codes.data() + 2 * code, &code, 2);
  ForTargets([&](const Target& target) {
    for (const Format& format : {kBFloat16, kFloat16}) {
      const Floats values = WidenBy(target, format.wire, codes, 65536);
      for (int code = 0; code < 65536; ++code) {
        ASSERT_TRUE(Same(values[code], format.Decode(code))) << code;
      }
    }
  });
}

TEST(WireDTypeTest, Widen_EveryCodeOf8BitsAndEveryScale_IsItsProduct) {
  ForTargets([&](const Target& target) {
    for (const Format& format : {kE4M3, kE5M2}) {
      for (int scale = 1; scale < 255; ++scale) {
        Bytes blocks;
        for (int code = 0; code < 256; ++code) {
          if (code % kWireBlock == 0) blocks.push_back(static_cast<uint8_t>(scale));
          blocks.push_back(static_cast<uint8_t>(code));
        }
        const Floats values = WidenBy(target, format.wire, blocks, 256);
        for (int code = 0; code < 256; ++code) {
          const auto expected = static_cast<float>(std::ldexp(format.Decode(code), scale - 127));
          ASSERT_TRUE(Same(values[code], expected)) << code << " scale " << scale;
        }
      }
    }
  });
}

// The smallest scale from 1 on by which the block's largest finite number fits.
int ExpectedScale(const Format& format, const float* values, size_t count) {
  double largest = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i])) largest = std::max(largest, std::fabs(double{values[i]}));
  }
  int scale = 1;
  while (std::ldexp(largest, 127 - scale) > format.max) ++scale;
  return scale;
}

void CheckBlocks(const Target& target, const Format& format, const Floats& values) {
  const Bytes narrow = NarrowBy(target, format.wire, values);
  ASSERT_EQ(narrow.size(), values.size() + (values.size() + 31) / 32);
  for (size_t begin = 0; begin < values.size(); begin += 32) {
    const size_t count = std::min<size_t>(32, values.size() - begin);
    const uint8_t* const block = narrow.data() + begin / 32 * 33;
    const int scale = ExpectedScale(format, values.data() + begin, count);
    ASSERT_EQ(block[0], scale) << "block at " << begin;
    for (size_t i = 0; i < count; ++i) {
      const float value = values[begin + i];
      const int expected = format.Encode(std::ldexp(double{value}, 127 - scale));
      if (format.IsNan(expected)) {
        ASSERT_TRUE(format.IsNan(block[1 + i])) << value;
      } else {
        ASSERT_EQ(block[1 + i], expected) << value << " scale " << scale;
      }
    }
  }
}

TEST(WireDTypeTest, Narrow_EveryBoundaryOf8Bits_RoundsToNearestEven) {
  ForTargets([&](const Target& target) {
    for (const Format& format : {kE4M3, kE5M2}) {
      Floats values;
      for (const float value : Boundaries(format)) {
        if (std::isfinite(value) && std::fabs(value) > format.max) continue;
        if (values.size() % 32 == 0) values.push_back(static_cast<float>(format.max));  // Scale 1.
        values.push_back(value);
      }
      CheckBlocks(target, format, values);
    }
  });
}

TEST(WireDTypeTest, Narrow_BlocksOfEveryMagnitude_FitByTheSmallestScale) {
  Floats values;
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (const float mantissa : {1.0f, 1.5f, 1.75f, std::nextafter(1.75f, 2.0f), 1.9999999f}) {
      const float largest = std::ldexp(mantissa, exponent);
      for (int i = 0; i < 32; ++i) {
        const float sign = i % 3 == 0 ? -1 : 1;
        values.push_back(sign * std::ldexp(largest, -i));
      }
    }
  }
  ForTargets([&](const Target& target) {
    CheckBlocks(target, kE4M3, values);
    CheckBlocks(target, kE5M2, values);
  });
}

TEST(WireDTypeTest, Narrow_RandomNumbersOfEveryLength_MatchTheReference) {
  ForTargets([&](const Target& target) {
    for (size_t count = 0; count < 100; ++count) {
      Floats values = RandomFloats(count, static_cast<int>(count));
      for (size_t i = 0; i < count; i += 2) values[i] = static_cast<float>(std::sin(i) * 1e-3);
      for (const Format& format : {kE4M3, kE5M2}) CheckBlocks(target, format, values);
      for (const Format& format : {kBFloat16, kFloat16}) {
        EXPECT_EQ(NarrowBy(target, format.wire, values).size(), 2 * count);
      }
    }
  });
}

TEST(WireDTypeTest, Narrow_BlockOfZerosInfinitiesAndNan_KeepsThem) {
  Floats values(96, 0.0f);
  values[1] = -0.0f;
  for (size_t i = 32; i < 64; ++i) values[i] = i % 2 == 0 ? kInf : kNan;
  values[64] = 3.0f;
  values[65] = kInf;
  values[66] = -kInf;
  ForTargets([&](const Target& target) {
    for (const Format& format : {kE4M3, kE5M2}) {
      CheckBlocks(target, format, values);
      const Floats wide =
          WidenBy(target, format.wire, NarrowBy(target, format.wire, values), values.size());
      EXPECT_TRUE(Same(wide[0], 0.0) && Same(wide[1], -0.0));
      EXPECT_TRUE(format.has_infinity ? wide[32] == kInf : std::isnan(wide[32]));
      EXPECT_TRUE(std::isnan(wide[33]));
      EXPECT_EQ(wide[64], 3.0f);
      EXPECT_EQ(wide[66] == -kInf, format.has_infinity);
    }
  });
}

TEST(WireDTypeTest, NarrowToWire_InPlace_GivesTheSame) {
  for (const Format& format : {kBFloat16, kFloat16, kE4M3, kE5M2}) {
    Floats values = RandomFloats(5000, 3);
    Bytes beside(WireBytes(DType::kFloat32, format.wire, values.size()));
    NarrowToWire(DType::kFloat32, format.wire, values.data(), values.size(), beside.data());
    NarrowToWire(DType::kFloat32, format.wire, values.data(), values.size(), values.data());
    EXPECT_EQ(std::memcmp(values.data(), beside.data(), beside.size()), 0);
  }
}

TEST(WireDTypeTest, NarrowToWire_16BitTensors_GoByWayOfFloat32) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const Format& own = dtype == DType::kFloat16 ? kFloat16 : kBFloat16;
    constexpr size_t kCount = 3001;
    std::vector<uint16_t> tensor(kCount);
    Floats values(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      tensor[i] = static_cast<uint16_t>(own.Encode(std::sin(static_cast<double>(i))));
      values[i] = static_cast<float>(own.Decode(tensor[i]));
    }
    for (const Format& format : {kE4M3, kE5M2}) {
      Bytes expected(WireBytes(DType::kFloat32, format.wire, kCount));
      NarrowToWire(DType::kFloat32, format.wire, values.data(), kCount, expected.data());
      ASSERT_EQ(WireBytes(dtype, format.wire, kCount), expected.size());
      Bytes narrow(expected.size());
      NarrowToWire(dtype, format.wire, tensor.data(), kCount, narrow.data());
      EXPECT_EQ(narrow, expected);
      Floats wide(kCount);
      WidenFromWire(DType::kFloat32, format.wire, narrow.data(), kCount, wide.data());
      std::vector<uint16_t> back(kCount);
      WidenFromWire(dtype, format.wire, narrow.data(), kCount, back.data());
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(back[i], own.Encode(wide[i]));
      std::vector<uint16_t> in_place = tensor;
      NarrowToWire(dtype, format.wire, in_place.data(), kCount, in_place.data());
      EXPECT_EQ(std::memcmp(in_place.data(), expected.data(), expected.size()), 0);
    }
  }
}

TEST(WireDTypeTest, RoundToWire_KeepsWhatIsLost) {
  for (const Format& format : {kBFloat16, kFloat16, kE4M3, kE5M2}) {
    SCOPED_TRACE(WireDTypeName(format.wire));
    constexpr size_t kCount = 2500;
    const Floats values = RandomFloats(kCount, 5);
    Floats data = values;
    Floats residual(kCount, 0.0f);
    RoundToWire(DType::kFloat32, format.wire, data.data(), residual.data(), kCount);
    Bytes narrow(WireBytes(DType::kFloat32, format.wire, kCount));
    NarrowToWire(DType::kFloat32, format.wire, values.data(), kCount, narrow.data());
    Floats expected(kCount);
    WidenFromWire(DType::kFloat32, format.wire, narrow.data(), kCount, expected.data());
    for (size_t i = 0; i < kCount; ++i) {
      if (!std::isfinite(expected[i])) {
        ASSERT_EQ(residual[i], 0.0f);
        continue;
      }
      ASSERT_EQ(data[i], expected[i]);
      ASSERT_EQ(double{data[i]} + double{residual[i]}, double{values[i]});
    }
  }
}

TEST(WireDTypeTest, RoundToWire_SmallNumbersOfABlockArriveInTheirTurn) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(DTypeName(dtype));
    // 2^-9 is E4M3's smallest number beside 256, and a quarter of it rounds to 0.
    const std::vector<double> values = {256.0, 0x1p-11};
    const Format& own = dtype == DType::kFloat16 ? kFloat16 : kBFloat16;
    double total = 0;
    Floats wide(2);
    std::vector<uint16_t> half(2);
    std::vector<uint8_t> residual(8, 0);
    for (int step = 0; step < 64; ++step) {
      for (size_t i = 0; i < 2; ++i) {
        wide[i] = static_cast<float>(values[i]);
        half[i] = static_cast<uint16_t>(own.Encode(values[i]));
      }
      void* const data = dtype == DType::kFloat32 ? static_cast<void*>(wide.data()) : half.data();
      RoundToWire(dtype, WireDType::kFloat8E4M3, data, residual.data(), 2);
      const double small = dtype == DType::kFloat32 ? wide[1] : own.Decode(half[1]);
      ASSERT_TRUE(small == 0 || small == 0x1p-9) << small;
      total += small;
    }
    EXPECT_EQ(total, 64 * 0x1p-11);
  }
}

TEST(WireDTypeTest, CanNarrow_FloatsOnly) {
  EXPECT_TRUE(CanNarrow(DType::kInt32, WireDType::kSame));
  EXPECT_FALSE(CanNarrow(DType::kInt32, WireDType::kBFloat16));
  EXPECT_FALSE(CanNarrow(DType::kFloat64, WireDType::kFloat8E4M3));
  EXPECT_FALSE(CanNarrow(DType::kFloat16, WireDType::kBFloat16));
  EXPECT_TRUE(CanNarrow(DType::kBFloat16, WireDType::kFloat8E5M2));
  EXPECT_TRUE(CanNarrow(DType::kFloat32, WireDType::kFloat16));
  EXPECT_FALSE(CanNarrow(DType::kFloat32, static_cast<WireDType>(kWireDTypeCount)));
  EXPECT_FALSE(CanNarrow(DType::kInvalid, WireDType::kSame));
  EXPECT_STREQ(WireDTypeName(WireDType::kFloat8E4M3), "fp8_e4m3");
  EXPECT_STREQ(WireDTypeName(static_cast<WireDType>(200)), "invalid");
}

}  // namespace
}  // namespace ringd
