// The C ABI of libringd.so: what every language package stands on. Plain C11, standard library
// only.
//
// One context a process. Functions are thread-safe unless they say otherwise. They return RINGD_OK
// or an error code; ringd_last_error() then has the calling thread's details. After fork the child
// gets RINGD_FORKED from every call; the parent goes on. Versioned structs begin with `size`: set
// it to sizeof.
#ifndef RINGD_CLIENT_C_RINGD_H_
#define RINGD_CLIENT_C_RINGD_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RINGD_ABI_VERSION 2
#define RINGD_API __attribute__((visibility("default")))

// Codes: the numbers of ringd::arena::Code.
enum {
  RINGD_OK = 0,
  RINGD_INVALID_ARGUMENT = 1,
  RINGD_MISMATCH = 2,
  RINGD_PEER_FAILED = 3,
  RINGD_GENERATION_CHANGED = 4,
  RINGD_DEADLINE_EXCEEDED = 5,
  RINGD_NOT_INITIALIZED = 6,
  RINGD_FORKED = 7,
  RINGD_INTERRUPTED = 8,  // ringd_wait: a signal arrived; run its handler and wait again.
  RINGD_RESOURCE_EXHAUSTED = 9,
  RINGD_UNAVAILABLE = 10,
  RINGD_INTERNAL = 11
};

typedef struct {
  uint32_t size;
  int32_t code;
  int32_t rank;       // At fault, -1 if none.
  int32_t exit_code;  // -1 if it did not exit.
  int32_t signal;
  char node[112];
  char message[2944];
  char stderr_tail[1024];
} ringd_error;

// The last failed call of this thread. Returns its code.
RINGD_API int ringd_last_error(ringd_error* error);

// What the nodes of a job tell each other before ringd connects them, by the launcher's own means
// (torchrun's store). text: put it under `key`, for one other process. NULL: wait for a text under
// `key`, which goes to `answer`. Returns 0; or else, with the reason in `answer`. Called on the
// thread of ringd_init, by one process a node.
typedef int (*ringd_exchange)(void* context, const char* key, const char* text, char* answer,
                              size_t capacity);

typedef struct {
  uint32_t size;
  int32_t standalone;  // 1: a job of one rank in this process alone, no daemon; operations are
                       // local copies.
  int64_t timeout_us;  // For finding the worker; <= 0: 60 s, or 300 s under torchrun, mpirun, srun.
  const char* socket;  // NULL: that of the launcher that started this process.
  ringd_exchange exchange;  // NULL: torchrun's ranks are on one node, or on a cluster.
  void* exchange_context;
} ringd_init_options;

RINGD_API int ringd_abi_version(void);
RINGD_API const char* ringd_version(void);
// Who started this process: "ringctl", "torchrun", "mpirun", "srun", "unknown" (a launcher's
// variables are incomplete: ringd_init says which). NULL: no launcher. Valid until the thread's
// next call.
RINGD_API const char* ringd_launcher(void);
// Blocks until attached. NULL: defaults. RINGD_OK again when already attached.
RINGD_API int ringd_init(const ringd_init_options* options);
// Waits for operations in flight to end (an unfinished one is abandoned after 5 s) and detaches.
RINGD_API int ringd_shutdown(void);
RINGD_API int ringd_is_initialized(void);

typedef struct {
  uint32_t size;
  int32_t rank, world_size, local_rank, local_size, node_rank, node_count;
  uint64_t generation;
  char job[128];
  char node[128];
} ringd_info;
RINGD_API int ringd_get_info(ringd_info* info);

// Memory in the arena, aligned to 128 bytes: operations on it copy nothing on submission. NULL:
// ringd_last_error. Grows the arena where needed. Freed memory that an operation in flight uses is
// kept until it is over.
RINGD_API void* ringd_allocate(size_t bytes);
RINGD_API int ringd_free(void* pointer);

