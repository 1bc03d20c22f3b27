#define RINGD_REDUCE_KERNELS kAvx2Kernels
#include "common/reduce/kernels-inl.h"

static_assert(HWY_TARGET == HWY_AVX2, "compile with the flags of //common/reduce:BUILD");
