// The fallback for x86-64 CPUs (and emulators) without SSE4.2.
#define RINGD_REDUCE_KERNELS kScalarKernels
#define HWY_BASELINE_TARGETS HWY_SCALAR
#include "common/reduce/kernels-inl.h"

static_assert(HWY_TARGET == HWY_SCALAR, "HWY_BASELINE_TARGETS was not heeded");