// Numbers as in common/base/types.h.
typedef struct {
  uint32_t size;
  uint32_t operation;
  uint32_t dtype;
  uint32_t reduction;
  uint32_t group;  // 0: all ranks. Ranks and counts below are in numbers of the group.
  int32_t root;    // send, recv: the other rank.
  uint64_t count;  // Elements at input; recv: those that are expected.
  const void*
      input;     // In the arena: used where it lies. Else copied in before ringd_submit returns.
  void* output;  // In the arena: written where it lies. Else copied out by the wait that finds it
                 // complete.
  uint64_t output_count;  // Elements at output.
  const int64_t* shape;   // ndim numbers: for signatures and messages.
  uint32_t ndim;
  uint32_t count_count;   // Length of counts.
  const int64_t* counts;  // allgather, gather, reducescatter, scatter: elements a rank, NULL: all
                          // alike; alltoall: matrix [from * size + to].
  const char* name;       // NULL: none.
  const char* site;       // NULL or "train.py:41".
  double prescale;        // 1.0: none.
  double postscale;
  uint32_t tag;  // send, recv: messages with one tag keep their order.
  uint32_t
      flags;  // arena::DescriptorFlags that a caller may set: beside, named (ordered by its name
              // among the named operations of the group, in whatever order ranks submit them).
  uint32_t wire;  // allreduce: the narrower type of floats between nodes, WireDType of
                  // common/reduce/wire_dtype.h; the same on all ranks. 0: their own. A job of one
                  // node ignores it.
  uint32_t reserved;
} ringd_operation;

typedef uint64_t
    ringd_handle;  // 0: none. A handle is used up by the ringd_wait that returns its result.

// The root alone has an output in reduce and gather (output_count 0 elsewhere) and an input in
// scatter (count 0 elsewhere). A message is over when it has been received; the k-th send to a rank
// with a tag meets its k-th recv from this one, whatever else is called in between.
//
// Never blocks on the daemon. The memory must stay as it is until the operation is over.
RINGD_API int ringd_submit(const ringd_operation* operation, ringd_handle* handle);
// n operations become visible together, all of them or, after an error, none. All ranks submit the
// same batch: where they differ in one of its collectives, all of these fail with RINGD_MISMATCH.
RINGD_API int ringd_submit_batch(const ringd_operation* operations, size_t n,
                                 ringd_handle* handles);
// 1: over (successful or not), 0: not yet, -1: no such handle.
RINGD_API int ringd_poll(ringd_handle handle);
// Blocks until the operation is over: RINGD_OK or its error. RINGD_INTERRUPTED when a signal
// handler ran and RINGD_DEADLINE_EXCEEDED after timeout_us (< 0: none): the handle is still good
// after these two.
RINGD_API int ringd_wait(ringd_handle handle, int64_t timeout_us);
// For callers that wait in slices, to look after signals in between: the waits of this thread that
// follow are slices of one of timeout_us (< 0: without limit); 0: no longer. When the threads of
// all ranks wait, without limit or for more than a minute, for operations that can't come about,
// these fail with RINGD_MISMATCH.
RINGD_API void ringd_set_slices_of(int64_t timeout_us);

// Submits and waits. RINGD_OK or the operation's error: it is over, *handle is 0.
// RINGD_INTERRUPTED, RINGD_DEADLINE_EXCEEDED: as of ringd_wait, which goes on with *handle. Less
// work than the two calls: small operations between the ranks of a node need no handle.
RINGD_API int ringd_run(const ringd_operation* operation, int64_t timeout_us, ringd_handle* handle);

// COLLECTIVE: this rank has no more data. Blocks until all ranks of the job have called it;
// *last_rank: the one that did so last, the same on all ranks. Until then the others' operations of
// all ranks (not those of other groups, nor messages) go on without this one: it adds nothing to a
// reduction (an average still divides by the number of all ranks), no rows to an allgather, and
// gets nothing. Operations that it is the root of fail, as do registrations. Operations of this
// rank that are under way stay as they are; other threads get RINGD_INVALID_ARGUMENT for new ones.
// timeout_us and RINGD_INTERRUPTED as in ringd_wait; the call is then made again, and goes on.
RINGD_API int ringd_join(int64_t timeout_us, int32_t* last_rank);

