// The kernels of one target. Compiled once for each, by a source that defines RINGD_REDUCE_KERNELS
// (the name of the table) and is given the target's -m flags; Highway derives its static target
// from these.
//
// Everything but the table is in an anonymous namespace or forced inline: an inline function with a
// weak symbol, of ours or of the standard library, could be the copy the linker keeps, and run on a
// CPU without the instructions (symbols_test checks). So no standard headers with out-of-line
// inline functions here. -ffp-contract=off keeps multiply and add apart, whatever the target.
#ifndef RINGD_COMMON_REDUCE_KERNELS_INL_H_
#define RINGD_COMMON_REDUCE_KERNELS_INL_H_

#include <stddef.h>
#include <stdint.h>

#include "common/reduce/kernel_table.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();

namespace ringd::reduce_internal {
namespace {

#include "common/reduce/vector_io-inl.h"
// After it: both are pieces of this file.
#include "common/reduce/integer_scaling-inl.h"

struct SumOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};

struct ProductOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Mul(a, b);
  }
};

// No target multiplies bytes: two of them in each 16-bit lane. The low byte of the product is that
// of the low bytes; the high byte comes from a product with the other operand's high byte left in
// place.
struct ByteProductOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    const hn::ScalableTag<uint16_t> d;
    const V low_mask = hn::Set(d, uint16_t{0x00FF});
    const V low = hn::And(hn::Mul(a, b), low_mask);
    const V high = hn::Mul(hn::ShiftRight<8>(a), hn::AndNot(low_mask, b));
    return hn::Or(low, high);
  }
};

// Selects b where it is smaller (larger) or NaN: NaN propagates, the first of equal values stays.
struct MinOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct MaxOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(b)), b, a);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct NoScaling {
  explicit HWY_INLINE NoScaling(const Scaling&) {}
  template <class Io>
  HWY_INLINE typename Io::Acc In(typename Io::Acc acc) const {
    return acc;
  }
  template <class Io>
  HWY_INLINE typename Io::Acc Out(typename Io::Acc acc) const {
    return acc;
  }
};

template <class D>
struct MultiplyBy {
  hn::Vec<D> factor;
  HWY_INLINE hn::Vec<D> operator()(hn::Vec<D> v) const { return hn::Mul(v, factor); }
};

template <class D>
struct DivideBy {
  hn::Vec<D> divisor;
  HWY_INLINE hn::Vec<D> operator()(hn::Vec<D> v) const { return hn::Div(v, divisor); }
};

// kHasDivisor false: divisor is 1, so that no time is lost on divisions.
template <class D, bool kHasDivisor>
struct FloatScaling {
  using T = hn::TFromD<D>;
  MultiplyBy<D> prescale;
  MultiplyBy<D> postscale;
  DivideBy<D> divisor;

  explicit HWY_INLINE FloatScaling(const Scaling& scaling)
      : prescale{Factor(scaling.prescale)},
        postscale{Factor(scaling.postscale)},
        divisor{Factor(scaling.divisor)} {}
  static HWY_INLINE hn::Vec<D> Factor(double factor) {
    constexpr T kNan = static_cast<T>(__builtin_nan(""));
    return hn::Set(D(), factor == factor ? static_cast<T>(factor) : kNan);
  }
  template <class Io>
  HWY_INLINE typename Io::Acc In(typename Io::Acc acc) const {
    return Io::MapAcc(prescale, acc);
  }
  template <class Io>
  HWY_INLINE typename Io::Acc Out(typename Io::Acc acc) const {
    acc = Io::MapAcc(postscale, acc);
    if constexpr (kHasDivisor) acc = Io::MapAcc(divisor, acc);
    return acc;
  }
};

// One of a step's buffers, by index. kCount 0: the number is known at run time only.
template <size_t kCount>
struct Inputs {
  const uint8_t* from[kCount];
  explicit HWY_INLINE Inputs(const KernelArgs& args) {
    for (size_t j = 0; j < kCount; ++j) from[j] = static_cast<const uint8_t*>(args.inputs[j]);
  }
  HWY_INLINE size_t Count() const { return kCount; }
  HWY_INLINE const uint8_t* At(size_t j) const { return from[j]; }
};

template <>
struct Inputs<0> {
  const void* const* from;
  size_t count;
  explicit HWY_INLINE Inputs(const KernelArgs& args) : from(args.inputs), count(args.input_count) {}
  HWY_INLINE size_t Count() const { return count; }
  HWY_INLINE const uint8_t* At(size_t j) const { return static_cast<const uint8_t*>(from[j]); }
};

