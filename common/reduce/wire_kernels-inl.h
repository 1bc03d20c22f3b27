// Conversions of wire_dtype.h between float32 and the narrower types, for one target. Part of
// kernels-inl.h: include nothing else from it.
#ifndef RINGD_COMMON_REDUCE_WIRE_KERNELS_INL_H_
#define RINGD_COMMON_REDUCE_WIRE_KERNELS_INL_H_

using WireD = hn::ScalableTag<float>;
using WireD32 = hn::Rebind<int32_t, WireD>;
using WireU32 = hn::Rebind<uint32_t, WireD>;
inline constexpr size_t kWireLanes = HWY_LANES(float);
static_assert(kWireBlock % kWireLanes == 0);

// One vector of float32 and as many elements of 16 bits.
struct WireFloat16 {
  static HWY_INLINE void Narrow(const uint8_t* from, uint8_t* to) {
    Float16Io::Store(Float16Io::Pack(LoadBytes(WireD(), from)), to);
  }
  static HWY_INLINE void Widen(const uint8_t* from, uint8_t* to) {
    StoreBytes(Float16Io::Load(from), WireD(), to);
  }
};

// Unlike BFloat16Io, it gets NaNs whose low half isn't 0.
struct WireBFloat16 {
  using D16 = hn::Rebind<uint16_t, WireD>;

  static HWY_INLINE void Narrow(const uint8_t* from, uint8_t* to) {
    const auto bits = LoadBytes(WireU32(), from);
    const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(WireU32(), 1u));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(bits, hn::Add(is_odd, hn::Set(WireU32(), 0x7FFFu))));
    const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(WireU32(), 0x40u));
    const auto is_nan = hn::RebindMask(WireU32(), hn::IsNaN(hn::BitCast(WireD(), bits)));
    const auto result = hn::IfThenElse(is_nan, nan, rounded);
    StoreBytes(hn::DemoteTo(D16(), hn::BitCast(WireD32(), result)), D16(), to);
  }
  static HWY_INLINE void Widen(const uint8_t* from, uint8_t* to) {
    const auto high = hn::ShiftLeft<16>(hn::PromoteTo(WireU32(), LoadBytes(D16(), from)));
    StoreBytes(high, WireU32(), to);
  }
};

template <class Io>
void NarrowTo16(const void* from, size_t count, void* to) {
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  size_t at = 0;
  for (; count - at >= kWireLanes; at += kWireLanes) Io::Narrow(source + 4 * at, target + 2 * at);
  if (at == count) return;
  uint8_t wide[4 * kWireLanes] = {};
  uint8_t narrow[2 * kWireLanes];
  CopyFew(source + 4 * at, wide, 4 * (count - at));
  Io::Narrow(wide, narrow);
  CopyFew(narrow, target + 2 * at, 2 * (count - at));
}

template <class Io>
void WidenFrom16(const void* from, size_t count, void* to) {
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  size_t at = 0;
  for (; count - at >= kWireLanes; at += kWireLanes) Io::Widen(source + 2 * at, target + 4 * at);
  if (at == count) return;
  uint8_t narrow[2 * kWireLanes] = {};
  uint8_t wide[4 * kWireLanes];
  CopyFew(source + 2 * at, narrow, 2 * (count - at));
  Io::Widen(narrow, wide);
  CopyFew(wide, target + 4 * at, 4 * (count - at));
}

// An 8-bit format: exponents from 1 - kBias to kMaxExponent. With infinity it is that of IEEE 754;
// without, the largest exponent has numbers too, and only the largest code is NaN. The largest
// number is 1.75 * 2^kMaxExponent in both that there are.
template <int kMantissaBits, int kBias, int kMaxExp, bool kHasInfinity>
struct Float8 {
  using V = hn::Vec<WireD>;
  using V32 = hn::Vec<WireD32>;
  static constexpr int kMaxExponent = kMaxExp;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int32_t kRebias = (127 - kBias) << 23;
  static constexpr int32_t kSmallestNormal = (128 - kBias) << 23;
  // The number whose unit in the last place is one of a subnormal number.
  static constexpr int32_t kRounder = (127 + 24 - kBias - kMantissaBits) << 23;
  static constexpr int32_t kInfinity = 0x7F & ~((1 << kMantissaBits) - 1);
  static constexpr int32_t kNan = 0x7F;

