// Sweeps every dtype and reduction over counts, numbers of inputs, aliasing, alignment and scaling
// on each target that this CPU has, against a scalar reference that shares nothing with the
// kernels.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/types.h"
#include "common/reduce/kernel_table.h"
#include "common/reduce/reduce.h"

namespace ringd {
namespace {

using reduce_internal::ReduceBy;
using reduce_internal::Target;
using reduce_internal::Targets;
using Bytes = std::vector<uint8_t>;

struct Case {
  DType dtype;
  Reduction reduction;
  size_t count;
  size_t input_count;
  Scaling scaling;
};

std::string Describe(const Case& c) {
  return std::string(DTypeName(c.dtype)) + " " + ReductionName(c.reduction) +
         " count=" + std::to_string(c.count) + " inputs=" + std::to_string(c.input_count) +
         " prescale=" + std::to_string(c.scaling.prescale) +
         " postscale=" + std::to_string(c.scaling.postscale) +
         " divisor=" + std::to_string(c.scaling.divisor);
}

// A 16-bit floating format, by arithmetic on doubles.
struct HalfFormat {
  int mantissa_bits;
  int min_exponent;
  int max_exponent;

  double Decode(uint16_t bits) const {
    const int magnitude = bits & 0x7FFF;
    const int exponent = magnitude >> mantissa_bits;
    const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    double value = std::ldexp(mantissa, min_exponent - mantissa_bits);
    if (exponent == max_exponent - min_exponent + 2) {
      value = mantissa == 0 ? HUGE_VAL : std::nan("");
    } else if (exponent > 0) {
      value =
          std::ldexp((1 << mantissa_bits) + mantissa, exponent - 1 + min_exponent - mantissa_bits);
    }
    return (bits & 0x8000) != 0 ? -value : value;
  }

  uint16_t Encode(double value) const {
    const int infinity = (max_exponent - min_exponent + 2) << mantissa_bits;
    const int sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return static_cast<uint16_t>(infinity + 1);
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return static_cast<uint16_t>(sign);
    if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
    const int exponent = std::max(std::ilogb(magnitude), min_exponent);
    // Ties to even; a carry into the next exponent is right as it is.
    const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    const int64_t bits = static_cast<int64_t>(units) +
                         (static_cast<int64_t>(exponent - min_exponent) << mantissa_bits);
    return static_cast<uint16_t>(sign | std::min<int64_t>(bits, infinity));
  }
};

constexpr HalfFormat kFloat16Format = {10, -14, 15};
constexpr HalfFormat kBFloat16Format = {7, -126, 127};

template <typename T>
T Combine(Reduction reduction, T a, T b) {
  switch (reduction) {
    case Reduction::kMin:
    case Reduction::kMax:
      if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      }
      return (reduction == Reduction::kMin ? b < a : b > a) ? b : a;
    case Reduction::kProduct:
      if constexpr (std::is_integral_v<T>) {
        unsigned __int128 product =
            static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b);
        return static_cast<T>(product);
      } else {
        return a * b;
      }
    default:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<__int128>(a) + static_cast<__int128>(b));
      } else {
        return a + b;
      }
  }
}