// Copies fewer than 64 bytes.
HWY_INLINE void CopyFew(const uint8_t* from, uint8_t* to, size_t byte_count) {
#define RINGD_COPY_PIECE(piece)          \
  if (byte_count >= (piece)) {           \
    __builtin_memcpy(to, from, (piece)); \
    from += (piece);                     \
    to += (piece);                       \
    byte_count -= (piece);               \
  }
  RINGD_COPY_PIECE(32)
  RINGD_COPY_PIECE(16)
  RINGD_COPY_PIECE(8)
  RINGD_COPY_PIECE(4)
  RINGD_COPY_PIECE(2)
  RINGD_COPY_PIECE(1)
#undef RINGD_COPY_PIECE
}

template <class Io, class Op, size_t kInputs, class Scale>
struct Loop {
  using Acc = typename Io::Acc;
  using Packed = typename Io::Packed;
  static constexpr size_t kStep = Io::kBytes;

  const Inputs<kInputs> inputs;
  const Scale scale;
  void* const* const outputs;
  const size_t output_count;
  const bool stream;

  explicit HWY_INLINE Loop(const KernelArgs& args)
      : inputs(args),
        scale(args.scaling),
        outputs(args.outputs),
        output_count(args.output_count),
        stream(args.stream) {}

  HWY_INLINE Acc Load(const uint8_t* from) const { return scale.template In<Io>(Io::Load(from)); }
  HWY_INLINE Acc Combine(Acc acc, Acc next) const { return Io::MapAcc(Op(), acc, next); }
  HWY_INLINE Packed Finish(Acc acc) const { return Io::Pack(scale.template Out<Io>(acc)); }

  HWY_INLINE void Four(size_t at) const {
    const uint8_t* first = inputs.At(0) + at;
    Acc a0 = Load(first);
    Acc a1 = Load(first + kStep);
    Acc a2 = Load(first + 2 * kStep);
    Acc a3 = Load(first + 3 * kStep);
    for (size_t j = 1; j < inputs.Count(); ++j) {
      const uint8_t* from = inputs.At(j) + at;
      a0 = Combine(a0, Load(from));
      a1 = Combine(a1, Load(from + kStep));
      a2 = Combine(a2, Load(from + 2 * kStep));
      a3 = Combine(a3, Load(from + 3 * kStep));
    }
    const Packed r0 = Finish(a0);
    const Packed r1 = Finish(a1);
    const Packed r2 = Finish(a2);
    const Packed r3 = Finish(a3);
    for (size_t k = 0; k < output_count; ++k) {
      uint8_t* to = static_cast<uint8_t*>(outputs[k]) + at;
      if (stream) {
        Io::Stream(r0, to);
        Io::Stream(r1, to + kStep);
        Io::Stream(r2, to + 2 * kStep);
        Io::Stream(r3, to + 3 * kStep);
      } else {
        Io::Store(r0, to);
        Io::Store(r1, to + kStep);
        Io::Store(r2, to + 2 * kStep);
        Io::Store(r3, to + 3 * kStep);
      }
    }
  }

  HWY_INLINE void One(size_t at) const {
    Acc acc = Load(inputs.At(0) + at);
    for (size_t j = 1; j < inputs.Count(); ++j) acc = Combine(acc, Load(inputs.At(j) + at));
    const Packed result = Finish(acc);
    for (size_t k = 0; k < output_count; ++k) {
      Io::Store(result, static_cast<uint8_t*>(outputs[k]) + at);
    }
  }

  HWY_INLINE Acc LoadFew(const uint8_t* from, size_t byte_count) const {
    alignas(kStep) uint8_t padded[kStep] = {};
    CopyFew(from, padded, byte_count);
    return Load(padded);
  }

  HWY_INLINE void Few(size_t at, size_t byte_count) const {
    Acc acc = LoadFew(inputs.At(0) + at, byte_count);
    for (size_t j = 1; j < inputs.Count(); ++j) {
      acc = Combine(acc, LoadFew(inputs.At(j) + at, byte_count));
    }
    alignas(kStep) uint8_t padded[kStep];
    Io::Store(Finish(acc), padded);
    for (size_t k = 0; k < output_count; ++k) {
      CopyFew(padded, static_cast<uint8_t*>(outputs[k]) + at, byte_count);
    }
  }
};

template <class Io, class Op, size_t kInputs, class Scale>
HWY_INLINE void RunLoop(const KernelArgs& args) {
  const Loop<Io, Op, kInputs, Scale> loop(args);
  constexpr size_t kStep = Io::kBytes;
  const size_t end = args.end_bytes;
  size_t at = args.begin_bytes;
  for (; end - at >= 4 * kStep; at += 4 * kStep) loop.Four(at);
  for (; end - at >= kStep; at += kStep) loop.One(at);
  if (at != end) loop.Few(at, end - at);
}

// The usual numbers of inputs have loops of their own, so that pointers stay in registers.
template <class Io>
void PlainSum(const KernelArgs& args) {
  switch (args.input_count) {
    case 1:
      return RunLoop<Io, SumOp, 1, NoScaling>(args);
    case 2:
      return RunLoop<Io, SumOp, 2, NoScaling>(args);
    case 3:
      return RunLoop<Io, SumOp, 3, NoScaling>(args);
    case 4:
      return RunLoop<Io, SumOp, 4, NoScaling>(args);
    default:
      return RunLoop<Io, SumOp, 0, NoScaling>(args);
  }
}