  // REQUIRES: not above the largest number, unless infinite.
  static HWY_INLINE V32 Encode(V v) {
    const V32 bits = hn::BitCast(WireD32(), v);
    const V32 magnitude = hn::And(bits, hn::Set(WireD32(), 0x7FFFFFFF));
    const V32 sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(WireD32(), 0x80));
    const V32 is_odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(WireD32(), 1));
    const V32 rounding = hn::Add(is_odd, hn::Set(WireD32(), (1 << (kShift - 1)) - 1 - kRebias));
    const V32 normal = hn::ShiftRight<kShift>(hn::Add(magnitude, rounding));
    const V rounder = hn::BitCast(WireD(), hn::Set(WireD32(), kRounder));
    const V32 subnormal =
        hn::Sub(hn::BitCast(WireD32(), hn::Add(hn::BitCast(WireD(), magnitude), rounder)),
                hn::Set(WireD32(), kRounder));
    const V32 is_special = hn::Set(WireD32(), 0x7F800000);
    V32 result =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(WireD32(), kSmallestNormal)), subnormal, normal);
    result = hn::IfThenElse(hn::Lt(magnitude, is_special), result,
                            hn::Set(WireD32(), kHasInfinity ? kInfinity : kNan));
    result = hn::IfThenElse(hn::Gt(magnitude, is_special), hn::Set(WireD32(), kNan), result);
    return hn::Or(result, sign);
  }

  static HWY_INLINE V Decode(V32 codes) {
    const V32 code = hn::And(codes, hn::Set(WireD32(), 0x7F));
    const V32 sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(WireD32(), 0x80)));
    const V32 shifted = hn::ShiftLeft<kShift>(code);
    const V32 normal = hn::Add(shifted, hn::Set(WireD32(), kRebias));
    const V32 smallest = hn::Set(WireD32(), kSmallestNormal);
    const V32 subnormal = hn::BitCast(
        WireD32(),
        hn::Sub(hn::BitCast(WireD(), hn::Add(shifted, smallest)), hn::BitCast(WireD(), smallest)));
    V32 bits =
        hn::IfThenElse(hn::Lt(code, hn::Set(WireD32(), 1 << kMantissaBits)), subnormal, normal);
    if (kHasInfinity) {
      // Exponent to 255; what was NaN stays that.
      const V32 special = hn::Add(normal, hn::Set(WireD32(), kRebias));
      bits = hn::IfThenElse(hn::Lt(code, hn::Set(WireD32(), kInfinity)), bits, special);
    } else {
      bits = hn::IfThenElse(hn::Eq(code, hn::Set(WireD32(), kNan)), hn::Set(WireD32(), 0x7FC00000),
                            bits);
    }
    return hn::BitCast(WireD(), hn::Or(bits, sign));
  }
};

using Float8E4M3 = Float8<3, 7, 8, false>;
using Float8E5M2 = Float8<2, 15, 15, true>;

// The block's scale byte, from the bits of its largest finite magnitude.
template <class F>
HWY_INLINE int32_t ScaleOf(int32_t largest) {
  const int32_t is_over = (largest & 0x7FFFFF) > 0x600000 ? 1 : 0;  // Of 1.75.
  const int32_t scale = (largest >> 23) - F::kMaxExponent + is_over;
  return scale < 1 ? 1 : scale;  // So that the scale and its inverse are normal numbers.
}

HWY_INLINE hn::Vec<WireD> PowerOfTwo(int32_t biased_exponent) {
  return hn::BitCast(WireD(), hn::Set(WireD32(), biased_exponent << 23));
}

