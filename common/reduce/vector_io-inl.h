// Loads, conversions and stores by element type, for one target. Part of kernels-inl.h: include
// nothing else from it.
//
// Each *Io type has: Acc, the accumulator of one step; kBytes, the bytes of a buffer that one step
// covers; Load, Store and Stream of that many bytes; and MapAcc, which applies a function of
// vectors to accumulators. Stream REQUIRES an address aligned to kBytes.
#ifndef RINGD_COMMON_REDUCE_VECTOR_IO_INL_H_
#define RINGD_COMMON_REDUCE_VECTOR_IO_INL_H_

namespace hn = hwy::HWY_NAMESPACE;

// Highway's scalar loads dereference typed pointers; buffers are only as aligned as their
// (narrower) elements.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return hn::Set(d, value);
#else
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(from));
#endif
}

template <class D>
HWY_INLINE void StoreBytes(hn::Vec<D> v, D d, uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  const hn::TFromD<D> value = hn::GetLane(v);
  (void)d;
  __builtin_memcpy(to, &value, sizeof(value));
#else
  hn::StoreU(v, d, reinterpret_cast<hn::TFromD<D>*>(to));
#endif
}

template <class D>
HWY_INLINE void StreamBytes(hn::Vec<D> v, D d, uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  StoreBytes(v, d, to);
#else
  hn::Stream(v, d, reinterpret_cast<hn::TFromD<D>*>(to));
#endif
}

// Elements that are lanes.
template <typename T>
struct LaneIo {
  using D = hn::ScalableTag<T>;
  using Acc = hn::Vec<D>;
  using Packed = Acc;
  static constexpr size_t kBytes = HWY_LANES(T) * sizeof(T);

  static HWY_INLINE Acc Load(const uint8_t* from) { return LoadBytes(D(), from); }
  static HWY_INLINE Packed Pack(Acc acc) { return acc; }
  static HWY_INLINE void Store(Packed packed, uint8_t* to) { StoreBytes(packed, D(), to); }
  static HWY_INLINE void Stream(Packed packed, uint8_t* to) { StreamBytes(packed, D(), to); }
  template <class F, class... Accs>
  static HWY_INLINE Acc MapAcc(const F& f, Accs... accs) {
    return f(accs...);
  }
};

// bool: every byte becomes 0 or 1 when loaded.
struct BoolIo : LaneIo<uint8_t> {
  static HWY_INLINE Acc Load(const uint8_t* from) {
    return hn::Min(LoadBytes(D(), from), hn::Set(D(), uint8_t{1}));
  }
};

// A vector of bfloat16 as two of float32: the elements at even places and those at odd ones.
struct BFloat16Io {
  using D = hn::ScalableTag<float>;
  using D32 = hn::RebindToUnsigned<D>;
  using V32 = hn::Vec<D32>;
  using Packed = V32;
  struct Acc {
    hn::Vec<D> even;
    hn::Vec<D> odd;
  };
  static constexpr size_t kBytes = HWY_LANES(uint32_t) * sizeof(uint32_t);

  static HWY_INLINE Acc Load(const uint8_t* from) {
    const V32 pairs = LoadBytes(D32(), from);
    return {hn::BitCast(D(), hn::ShiftLeft<16>(pairs)),
            hn::BitCast(D(), hn::And(pairs, hn::Set(D32(), 0xFFFF0000u)))};
  }
  static HWY_INLINE Packed Pack(Acc acc) {
    return hn::Or(hn::ShiftRight<16>(Round(acc.even)),
                  hn::And(Round(acc.odd), hn::Set(D32(), 0xFFFF0000u)));
  }
  static HWY_INLINE void Store(Packed packed, uint8_t* to) { StoreBytes(packed, D32(), to); }
  static HWY_INLINE void Stream(Packed packed, uint8_t* to) { StreamBytes(packed, D32(), to); }
  template <class F, class... Accs>
  static HWY_INLINE Acc MapAcc(const F& f, Accs... accs) {
    return {f(accs.even...), f(accs.odd...)};
  }

