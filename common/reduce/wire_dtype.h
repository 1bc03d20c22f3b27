// Narrower forms of floating-point tensors, for the way between nodes.
//
//   bf16, fp16   one number an element, rounded to nearest, ties to even. Overflow is infinite.
//   fp8_e4m3, fp8_e5m2 (OCP's 8-bit formats): blocks of kWireBlock elements, the last one shorter;
//   each is a byte for its scale and a byte an element. The scale is the smallest power of two by
//   which the block's largest finite number fits the format (448 and 57344 are its limits), so that
//   nothing saturates and only numbers far smaller than their block's largest lose precision. NaN
//   stays NaN; an infinite number stays that in fp8_e5m2 and becomes NaN in fp8_e4m3, which has
//   none. Scale byte s means 2^(s - 127).
//
// Bits depend on the elements alone, not on the CPU (NaN payloads and signs excepted); what
// WidenFromWire gives for bf16 and fp16 narrows to the same bits again.
#ifndef RINGD_COMMON_REDUCE_WIRE_DTYPE_H_
#define RINGD_COMMON_REDUCE_WIRE_DTYPE_H_

#include <cstddef>
#include <cstdint>

#include "common/base/types.h"

namespace ringd {

// The numbers are part of the arena layout: never renumber, only append.
enum class WireDType : uint8_t {
  kSame = 0,  // The tensor's own dtype.
  kBFloat16 = 1,
  kFloat16 = 2,
  kFloat8E4M3 = 3,
  kFloat8E5M2 = 4,
};
inline constexpr int kWireDTypeCount = 5;

// A divisor of every piece that a tensor is cut into.
inline constexpr size_t kWireBlock = 32;

// "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"; "same" for kSame; "invalid" for other numbers.
const char* WireDTypeName(WireDType wire);

// Whether tensors of the dtype can travel as `wire`: float32 as each of them, float16 and bfloat16
// as fp8, everything as kSame.
bool CanNarrow(DType dtype, WireDType wire);

// Bytes of `count` elements as they travel: the sum over pieces of whole blocks and a rest.
// REQUIRES: CanNarrow.
size_t WireBytes(DType dtype, WireDType wire, size_t count);

// Converts `count` elements: from the tensor's dtype, and back to it.
//
// REQUIRES: CanNarrow, not kSame; the tensor is aligned to its elements, the other side to nothing.
// NarrowToWire: `to` may be `from`. Otherwise they don't overlap. Thread-safe. Neither allocates
// nor blocks.
void NarrowToWire(DType dtype, WireDType wire, const void* from, size_t count, void* to);
void WidenFromWire(DType dtype, WireDType wire, const void* from, size_t count, void* to);

// Error feedback: `data` becomes what data + residual is after the way, `residual` what that has
// lost (0 where it isn't finite), both in the tensor's dtype. For float32 their sum loses nothing
// more. The same preconditions.
void RoundToWire(DType dtype, WireDType wire, void* data, void* residual, size_t count);

}  // namespace ringd

#endif  // RINGD_COMMON_REDUCE_WIRE_DTYPE_H_
