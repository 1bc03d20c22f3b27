#define RINGD_REDUCE_KERNELS kNeonKernels
#include "common/reduce/kernels-inl.h"

static_assert(HWY_TARGET == HWY_NEON, "compile with the flags of //common/reduce:BUILD");
