/* Sums a few floats over all ranks: see README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/ringd.h"

enum { kAllreduce = 2, kFloat32 = 11, kSum = 2, kCount = 4 }; /* common/base/types.h */

static int Fail(const char* what) {
  ringd_error error = {.size = sizeof(error)};
  ringd_last_error(&error);
  fprintf(stderr, "c_client: %s: %s\n", what, error.message);
  return EXIT_FAILURE;
}

static int Allreduce(const float* input, float* output) {
  const int64_t shape[] = {kCount};
  ringd_operation operation = {.size = sizeof(operation)};
  operation.operation = kAllreduce;
  operation.dtype = kFloat32;
  operation.reduction = kSum;
  operation.count = kCount;
  operation.input = input;
  operation.output = output;
  operation.output_count = kCount;
  operation.shape = shape;
  operation.ndim = 1;
  operation.site = "c_client";
  operation.prescale = 1.0;
  operation.postscale = 1.0;
  ringd_handle handle = 0;
  const int code = ringd_submit(&operation, &handle);
  return code != RINGD_OK ? code : ringd_wait(handle, 60 * 1000 * 1000);
}

int main(int argc, char** argv) {
  if (ringd_init(NULL) != RINGD_OK) return Fail("init");
  ringd_info info = {.size = sizeof(info)};
  if (ringd_get_info(&info) != RINGD_OK) return Fail("info");
  if (argc > 1) {
    const size_t bytes = strtoul(argv[1], NULL, 10) << 20;
    char* memory = ringd_allocate(bytes);
    if (memory == NULL) return Fail("allocate");
    memset(memory, 1, bytes);
    ringd_free(memory);
  }
  float values[kCount], sums[kCount] = {0};
  for (int i = 0; i < kCount; ++i) values[i] = (float)(info.rank + 1);
  if (Allreduce(values, sums) != RINGD_OK) return Fail("allreduce");
  printf("rank %d of %d: sum", info.rank, info.world_size);
  for (int i = 0; i < kCount; ++i) printf(" %g", sums[i]);
  printf("\n");
  return ringd_shutdown() == RINGD_OK ? EXIT_SUCCESS : Fail("shutdown");
}
