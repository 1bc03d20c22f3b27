// Reductions of integers with factors, for one target: plain loops that the compiler vectorises.
// Part of kernels-inl.h: include nothing else from it.
#ifndef RINGD_COMMON_REDUCE_INTEGER_SCALING_INL_H_
#define RINGD_COMMON_REDUCE_INTEGER_SCALING_INL_H_

// Truncates toward zero; saturates; 0 for NaN.
template <typename T>
HWY_INLINE T TruncateDouble(double value) {
  constexpr T kMin = hwy::LimitsMin<T>();
  constexpr T kMax = hwy::LimitsMax<T>();
  double v = value == value ? value : 0.0;
  if constexpr (sizeof(T) < 8) {
    v = v < static_cast<double>(kMin) ? static_cast<double>(kMin) : v;
    v = v > static_cast<double>(kMax) ? static_cast<double>(kMax) : v;
    return static_cast<T>(v);
  } else {
    // kMax + 1 is a power of two, kMax itself is no double.
    constexpr double kEnd = static_cast<double>(kMax / 2 + 1) * 2.0;
    if (v >= kEnd) return kMax;
    if (v <= static_cast<double>(kMin)) return kMin;
    return static_cast<T>(v);
  }
}

struct IntegerSum {
  template <typename T>
  static HWY_INLINE T Apply(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct IntegerProduct {
  template <typename T>
  static HWY_INLINE T Apply(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
struct IntegerMin {
  template <typename T>
  static HWY_INLINE T Apply(T a, T b) {
    return b < a ? b : a;
  }
};
struct IntegerMax {
  template <typename T>
  static HWY_INLINE T Apply(T a, T b) {
    return b > a ? b : a;
  }
};

constexpr size_t kIntegerBlockBytes = 4096;  // Accumulators stay in the first-level cache.

// to[e] = from[e] * factor.
template <typename T>
void LoadIntegers(const uint8_t* from, double factor, T* to, size_t count) {
  __builtin_memcpy(to, from, count * sizeof(T));
  if (factor == 1.0) return;
  for (size_t e = 0; e < count; ++e) {
    to[e] = TruncateDouble<T>(static_cast<double>(to[e]) * factor);
  }
}

// acc[e] *= postscale, acc[e] /= divisor.
template <typename T>
void FinishIntegers(const Scaling& scaling, T* acc, size_t count) {
  const double postscale = scaling.postscale;
  const double divisor = scaling.divisor;
  if (postscale == 1.0 && divisor == 1.0) return;
  constexpr double kMaxWhole = 9007199254740992.0;  // 2^53
  // Narrower types need no integer division: the quotient of doubles is never rounded up to a whole
  // number.
  if (sizeof(T) == 8 && postscale == 1.0 && divisor >= 1.0 && divisor <= kMaxWhole &&
      divisor == static_cast<double>(static_cast<int64_t>(divisor))) {
    const T whole = static_cast<T>(divisor);
    for (size_t e = 0; e < count; ++e) acc[e] = static_cast<T>(acc[e] / whole);
    return;
  }
  for (size_t e = 0; e < count; ++e) {
    acc[e] = TruncateDouble<T>(static_cast<double>(acc[e]) * postscale / divisor);
  }
}

template <typename T, class Op>
void ReduceScaledIntegers(const KernelArgs& args) {
  T acc[kIntegerBlockBytes / sizeof(T)];
  T next[kIntegerBlockBytes / sizeof(T)];
  const double prescale = args.scaling.prescale;
  size_t block_bytes = 0;
  for (size_t at = args.begin_bytes; at < args.end_bytes; at += block_bytes) {
    const size_t left = args.end_bytes - at;
    block_bytes = left < kIntegerBlockBytes ? left : kIntegerBlockBytes;
    const size_t count = block_bytes / sizeof(T);
    LoadIntegers(static_cast<const uint8_t*>(args.inputs[0]) + at, prescale, acc, count);
    for (size_t j = 1; j < args.input_count; ++j) {
      LoadIntegers(static_cast<const uint8_t*>(args.inputs[j]) + at, prescale, next, count);
      for (size_t e = 0; e < count; ++e) acc[e] = Op::Apply(acc[e], next[e]);
    }
    FinishIntegers(args.scaling, acc, count);
    for (size_t k = 0; k < args.output_count; ++k) {
      __builtin_memcpy(static_cast<uint8_t*>(args.outputs[k]) + at, acc, block_bytes);
    }
  }
}

#endif  // RINGD_COMMON_REDUCE_INTEGER_SCALING_INL_H_