template <class F>
HWY_INLINE void NarrowBlock(const uint8_t* from, uint8_t* to) {
  using D8 = hn::Rebind<uint8_t, WireD32>;
  auto largest = hn::Zero(WireD32());
  for (size_t i = 0; i < kWireBlock; i += kWireLanes) {
    const auto bits = hn::And(LoadBytes(WireD32(), from + 4 * i), hn::Set(WireD32(), 0x7FFFFFFF));
    const auto is_finite = hn::Lt(bits, hn::Set(WireD32(), 0x7F800000));
    largest = hn::Max(largest, hn::IfThenElseZero(is_finite, bits));
  }
  const int32_t scale = ScaleOf<F>(hn::GetLane(hn::MaxOfLanes(WireD32(), largest)));
  const auto inverse = PowerOfTwo(254 - scale);
  // The whole block is read before any of it is written: `to` may be `from`.
  uint8_t codes[kWireBlock];
  for (size_t i = 0; i < kWireBlock; i += kWireLanes) {
    const auto scaled = hn::Mul(LoadBytes(WireD(), from + 4 * i), inverse);
    StoreBytes(hn::DemoteTo(D8(), F::Encode(scaled)), D8(), codes + i);
  }
  to[0] = static_cast<uint8_t>(scale);
  __builtin_memcpy(to + 1, codes, kWireBlock);
}

template <class F>
HWY_INLINE void WidenBlock(const uint8_t* from, uint8_t* to) {
  using D8 = hn::Rebind<uint8_t, WireD32>;
  const auto scale = PowerOfTwo(from[0]);
  for (size_t i = 0; i < kWireBlock; i += kWireLanes) {
    const auto codes = hn::PromoteTo(WireD32(), LoadBytes(D8(), from + 1 + i));
    StoreBytes(hn::Mul(F::Decode(codes), scale), WireD(), to + 4 * i);
  }
}

template <class F>
void NarrowTo8(const void* from, size_t count, void* to) {
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  for (; count >= kWireBlock; count -= kWireBlock) {
    NarrowBlock<F>(source, target);
    source += 4 * kWireBlock;
    target += 1 + kWireBlock;
  }
  if (count == 0) return;
  uint8_t wide[4 * kWireBlock] = {};
  uint8_t narrow[1 + kWireBlock];
  __builtin_memcpy(wide, source, 4 * count);
  NarrowBlock<F>(wide, narrow);
  __builtin_memcpy(target, narrow, 1 + count);
}

template <class F>
void WidenFrom8(const void* from, size_t count, void* to) {
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  for (; count >= kWireBlock; count -= kWireBlock) {
    WidenBlock<F>(source, target);
    source += 1 + kWireBlock;
    target += 4 * kWireBlock;
  }
  if (count == 0) return;
  uint8_t narrow[1 + kWireBlock] = {};
  uint8_t wide[4 * kWireBlock];
  __builtin_memcpy(narrow, source, 1 + count);
  WidenBlock<F>(narrow, wide);
  __builtin_memcpy(target, wide, 4 * count);
}

constexpr void FillConversions(KernelTable& table) {
  const auto fill = [&table](WireDType wire, Conversion narrow, Conversion widen) {
    table.narrow[static_cast<size_t>(wire)] = narrow;
    table.widen[static_cast<size_t>(wire)] = widen;
  };
  fill(WireDType::kBFloat16, &NarrowTo16<WireBFloat16>, &WidenFrom16<WireBFloat16>);
  fill(WireDType::kFloat16, &NarrowTo16<WireFloat16>, &WidenFrom16<WireFloat16>);
  fill(WireDType::kFloat8E4M3, &NarrowTo8<Float8E4M3>, &WidenFrom8<Float8E4M3>);
  fill(WireDType::kFloat8E5M2, &NarrowTo8<Float8E5M2>, &WidenFrom8<Float8E5M2>);
}

#endif  // RINGD_COMMON_REDUCE_WIRE_KERNELS_INL_H_
