// Element-wise reduction of several buffers into several buffers, by SIMD kernels.
//
// The inner loop of every collective: reads each input once, combines the inputs strictly in the
// order 0..n-1, and writes the result to each output once. An element's bits depend on the inputs
// and the arguments alone: not on the CPU, the vector width, the alignment, or the element's place
// in the buffer (NaN payloads and NaN signs excepted).
//
// Arithmetic, by dtype:
//   float16, bfloat16   in float32, rounded once (to nearest, ties to even) when stored
//   float32, float64    in their own type; no contraction to fused multiply-add
//   integers            sum and product wrap around silently
//   bool                sum and max are "or", product and min are "and"; any nonzero byte is true,
//   results are 0 or 1
// Min and max propagate NaN, as numpy.minimum and torch.minimum do; of equal values (-0 and +0) the
// first wins. kAverage means the same as kSum here: the caller hands in the divisor.
#ifndef RINGD_COMMON_REDUCE_REDUCE_H_
#define RINGD_COMMON_REDUCE_REDUCE_H_

#include <cstddef>

#include "common/base/types.h"

namespace ringd {

// Inputs, and outputs, of one call; callers with more fold. Chosen as the most ranks that a node is
// expected to run.
inline constexpr size_t kMaxReduceBuffers = 64;

// result = reduce(prescale * input_j) * postscale / divisor. A factor of 1 changes nothing.
//
// Floating types: factors are converted to the type of the arithmetic; the divisor is a true
// division, so that averages of whole numbers are exact. Integers: prescale multiplies each input
// as a double and truncates toward zero; postscale and divisor do the same with the result. A whole
// divisor from 1 to 2^53 with postscale 1 is an exact integer division toward zero (nothing is lost
// beyond 2^53). What leaves the range of the integer saturates, NaN becomes 0. bool: ignored.
struct Scaling {
  double prescale = 1.0;
  double postscale = 1.0;
  double divisor = 1.0;
};

// True for what Reduce accepts: sum, average, min, max and product of every dtype, but no average
// of bool.
bool IsReducible(DType dtype, Reduction reduction);

// Combines `count` elements of the inputs and stores them to every output.
//
// REQUIRES: IsReducible(dtype, reduction); 1 to kMaxReduceBuffers inputs and outputs; buffers
// aligned to the element's size; an output equals an input exactly or overlaps none; outputs don't
// overlap one another. Ends the process if the first two are not met. Thread-safe (for calls on
// disjoint outputs). Neither allocates nor blocks.
void Reduce(DType dtype, Reduction reduction, const void* const* inputs, size_t input_count,
            void* const* outputs, size_t output_count, size_t count, const Scaling& scaling);

// The same with stores that bypass the cache, for results far larger than it that no one reads
// soon. Same bits. Falls back to ordinary stores where the outputs differ in alignment modulo 64 or
// the target has no such stores. The stores are visible to other threads by the usual release and
// acquire afterwards.
//
// REQUIRES: as Reduce, and no output equals an input.
void ReduceStreaming(DType dtype, Reduction reduction, const void* const* inputs,
                     size_t input_count, void* const* outputs, size_t output_count, size_t count,
                     const Scaling& scaling);

// The kernels in use on this CPU: "avx512", "avx2", "sse4", "scalar" or "neon".
const char* ActiveTarget();

}  // namespace ringd

#endif  // RINGD_COMMON_REDUCE_REDUCE_H_
