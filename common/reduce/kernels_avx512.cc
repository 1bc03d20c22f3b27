#define RINGD_REDUCE_KERNELS kAvx512Kernels
#include "common/reduce/kernels-inl.h"

static_assert(HWY_TARGET == HWY_AVX3, "compile with the flags of //common/reduce:BUILD");