// Groups of ranks (process sets). COLLECTIVE: every rank of the job calls both in the same order,
// members or not. Ids are 1, 2, 3, ..., the same on all ranks; those given up come back, the oldest
// first.
// ranks: ascending, each once. Ranks that are a group already give its id (all ranks: 0), which
// then has to be given up as often. Blocks until all ranks agree (RINGD_MISMATCH names ranks and
// both values) and the members are connected, with timeout_us and RINGD_INTERRUPTED as in
// ringd_wait, except that the call may then not be resumed.
RINGD_API int ringd_group_register(const int32_t* ranks, uint32_t n, int64_t timeout_us,
                                   uint32_t* group);
// Operations of the group that are not over fail.
RINGD_API int ringd_group_unregister(uint32_t group, int64_t timeout_us);

// Bucket plans: proto/arena.h has their record, daemon/README.md what becomes of one.
typedef struct {
  const char* name;
  const int64_t* shape;
  uint32_t ndim;
  uint32_t bucket;
} ringd_plan_tensor;

typedef struct {
  uint32_t dtype;
  uint32_t reduction;
  double prescale;
  double postscale;
  uint32_t wire;  // As in ringd_operation.
  uint32_t reserved;
} ringd_plan_bucket;

typedef uint32_t ringd_plan;

// COLLECTIVE: every rank of the job calls this in the same order. Allocates each bucket in the
// arena and lays its tensors out in the order given. Blocks until all ranks agree (RINGD_MISMATCH
// names rank, tensor and both values), with the meaning of timeout_us and RINGD_INTERRUPTED as in
// ringd_wait, except that the call may then not be resumed.
RINGD_API int ringd_plan_register(const ringd_plan_bucket* buckets, uint32_t bucket_count,
                                  const ringd_plan_tensor* tensors, uint32_t tensor_count,
                                  int64_t timeout_us, ringd_plan* plan);
// The same in a group: all of its ranks call it.
RINGD_API int ringd_plan_register_in(uint32_t group, const ringd_plan_bucket* buckets,
                                     uint32_t bucket_count, const ringd_plan_tensor* tensors,
                                     uint32_t tensor_count, int64_t timeout_us, ringd_plan* plan);
// Where tensor `index` lies: its part of the bucket's buffer.
RINGD_API void* ringd_plan_tensor_data(ringd_plan plan, uint32_t index);
// Marks tensor `index` ready; the last one of a bucket submits it. Twice in one step:
// RINGD_INVALID_ARGUMENT.
RINGD_API int ringd_plan_ready(ringd_plan plan, uint32_t index);
// Marks all tensors not yet ready as zeros (they are cleared) and ready: unused parameters. Returns
// how many by *count.
RINGD_API int ringd_plan_flush(ringd_plan plan, uint32_t* count);
// Blocks until every bucket of the step is over; the next step begins. As ringd_wait.
RINGD_API int ringd_plan_wait(ringd_plan plan, int64_t timeout_us);
RINGD_API int ringd_plan_unregister(ringd_plan plan);

// Error feedback for `wire`: data + residual becomes, in data, what other nodes get of it where no
// sum rounds it further, and residual what that loses; both `count` elements of the dtype. data is
// a whole operation's or a plan's tensor: blocks count from its start. RINGD_INVALID_ARGUMENT where
// the dtype can't travel so.
RINGD_API int ringd_round_to_wire(uint32_t dtype, uint32_t wire, void* data, void* residual,
                                  uint64_t count);

typedef struct {
  uint32_t size;
  uint32_t reserved;
  uint64_t operations, bytes_reduced, bytes_copied, negotiation_messages, arena_bytes, stalls,
      generation, backstops;
} ringd_counters;
RINGD_API int ringd_get_counters(ringd_counters* counters);

#ifdef __cplusplus
}
#endif

#endif  // RINGD_CLIENT_C_RINGD_H_
