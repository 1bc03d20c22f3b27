#include "common/reduce/reduce.h"

#include <cstdint>
#include <cstdlib>

#include "common/reduce/kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

namespace ringd {
namespace reduce_internal {
namespace {

bool Always() { return true; }

#if defined(__x86_64__)
// Clang's __builtin_cpu_supports doesn't know it; that the system saves the registers follows from
// AVX2.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasSse4() { return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.2"); }

bool HasAvx2() {
  return HasSse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && HasF16c();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
#endif

constexpr Target kTargets[] = {
#if defined(__x86_64__)
    {"avx512", &kAvx512Kernels, HasAvx512},
    {"avx2", &kAvx2Kernels, HasAvx2},
    {"sse4", &kSse4Kernels, HasSse4},
    {"scalar", &kScalarKernels, Always},
#elif defined(__aarch64__)
    {"neon", &kNeonKernels, Always},
#endif
};

const Target& ChooseTarget() {
  const Target* target = kTargets;
  while (!target->is_supported()) ++target;
  return *target;
}

const Target& ActiveTargetEntry() {
  static const Target& target = ChooseTarget();
  return target;
}

bool IsScaled(DType dtype, const Scaling& scaling) {
  return dtype != DType::kBool &&
         (scaling.prescale != 1.0 || scaling.postscale != 1.0 || scaling.divisor != 1.0);
}

bool HaveEqualAlignment(void* const* outputs, size_t output_count) {
  const auto first = reinterpret_cast<uintptr_t>(outputs[0]);
  for (size_t k = 1; k < output_count; ++k) {
    const auto other = reinterpret_cast<uintptr_t>(outputs[k]);
    if ((first ^ other) % kStreamAlignment != 0) return false;
  }
  return true;
}

// Orders non-temporal stores before later ones.
void FlushStreamingStores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void RunStreaming(Kernel kernel, KernelArgs args) {
  const auto first = reinterpret_cast<uintptr_t>(args.outputs[0]);
  const size_t head_bytes = (kStreamAlignment - first % kStreamAlignment) % kStreamAlignment;
  const size_t end_bytes = args.end_bytes;
  args.end_bytes = head_bytes < end_bytes ? head_bytes : end_bytes;
  if (args.end_bytes != 0) kernel(args);
  if (args.end_bytes == end_bytes) return;
  args.begin_bytes = args.end_bytes;
  args.end_bytes = end_bytes;
  args.stream = true;
  kernel(args);
  FlushStreamingStores();
}

}  // namespace

const Target* Targets(size_t* target_count) {
  *target_count = sizeof(kTargets) / sizeof(kTargets[0]);
  return kTargets;
}

const KernelTable& ActiveKernels() { return *ActiveTargetEntry().kernels; }

void ReduceBy(const KernelTable& kernels, DType dtype, Reduction reduction,
              const void* const* inputs, size_t input_count, void* const* outputs,
              size_t output_count, size_t count, const Scaling& scaling, bool stream) {
  if (!IsReducible(dtype, reduction) || input_count == 0 || input_count > kMaxReduceBuffers ||
      output_count == 0 || output_count > kMaxReduceBuffers) {
    std::abort();
  }
  if (count == 0) return;
  const auto& table = IsScaled(dtype, scaling) ? kernels.scaled : kernels.plain;
  const Kernel kernel = table[static_cast<size_t>(dtype)][static_cast<size_t>(reduction)];
  const KernelArgs args = {inputs, input_count, outputs, output_count, 0, count * DTypeBytes(dtype),
                           false,  scaling};
  if (stream && HaveEqualAlignment(outputs, output_count)) {
    RunStreaming(kernel, args);
  } else {
    kernel(args);
  }
}

}  // namespace reduce_internal

bool IsReducible(DType dtype, Reduction reduction) {
  if (DTypeBytes(dtype) == 0) return false;
  switch (reduction) {
    case Reduction::kAverage:
      return dtype != DType::kBool;
    case Reduction::kSum:
    case Reduction::kMin:
    case Reduction::kMax:
    case Reduction::kProduct:
      return true;
    default:
      return false;
  }
}

void Reduce(DType dtype, Reduction reduction, const void* const* inputs, size_t input_count,
            void* const* outputs, size_t output_count, size_t count, const Scaling& scaling) {
  reduce_internal::ReduceBy(reduce_internal::ActiveKernels(), dtype, reduction, inputs, input_count,
                            outputs, output_count, count, scaling, false);
}

void ReduceStreaming(DType dtype, Reduction reduction, const void* const* inputs,
                     size_t input_count, void* const* outputs, size_t output_count, size_t count,
                     const Scaling& scaling) {
  reduce_internal::ReduceBy(reduce_internal::ActiveKernels(), dtype, reduction, inputs, input_count,
                            outputs, output_count, count, scaling, true);
}

const char* ActiveTarget() { return reduce_internal::ActiveTargetEntry().name; }

}  // namespace ringd
