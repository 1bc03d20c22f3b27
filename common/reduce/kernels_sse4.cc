#define RINGD_REDUCE_KERNELS kSse4Kernels
#include "common/reduce/kernels-inl.h"

static_assert(HWY_TARGET == HWY_SSE4, "compile with the flags of //common/reduce:BUILD");
