/* The other side of _mpi.py: one rank of MPI, which does what its rank of the benchmark says.
 *
 *   mpi_loop FOLDER      talks over the socket FOLDER/RANK
 *
 * A request is a line "OPERATION ITEMS TYPE CALLS FRESH": ITEMS is the larger of a rank's input and
 * output; FRESH: write the input anew before each call. The answer is a line with each call's
 * nanoseconds, or "error TEXT". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int rank, size;
static char *mine, *out;

static MPI_Datatype type_of(const char* name) {
  static const char* names[] = {"float32", "float64", "uint8", "int8",   "uint16",
                                "int16",   "uint32",  "int32", "uint64", "int64"};
  const MPI_Datatype types[] = {MPI_FLOAT,   MPI_DOUBLE,   MPI_UINT8_T, MPI_INT8_T,   MPI_UINT16_T,
                                MPI_INT16_T, MPI_UINT32_T, MPI_INT32_T, MPI_UINT64_T, MPI_INT64_T};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    if (strcmp(name, names[i]) == 0) return types[i];
  }
  return MPI_DATATYPE_NULL;
}

static void run(const char* operation, int items, MPI_Datatype type) {
  const int share = items / size;
  if (strcmp(operation, "allreduce") == 0) {
    MPI_Allreduce(MPI_IN_PLACE, mine, items, type, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(operation, "broadcast") == 0) {
    MPI_Bcast(mine, items, type, 0, MPI_COMM_WORLD);
  } else if (strcmp(operation, "allgather") == 0) {
    MPI_Allgather(mine, share, type, out, share, type, MPI_COMM_WORLD);
  } else if (strcmp(operation, "reducescatter") == 0) {
    MPI_Reduce_scatter_block(mine, out, share, type, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(operation, "alltoall") == 0) {
    MPI_Alltoall(mine, share, type, out, share, type, MPI_COMM_WORLD);
  } else {
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void answer(FILE* to, const char* operation, int items, const char* name, int calls,
                   int fresh) {
  const MPI_Datatype type = type_of(name);
  if (type == MPI_DATATYPE_NULL) {
    fprintf(to, "error MPI has no type %s\n", name);
    return;
  }
  int item_bytes;
  MPI_Type_size(type, &item_bytes);
  const size_t bytes = (size_t)items * item_bytes + 1;
  mine = calloc(bytes, 1);
  out = calloc(bytes, 1);
  long long* times = malloc(sizeof(*times) * (calls + 1));
  if (mine == NULL || out == NULL || times == NULL) {
    fprintf(to, "error no memory\n");
  } else {
    MPI_Barrier(MPI_COMM_WORLD);
    long long start = now();
    for (int i = 0; i < calls; ++i) {
      if (fresh) {
        memset(mine, 0, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        start = now();
      }
      run(operation, items, type);
      const long long end = now();
      times[i] = end - start;
      start = end;
    }
    for (int i = 0; i < calls; ++i) fprintf(to, "%lld ", times[i]);
    fprintf(to, "\n");
  }
  free(mine);
  free(out);
  free(times);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof(address.sun_path), "%s/%d", argc > 1 ? argv[1] : "", rank);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof(address)) != 0) {
    perror(address.sun_path);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  FILE* from = fdopen(fd, "r");
  FILE* to = fdopen(dup(fd), "w");
  char operation[32], type[32];
  int items, calls, fresh;
  while (fscanf(from, "%31s %d %31s %d %d", operation, &items, type, &calls, &fresh) == 5) {
    answer(to, operation, items, type, calls, fresh);
    fflush(to);
  }
  MPI_Finalize();
  return 0;
}
