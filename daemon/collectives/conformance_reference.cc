#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "daemon/collectives/conformance.h"

namespace ringd::daemon {
namespace {

// Conversions written out by hand, apart from the code under test. Only values that are exact in 16
// bits come here.
float HalfToFloat(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

// The nearest of all finite halves, found in their sorted list; of two equally near the even one.
uint16_t FloatToHalf(float value) {
  constexpr uint16_t kInfinity = 0x7c00;
  static const std::vector<float> all = [] {
    std::vector<float> values;
    for (uint16_t bits = 0; bits < kInfinity; ++bits) values.push_back(HalfToFloat(bits));
    return values;
  }();
  const float magnitude = std::fabs(value);
  auto above =
      static_cast<uint16_t>(std::lower_bound(all.begin(), all.end(), magnitude) - all.begin());
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (above == kInfinity) return sign | (kInfinity - 1);
  if (above == 0) return sign;
  const uint16_t below = above - 1;
  const float up = all[above] - magnitude, down = magnitude - all[below];
  if (down < up || (down == up && below % 2 == 0)) above = below;
  return sign | above;
}

float BFloatToFloat(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t FloatToBFloat(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  const uint32_t lower = wide & 0xffff;
  uint16_t upper = wide >> 16;
  if (lower > 0x8000 || (lower == 0x8000 && upper % 2 == 1)) ++upper;
  return upper;
}

template <typename T>
T Load(const Bytes& bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(Bytes* bytes, uint64_t index, T value) {
  std::memcpy(bytes->data() + index * sizeof(T), &value, sizeof(T));
}

void StoreValue(DType dtype, Bytes* bytes, uint64_t index, double value) {
  switch (dtype) {
    case DType::kUInt8:
      return Store<uint8_t>(bytes, index, value);
    case DType::kInt8:
      return Store<int8_t>(bytes, index, value);
    case DType::kUInt16:
      return Store<uint16_t>(bytes, index, value);
    case DType::kInt16:
      return Store<int16_t>(bytes, index, value);
    case DType::kUInt32:
      return Store<uint32_t>(bytes, index, value);
    case DType::kInt32:
      return Store<int32_t>(bytes, index, value);
    case DType::kUInt64:
      return Store<uint64_t>(bytes, index, value);
    case DType::kInt64:
      return Store<int64_t>(bytes, index, value);
    case DType::kFloat16:
      return Store<uint16_t>(bytes, index, FloatToHalf(value));
    case DType::kBFloat16:
      return Store<uint16_t>(bytes, index, FloatToBFloat(value));
    case DType::kFloat32:
      return Store<float>(bytes, index, value);
    case DType::kFloat64:
      return Store<double>(bytes, index, value);
    case DType::kBool:
      return Store<uint8_t>(bytes, index, value != 0);
    default:
      FAIL() << "dtype";
  }
}

bool IsInteger(DType dtype) { return dtype >= DType::kUInt8 && dtype <= DType::kInt64; }

}  // namespace

double ElementValue(DType dtype, const Bytes& bytes, uint64_t index) {
  switch (dtype) {
    case DType::kUInt8:
      return Load<uint8_t>(bytes, index);
    case DType::kInt8:
      return Load<int8_t>(bytes, index);
    case DType::kUInt16:
      return Load<uint16_t>(bytes, index);
    case DType::kInt16:
      return Load<int16_t>(bytes, index);
    case DType::kUInt32:
      return Load<uint32_t>(bytes, index);
    case DType::kInt32:
      return Load<int32_t>(bytes, index);
    case DType::kUInt64:
      return static_cast<double>(Load<uint64_t>(bytes, index));
    case DType::kInt64:
      return static_cast<double>(Load<int64_t>(bytes, index));
    case DType::kFloat16:
      return HalfToFloat(Load<uint16_t>(bytes, index));
    case DType::kBFloat16:
      return BFloatToFloat(Load<uint16_t>(bytes, index));
    case DType::kFloat32:
      return Load<float>(bytes, index);
    case DType::kFloat64:
      return Load<double>(bytes, index);
    case DType::kBool:
      return Load<uint8_t>(bytes, index) != 0;
    default:
      return 0;
  }
}

Bytes MakeInput(DType dtype, uint64_t count, int rank, unsigned seed) {
  // One table of a few values for each dtype: 16-bit conversions by search are slow.
  constexpr int kValues = 4;
  Bytes table(kValues * DTypeBytes(dtype));
  for (int i = 0; i < kValues; ++i)
    StoreValue(dtype, &table, i, dtype == DType::kBool ? i % 2 : i + 1);
  Bytes bytes(count * DTypeBytes(dtype));
  const size_t width = DTypeBytes(dtype);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t pick = (i * 7 + static_cast<uint64_t>(rank) * 13 + seed + i / 5) % kValues;
    std::memcpy(bytes.data() + i * width, table.data() + pick * width, width);
  }
  return bytes;
}

Bytes ReferenceReduce(DType dtype, Reduction reduction, const Scaling& scaling,
                      const std::vector<Bytes>& inputs) {
  const uint64_t count = inputs[0].size() / DTypeBytes(dtype);
  Bytes result(inputs[0].size());
  double memo_key = NAN;
  Bytes memo(DTypeBytes(dtype));
  for (uint64_t i = 0; i < count; ++i) {
    double total = 0;
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      double value = ElementValue(dtype, inputs[rank], i) * scaling.prescale;
      if (IsInteger(dtype)) value = std::trunc(value);
      if (rank == 0) {
        total = value;
      } else if (reduction == Reduction::kMin) {
        total = std::min(total, value);
      } else if (reduction == Reduction::kMax) {
        total = std::max(total, value);
      } else if (reduction == Reduction::kProduct) {
        total *= value;
      } else {
        total += value;
      }
    }
    if (dtype != DType::kBool) total = total * scaling.postscale / scaling.divisor;
    if (IsInteger(dtype)) total = std::trunc(total);
    if (total != memo_key) {
      StoreValue(dtype, &memo, 0, total);
      memo_key = total;
    }
    std::memcpy(result.data() + i * memo.size(), memo.data(), memo.size());
  }
  return result;
}

}  // namespace ringd::daemon