template <class Io, class Op>
void Plain(const KernelArgs& args) {
  if (args.input_count == 2) return RunLoop<Io, Op, 2, NoScaling>(args);
  RunLoop<Io, Op, 0, NoScaling>(args);
}

template <class Io, class Op>
void ScaledFloats(const KernelArgs& args) {
  if (args.scaling.divisor == 1.0) {
    return RunLoop<Io, Op, 0, FloatScaling<typename Io::D, false>>(args);
  }
  RunLoop<Io, Op, 0, FloatScaling<typename Io::D, true>>(args);
}

// After CopyFew.
#include "common/reduce/wire_kernels-inl.h"

struct Row {
  Kernel sum;
  Kernel min;
  Kernel max;
  Kernel product;
};

constexpr void FillRow(Kernel (&kernels)[kReductionCount], const Row& row) {
  kernels[static_cast<size_t>(Reduction::kAverage)] = row.sum;
  kernels[static_cast<size_t>(Reduction::kSum)] = row.sum;
  kernels[static_cast<size_t>(Reduction::kMin)] = row.min;
  kernels[static_cast<size_t>(Reduction::kMax)] = row.max;
  kernels[static_cast<size_t>(Reduction::kProduct)] = row.product;
}

template <class Io>
constexpr void FillFloat(KernelTable& table, DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  FillRow(table.plain[index],
          {&PlainSum<Io>, &Plain<Io, MinOp>, &Plain<Io, MaxOp>, &Plain<Io, ProductOp>});
  FillRow(table.scaled[index], {&ScaledFloats<Io, SumOp>, &ScaledFloats<Io, MinOp>,
                                &ScaledFloats<Io, MaxOp>, &ScaledFloats<Io, ProductOp>});
}

// Sums and products that wrap are those of the unsigned type.
template <typename T, typename Unsigned>
constexpr void FillInteger(KernelTable& table, DType dtype, Kernel product) {
  const auto index = static_cast<size_t>(dtype);
  FillRow(table.plain[index], {&PlainSum<LaneIo<Unsigned>>, &Plain<LaneIo<T>, MinOp>,
                               &Plain<LaneIo<T>, MaxOp>, product});
  FillRow(table.scaled[index],
          {&ReduceScaledIntegers<T, IntegerSum>, &ReduceScaledIntegers<T, IntegerMin>,
           &ReduceScaledIntegers<T, IntegerMax>, &ReduceScaledIntegers<T, IntegerProduct>});
}

constexpr KernelTable MakeTable() {
  KernelTable table = {};
  constexpr Kernel kProduct8 = &Plain<LaneIo<uint16_t>, ByteProductOp>;
  constexpr Kernel kProduct16 = &Plain<LaneIo<uint16_t>, ProductOp>;
  constexpr Kernel kProduct32 = &Plain<LaneIo<uint32_t>, ProductOp>;
  constexpr Kernel kProduct64 = &Plain<LaneIo<uint64_t>, ProductOp>;
  FillInteger<uint8_t, uint8_t>(table, DType::kUInt8, kProduct8);
  FillInteger<int8_t, uint8_t>(table, DType::kInt8, kProduct8);
  FillInteger<uint16_t, uint16_t>(table, DType::kUInt16, kProduct16);
  FillInteger<int16_t, uint16_t>(table, DType::kInt16, kProduct16);
  FillInteger<uint32_t, uint32_t>(table, DType::kUInt32, kProduct32);
  FillInteger<int32_t, uint32_t>(table, DType::kInt32, kProduct32);
  FillInteger<uint64_t, uint64_t>(table, DType::kUInt64, kProduct64);
  FillInteger<int64_t, uint64_t>(table, DType::kInt64, kProduct64);
  FillFloat<Float16Io>(table, DType::kFloat16);
  FillFloat<BFloat16Io>(table, DType::kBFloat16);
  FillFloat<LaneIo<float>>(table, DType::kFloat32);
  FillFloat<LaneIo<double>>(table, DType::kFloat64);
  FillConversions(table);
  FillRow(
      table.plain[static_cast<size_t>(DType::kBool)],
      {&Plain<BoolIo, MaxOp>, &Plain<BoolIo, MinOp>, &Plain<BoolIo, MaxOp>, &Plain<BoolIo, MinOp>});
  return table;
}

}  // namespace

// constexpr: nothing of this object runs when the program starts.
constexpr KernelTable RINGD_REDUCE_KERNELS = MakeTable();

}  // namespace ringd::reduce_internal

HWY_AFTER_NAMESPACE();

#endif  // RINGD_COMMON_REDUCE_KERNELS_INL_H_