template <typename T>
T Truncate(double value) {
  if (std::isnan(value)) return 0;
  const long double whole = std::trunc(static_cast<long double>(value));
  if (whole <= static_cast<long double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  if (whole >= static_cast<long double>(std::numeric_limits<T>::max())) {
    return std::numeric_limits<T>::max();
  }
  return static_cast<T>(whole);
}

template <typename T>
T ReduceElement(const Case& c, const std::vector<T>& values) {
  const Scaling& s = c.scaling;
  const auto prescaled = [&](T value) -> T {
    if constexpr (std::is_integral_v<T>) {
      return s.prescale == 1.0 ? value : Truncate<T>(static_cast<double>(value) * s.prescale);
    } else {
      return value * static_cast<T>(s.prescale);
    }
  };
  T acc = prescaled(values[0]);
  for (size_t j = 1; j < values.size(); ++j)
    acc = Combine<T>(c.reduction, acc, prescaled(values[j]));
  if constexpr (std::is_integral_v<T>) {
    if (s.postscale == 1.0 && s.divisor == 1.0) return acc;
    if (s.postscale == 1.0) {  // The sweep's divisors are whole.
      return static_cast<T>(static_cast<__int128>(acc) / static_cast<__int128>(s.divisor));
    }
    return Truncate<T>(static_cast<double>(acc) * s.postscale / s.divisor);
  } else {
    return acc * static_cast<T>(s.postscale) / static_cast<T>(s.divisor);
  }
}

template <typename T>
void ReferenceOf(const Case& c, const std::vector<Bytes>& inputs, Bytes* result) {
  std::vector<T> values(inputs.size());
  for (size_t e = 0; e < c.count; ++e) {
    for (size_t j = 0; j < inputs.size(); ++j) {
      std::memcpy(&values[j], inputs[j].data() + e * sizeof(T), sizeof(T));
    }
    const T element = ReduceElement<T>(c, values);
    std::memcpy(result->data() + e * sizeof(T), &element, sizeof(T));
  }
}

void HalfReference(const Case& c, const HalfFormat& format, const std::vector<Bytes>& inputs,
                   Bytes* result) {
  std::vector<float> values(inputs.size());
  for (size_t e = 0; e < c.count; ++e) {
    for (size_t j = 0; j < inputs.size(); ++j) {
      uint16_t bits = 0;
      std::memcpy(&bits, inputs[j].data() + e * 2, 2);
      values[j] = static_cast<float>(format.Decode(bits));
    }
    const uint16_t bits = format.Encode(ReduceElement<float>(c, values));
    std::memcpy(result->data() + e * 2, &bits, 2);
  }
}

void BoolReference(const Case& c, const std::vector<Bytes>& inputs, Bytes* result) {
  const bool is_and = c.reduction == Reduction::kMin || c.reduction == Reduction::kProduct;
  for (size_t e = 0; e < c.count; ++e) {
    size_t true_count = 0;
    for (const Bytes& input : inputs) true_count += input[e] != 0 ? 1 : 0;
    (*result)[e] = is_and ? true_count == inputs.size() : true_count > 0;
  }
}

Bytes Reference(const Case& c, const std::vector<Bytes>& inputs) {
  Bytes result(c.count * DTypeBytes(c.dtype));
  switch (c.dtype) {
    case DType::kUInt8:
      ReferenceOf<uint8_t>(c, inputs, &result);
      break;
    case DType::kInt8:
      ReferenceOf<int8_t>(c, inputs, &result);
      break;
    case DType::kUInt16:
      ReferenceOf<uint16_t>(c, inputs, &result);
      break;
    case DType::kInt16:
      ReferenceOf<int16_t>(c, inputs, &result);
      break;
    case DType::kUInt32:
      ReferenceOf<uint32_t>(c, inputs, &result);
      break;
    case DType::kInt32:
      ReferenceOf<int32_t>(c, inputs, &result);
      break;
    case DType::kUInt64:
      ReferenceOf<uint64_t>(c, inputs, &result);
      break;
    case DType::kInt64:
      ReferenceOf<int64_t>(c, inputs, &result);
      break;
    case DType::kFloat16:
      HalfReference(c, kFloat16Format, inputs, &result);
      break;
    case DType::kBFloat16:
      HalfReference(c, kBFloat16Format, inputs, &result);
      break;
    case DType::kFloat32:
      ReferenceOf<float>(c, inputs, &result);
      break;
    case DType::kFloat64:
      ReferenceOf<double>(c, inputs, &result);
      break;
    default:
      BoolReference(c, inputs, &result);
  }
  return result;
}

bool IsNan(DType dtype, const uint8_t* element) {
  uint16_t half = 0;
  float single = 0;
  double twice = 0;
  switch (dtype) {
    case DType::kFloat16:
      std::memcpy(&half, element, 2);
      return (half & 0x7FFF) > 0x7C00;
    case DType::kBFloat16:
      std::memcpy(&half, element, 2);
      return (half & 0x7FFF) > 0x7F80;
    case DType::kFloat32:
      std::memcpy(&single, element, 4);
      return std::isnan(single);
    case DType::kFloat64:
      std::memcpy(&twice, element, 8);
      return std::isnan(twice);
    default:
      return false;
  }
}

// Equal bits, or NaN in both.
testing::AssertionResult SameElements(const Case& c, const Bytes& expected, const uint8_t* actual) {
  if (c.count == 0 || std::memcmp(expected.data(), actual, expected.size()) == 0) {
    return testing::AssertionSuccess();
  }
  const size_t size = DTypeBytes(c.dtype);
  for (size_t e = 0; e < c.count; ++e) {
    const uint8_t* want = expected.data() + e * size;
    const uint8_t* got = actual + e * size;
    if (std::memcmp(want, got, size) == 0) continue;
    if (IsNan(c.dtype, want) && IsNan(c.dtype, got)) continue;
    return testing::AssertionFailure()
           << Describe(c) << ": element " << e << " is "
           << testing::PrintToString(Bytes(got, got + size)) << ", expected "
           << testing::PrintToString(Bytes(want, want + size));
  }
  return testing::AssertionSuccess();
}

// Random bits, which for floating types are of every class; half of float32 and float64 are near 1,
// so that sums round.
Bytes RandomBuffer(const Case& c, std::mt19937_64* random) {
  Bytes buffer(c.count * DTypeBytes(c.dtype));
  for (uint8_t& byte : buffer) byte = static_cast<uint8_t>((*random)());
  for (size_t e = 0; e < c.count; ++e) {
    if ((*random)() % 2 == 0) continue;
    const double value = static_cast<double>(static_cast<int64_t>((*random)())) * 0x1p-62;
    const auto single = static_cast<float>(value);
    if (c.dtype == DType::kFloat32) std::memcpy(buffer.data() + e * 4, &single, 4);
    if (c.dtype == DType::kFloat64) std::memcpy(buffer.data() + e * 8, &value, 8);
    if (c.dtype == DType::kBool) buffer[e] = 0;
  }
  return buffer;
}

enum class Aliasing { kNone, kEveryInput, kLastInput };

// A buffer at a given distance from an aligned address, guarded on both sides.
class PlacedBuffer {
 public:
  static constexpr size_t kGuardBytes = 64;
  static constexpr uint8_t kGuard = 0xA5;

  PlacedBuffer(const Bytes& content, size_t offset_bytes)
      : size_(content.size()), storage_(content.size() + 4 * kGuardBytes, kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    begin_ = kGuardBytes + (kGuardBytes - address % kGuardBytes) % kGuardBytes + offset_bytes;
    if (size_ > 0) std::memcpy(data(), content.data(), size_);
  }
  uint8_t* data() { return storage_.data() + begin_; }
  bool IsGuardIntact() const {
    for (size_t i = 0; i < storage_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_) && storage_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  size_t size_;
  size_t begin_ = 0;
  Bytes storage_;
};

class TargetsTest : public testing::Test {
 protected:
  // Runs one placement on one target and compares every output with the reference.
  void Check(const Target& target, const Case& c, const std::vector<Bytes>& contents,
             const Bytes& expected, Aliasing aliasing, size_t offset_elements, bool stream) {
    const size_t size = DTypeBytes(c.dtype);
    std::vector<PlacedBuffer> buffers;
    for (size_t j = 0; j < contents.size(); ++j) {
      buffers.emplace_back(contents[j], stream ? 0 : (offset_elements * (j + 1)) % 16 * size);
    }
    std::vector<const void*> inputs;
    for (PlacedBuffer& buffer : buffers) inputs.push_back(buffer.data());
    const Bytes blank(expected.size(), 0xEE);
    std::vector<PlacedBuffer> separate;
    for (size_t k = 0; k < 2; ++k) separate.emplace_back(blank, offset_elements * size);
    std::vector<void*> outputs;
    if (aliasing == Aliasing::kEveryInput) {
      for (PlacedBuffer& buffer : buffers) outputs.push_back(buffer.data());
    } else if (aliasing == Aliasing::kLastInput) {
      outputs = {buffers.back().data(), separate[0].data()};
    } else {
      outputs = {separate[0].data(), separate[1].data()};
    }
    ReduceBy(*target.kernels, c.dtype, c.reduction, inputs.data(), inputs.size(), outputs.data(),
             outputs.size(), c.count, c.scaling, stream);
    for (void* output : outputs) {
      ASSERT_TRUE(SameElements(c, expected, static_cast<const uint8_t*>(output))) << target.name;
    }
    for (const PlacedBuffer& buffer : buffers) ASSERT_TRUE(buffer.IsGuardIntact()) << Describe(c);
    for (const PlacedBuffer& buffer : separate) ASSERT_TRUE(buffer.IsGuardIntact()) << Describe(c);
  }

  void CheckEverywhere(const Case& c) {
    std::vector<Bytes> contents;
    for (size_t j = 0; j < c.input_count; ++j) contents.push_back(RandomBuffer(c, &random_));
    const Bytes expected = Reference(c, contents);
    size_t target_count = 0;
    const Target* targets = Targets(&target_count);
    for (size_t t = 0; t < target_count; ++t) {
      if (!targets[t].is_supported()) continue;
      for (size_t offset : {size_t{0}, size_t{3}}) {
        Check(targets[t], c, contents, expected, Aliasing::kNone, offset, false);
        Check(targets[t], c, contents, expected, Aliasing::kEveryInput, offset, false);
        Check(targets[t], c, contents, expected, Aliasing::kLastInput, offset, false);
        Check(targets[t], c, contents, expected, Aliasing::kNone, offset, true);
        if (HasFatalFailure()) return;
      }
    }
  }

  void Sweep(DType dtype, const Scaling& scaling) {
    for (Reduction reduction : {Reduction::kSum, Reduction::kAverage, Reduction::kMin,
                                Reduction::kMax, Reduction::kProduct}) {
      if (!IsReducible(dtype, reduction)) continue;
      for (size_t count : {0, 1, 3, 7, 16, 17, 63, 1000}) {
        for (size_t input_count : {1, 2, 3, 4, 5}) {
          CheckEverywhere({dtype, reduction, count, input_count, scaling});
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  std::mt19937_64 random_{20240613};
};

constexpr DType kDTypes[] = {DType::kUInt8,   DType::kInt8,     DType::kUInt16,  DType::kInt16,
                             DType::kUInt32,  DType::kInt32,    DType::kUInt64,  DType::kInt64,
                             DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64,
                             DType::kBool};

TEST_F(TargetsTest, Reduce_Unscaled_MatchesReference) {
  for (DType dtype : kDTypes) ASSERT_NO_FATAL_FAILURE(Sweep(dtype, Scaling()));
}

TEST_F(TargetsTest, Reduce_WithDivisor_MatchesReference) {
  Scaling scaling;
  scaling.divisor = 3.0;
  for (DType dtype : kDTypes) ASSERT_NO_FATAL_FAILURE(Sweep(dtype, scaling));
}

TEST_F(TargetsTest, Reduce_WithEveryFactor_MatchesReference) {
  Scaling scaling;
  scaling.prescale = 0.3;
  scaling.postscale = 1.7;
  scaling.divisor = 7.0;
  for (DType dtype : kDTypes) ASSERT_NO_FATAL_FAILURE(Sweep(dtype, scaling));
}

TEST_F(TargetsTest, Reduce_MostBuffers_MatchesReference) {
  for (DType dtype : kDTypes) {
    ASSERT_NO_FATAL_FAILURE(
        CheckEverywhere({dtype, Reduction::kMax, 333, kMaxReduceBuffers, Scaling()}));
  }
}

TEST_F(TargetsTest, Reduce_ManyHalves_RoundAsReference) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (Reduction reduction : {Reduction::kSum, Reduction::kProduct}) {
      ASSERT_NO_FATAL_FAILURE(CheckEverywhere({dtype, reduction, 100003, 2, Scaling()}));
    }
  }
}

}  // namespace
}  // namespace ringd