 private:
  // Rounds to the nearest multiple of 2^16, ties to even. The low half is garbage. A NaN has no low
  // half here (loaded ones don't, nor does the processor's own, and factors are canonical), so it
  // isn't carried into another value.
  static HWY_INLINE V32 Round(hn::Vec<D> v) {
    const V32 bits = hn::BitCast(D32(), v);
    const V32 is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(D32(), 1u));
    return hn::Add(bits, hn::Add(is_odd, hn::Set(D32(), 0x7FFFu)));
  }
};

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE4
#define RINGD_SOFTWARE_FLOAT16 1
#else
#define RINGD_SOFTWARE_FLOAT16 0
#endif

// Half a vector of float16 as one of float32.
struct Float16Io {
  using D = hn::ScalableTag<float>;
  using Acc = hn::Vec<D>;
  static constexpr size_t kBytes = HWY_LANES(float) * sizeof(uint16_t);

  template <class F, class... Accs>
  static HWY_INLINE Acc MapAcc(const F& f, Accs... accs) {
    return f(accs...);
  }

#if RINGD_SOFTWARE_FLOAT16
  using D16 = hn::Rebind<uint16_t, D>;
  using D32 = hn::Rebind<int32_t, D>;
  using V32 = hn::Vec<D32>;
  using Packed = hn::Vec<D16>;

  static HWY_INLINE Acc Load(const uint8_t* from) {
    const V32 half = hn::PromoteTo(D32(), LoadBytes(D16(), from));
    const V32 magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(D32(), 0x7FFF)));
    const V32 sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(D32(), 0x8000)));
    const V32 normal = hn::Add(magnitude, hn::Set(D32(), 112 << 23));  // Exponent bias 15 to 127.
    const V32 special = hn::Add(normal, hn::Set(D32(), 112 << 23));    // Exponent 31 to 255.
    const V32 smallest = hn::Set(D32(), 113 << 23);                    // 2^-14
    const V32 subnormal = hn::BitCast(
        D32(), hn::Sub(hn::BitCast(D(), hn::Add(magnitude, smallest)), hn::BitCast(D(), smallest)));
    V32 bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(D32(), 1 << 23)), subnormal, normal);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(D32(), (31 << 23) - 1)), special, bits);
    return hn::BitCast(D(), hn::Or(bits, sign));
  }
  static HWY_INLINE Packed Pack(Acc acc) {
    const V32 bits = hn::BitCast(D32(), acc);
    const V32 magnitude = hn::And(bits, hn::Set(D32(), 0x7FFFFFFF));
    const V32 sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(D32(), 0x8000));
    const V32 is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(D32(), 1));
    const V32 rounding = hn::Add(is_odd, hn::Set(D32(), 0xFFF - (112 << 23)));
    const V32 normal = hn::ShiftRight<13>(hn::Add(magnitude, rounding));
    // An ulp of 0.5f is one of a subnormal float16: the addition rounds.
    const hn::Vec<D> half = hn::Set(D(), 0.5f);
    const V32 subnormal = hn::Sub(hn::BitCast(D32(), hn::Add(hn::BitCast(D(), magnitude), half)),
                                  hn::BitCast(D32(), half));
    const V32 special = hn::IfThenElse(hn::Gt(magnitude, hn::Set(D32(), 0x7F800000)),
                                       hn::Set(D32(), 0x7E00), hn::Set(D32(), 0x7C00));
    V32 result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(D32(), 113 << 23)), subnormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(D32(), (143 << 23) - 1)), special, result);
    return hn::DemoteTo(D16(), hn::Or(result, sign));
  }
  // Half of 16 bytes, too few for a non-temporal store.
  static HWY_INLINE void Stream(Packed packed, uint8_t* to) { Store(packed, to); }
#else
  using D16 = hn::Rebind<hwy::float16_t, D>;
  using Packed = hn::Vec<D16>;

  static HWY_INLINE Acc Load(const uint8_t* from) {
    return hn::PromoteTo(D(), LoadBytes(D16(), from));
  }
  static HWY_INLINE Packed Pack(Acc acc) { return hn::DemoteTo(D16(), acc); }
  static HWY_INLINE void Stream(Packed packed, uint8_t* to) { StreamBytes(packed, D16(), to); }
#endif
  static HWY_INLINE void Store(Packed packed, uint8_t* to) { StoreBytes(packed, D16(), to); }
};

#endif  // RINGD_COMMON_REDUCE_VECTOR_IO_INL_H_
