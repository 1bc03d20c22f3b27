// What a target's object offers to the dispatcher: a table of functions by dtype and reduction.
// Internal; the tests and the benchmark use it to run targets other than the active one.
//
// This header is included by objects compiled for different instruction sets: plain structs only,
// no inline functions.
#ifndef RINGD_COMMON_REDUCE_KERNEL_TABLE_H_
#define RINGD_COMMON_REDUCE_KERNEL_TABLE_H_

#include <stddef.h>
#include <stdint.h>

#include "common/base/types.h"
#include "common/reduce/reduce.h"
#include "common/reduce/wire_dtype.h"

namespace ringd::reduce_internal {

struct KernelArgs {
  const void* const* inputs;
  size_t input_count;
  void* const* outputs;
  size_t output_count;
  size_t begin_bytes;  // The range of each buffer to work on, in whole elements.
  size_t end_bytes;
  bool stream;  // Outputs are aligned to kStreamAlignment at begin_bytes; non-temporal stores are
                // wanted.
  Scaling scaling;
};

inline constexpr size_t kStreamAlignment = 64;  // The longest vector.

using Kernel = void (*)(const KernelArgs& args);

// From float32 to what travels, or back. REQUIRES: as NarrowToWire and WidenFromWire.
using Conversion = void (*)(const void* from, size_t count, void* to);

// Null entries: not reducible, nothing to convert.
struct KernelTable {
  Kernel plain[kDTypeCount][kReductionCount];   // Every factor is 1.
  Kernel scaled[kDTypeCount][kReductionCount];  // Some factor is not.
  Conversion narrow[kWireDTypeCount];
  Conversion widen[kWireDTypeCount];
};

struct Target {
  const char* name;
  const KernelTable* kernels;
  bool (*is_supported)();
};

#if defined(__x86_64__)
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kSse4Kernels;
extern const KernelTable kScalarKernels;
#elif defined(__aarch64__)
extern const KernelTable kNeonKernels;
#endif

// Every target in the program, the fastest first; the last one runs everywhere.
const Target* Targets(size_t* target_count);

// Those in use on this CPU.
const KernelTable& ActiveKernels();

// Reduce and ReduceStreaming by a given target's kernels.
void ReduceBy(const KernelTable& kernels, DType dtype, Reduction reduction,
              const void* const* inputs, size_t input_count, void* const* outputs,
              size_t output_count, size_t count, const Scaling& scaling, bool stream);

}  // namespace ringd::reduce_internal

#endif  // RINGD_COMMON_REDUCE_KERNEL_TABLE_H_
