// One client of a daemon: submits operations to an arena and waits for them.
#ifndef RINGD_CLIENT_C_ARENA_CLIENT_H_
#define RINGD_CLIENT_C_ARENA_CLIENT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/c/arena_memory.h"
#include "client/c/direct_path.h"
#include "client/c/groups.h"
#include "client/c/request.h"
#include "client/c/ringd.h"
#include "client/c/slots.h"
#include "common/base/fd.h"
#include "proto/arena.h"

namespace ringd::client {

class Plan;

struct ArenaClientOptions {
  UniqueFd segment;  // Segment 0: a sealed memfd with its header written.
  uint64_t segment_bytes = 0;
  UniqueFd doorbell;        // Eventfd; none for a client without a daemon.
  UniqueFd shared_segment;  // proto/segment.h; none where the job has none.
  ringd_info info{};        // Who this rank is.
  // Gets the next segment of at least `bytes`. Blocks; one call at a time. Returns RINGD_OK, or a
  // code after Fail.
  std::function<int(uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes)> grow;
  // A connection whose hang-up means that nobody will ever complete an operation; -1: none. Not
  // taken over; must stay open until Shutdown has returned.
  int liveness_fd = -1;
  bool standalone = false;  // Operations are carried out by RunStandalone.
};

// Life: Create; calls; Shutdown, once, after which all calls fail with RINGD_NOT_INITIALIZED; the
// destructor. Ownership: memory of callers (Allocate) outlives the client by `memory()`.
// Thread-safe. REQUIRES: no call is running when it is destroyed.
// Failure: codes of ringd.h; details by LastError of the calling thread. A poisoned arena fails
// everything with the daemon's record.
class ArenaClient {
 public:
  static int Create(ArenaClientOptions options, std::unique_ptr<ArenaClient>* client);
  ~ArenaClient();
  ArenaClient(const ArenaClient&) = delete;
  ArenaClient& operator=(const ArenaClient&) = delete;

  // Blocks until operations in flight are over, at most timeout_us; the rest is abandoned. Waiting
  // threads get RINGD_NOT_INITIALIZED.
  void Shutdown(int64_t timeout_us);

  // As the functions of ringd.h without "ringd_".
  ringd_info info() const;
  void* Allocate(size_t bytes);
  int Free(void* pointer);
  int SubmitBatch(const ringd_operation* operations, size_t n, ringd_handle* handles);
  int Run(const ringd_operation& operation, int64_t timeout_us, ringd_handle* handle);
  int Poll(ringd_handle handle);
  int Wait(ringd_handle handle, int64_t timeout_us);
  static void SetSlicesOf(int64_t timeout_us);
  ringd_counters counters() const;

  int Join(int64_t timeout_us, int32_t* last_rank);

  int RegisterGroup(const int32_t* ranks, uint32_t n, int64_t timeout_us, uint32_t* group);
  int UnregisterGroup(uint32_t group, int64_t timeout_us);

  int RegisterPlan(uint32_t group, const ringd_plan_bucket* buckets, uint32_t bucket_count,
                   const ringd_plan_tensor* tensors, uint32_t tensor_count, int64_t timeout_us,
                   ringd_plan* plan);
  // Null, after Fail: no such plan.
  Plan* FindPlan(ringd_plan plan);
  int UnregisterPlan(ringd_plan plan);

  // For plans: an operation whose descriptor is complete but for slot, number and serial.
  int SubmitPrepared(Prepared* prepared, size_t n, ringd_handle* handles);
  // A block, growing the arena where needed; kNullRef after Fail.
  arena::Ref AllocateBlock(uint64_t bytes, Slab::Holder holder);

  const std::shared_ptr<ArenaMemory>& memory() const { return memory_; }
  int world_size() const { return info_.world_size; }
  // RINGD_OK, or why no operation can succeed any more (after Fail).
  int CheckUsable();

 private:
  enum class WaitResult {
    kHandedOver,
    kDone,
    kPoisoned,
    kTimedOut,
    kInterrupted,
    kClosed,
    kGone,
    kNotLive
  };
  struct Buffer {
    const void* pointer;
    uint64_t bytes;
    uint64_t alignment;
  };

  explicit ArenaClient(ArenaClientOptions options);

  // Nothing can be submitted while this rank has joined.
  static int FailJoined();
  int BeginJoin(ringd_handle* handle);

  // This rank and the size in numbers of the group.
  int FindGroup(uint32_t group, ringd_info* info) const;
  int AgreeOnGroup(Operation operation, uint32_t id, const std::vector<int32_t>& ranks,
                   int64_t timeout_us);
  std::atomic<Plan*>* FindPlace(ringd_plan plan);
  int Prepare(const ringd_operation& operation, Prepared* prepared);
  int PlaceBuffers(const ringd_operation& operation, const OperationBytes& bytes,
                   Prepared* prepared);
  // *ref: kNullRef for memory outside; *block: what has to be released.
  int FindInArena(const Buffer& buffer, arena::Ref* block, arena::Ref* ref);
  int StageOutput(const ringd_operation& operation, uint64_t bytes, Prepared* prepared);
  int StageInput(const ringd_operation& operation, const OperationBytes& bytes, Prepared* prepared);
  int WriteMeta(const ringd_operation& operation, Prepared* prepared);
  void ReleaseHoldings(const Holdings& holdings);
  void PublishLocked(Prepared* prepared, size_t n, ringd_handle* handles);
  // The same for one whose handle is there.
  void PublishAsLocked(Prepared* prepared, ringd_handle handle);
  void EnqueueLocked(Prepared* prepared, ringd_handle handle, uint64_t position);
  void RingDoorbell();

  // The direct path: arena_client_direct.cc.
  int OpenDirectPath(UniqueFd segment);
  // Publishes the operation in the shared segment. *sequence 0: it has to be submitted.
  // wants_handle: *handle gets one. Else HandOver puts it there, if it comes to that.
  int BeginDirect(const ringd_operation& operation, bool wants_handle, ringd_handle* handle,
                  uint64_t* sequence);
  bool MayBeginDirectLocked();
  // Of group 0; the daemon may have moved it on.
  uint64_t NextSequenceLocked();
  // Whether n more handles can be had; one is kept for a pending operation without one.
  bool HasRoomLocked(size_t n) const;
  // The pending operation becomes a submission.
  int HandOverLocked();
  int HandOver(uint64_t sequence);
  bool FinishDirect(uint64_t sequence);
  int PollDirect(uint64_t sequence);
  WaitResult AwaitDirect(uint64_t sequence, int64_t deadline_us);
  ringd_handle HandleOf(ringd_handle* handed_over);
  void NumberLocked(const Prepared& prepared, ringd_handle handle, arena::Descriptor* descriptor);

  int Grow(uint64_t bytes, arena::Ref* block, Slab::Holder holder);

  WaitResult Await(ringd_handle handle, int64_t timeout_us);
  WaitResult Sleep(ringd_handle handle, int64_t deadline_us);
  // Counts the calling thread among those of ArenaHeader::threads.
  void CountThread();
  bool IsOver(ringd_handle handle) const;
  bool IsPeerGone();
  int Collect(ringd_handle handle, bool poisoned);
  int ReportError(arena::Code code, uint32_t serial);
  int ReportPoison();
  int ReportGone();

  // Constant after construction.
  const uint64_t id_;  // Of all clients of this process.
  ringd_info info_;
  const UniqueFd doorbell_;
  const std::function<int(uint64_t, UniqueFd*, uint64_t*)> grow_;
  const int liveness_fd_;
  const bool standalone_;
  bool spin_ = false;  // As many usable CPUs as local ranks.
  std::shared_ptr<ArenaMemory> memory_;
  std::unique_ptr<DirectPath> direct_;  // Null: no shared segment.
  uint64_t incarnation_ = 0;            // Of the daemon that this client attached to.

  // Thread-safe on their own.
  std::atomic<bool> closed_{false};
  std::atomic<bool> gone_{false};
  std::atomic<int64_t> last_liveness_check_us_{0};
  std::atomic<uint64_t> polled_sequence_{
      0};                                    // The direct operation that Poll has found unfinished,
  std::atomic<int64_t> polled_since_us_{0};  // and when.
  std::atomic<uint64_t> bytes_copied_{0};
  std::atomic<uint64_t> backstops_{0};
  std::array<std::atomic<Plan*>, arena::kMaxPlansPerClient> plans_{};

  std::mutex submit_mu_;
  Slots slots_;            // Guarded by submit_mu_.
  uint64_t serial_ = 0;    // Guarded by submit_mu_.
  uint64_t sequence_ = 0;  // Guarded by submit_mu_. Of group 0; counted where there is direct_.
  // Guarded by submit_mu_. Submissions that could have been direct, as far as they may not be over.
  std::vector<ringd_handle> indirect_;
  ringd_handle* direct_waiter_ = nullptr;  // Guarded by submit_mu_. Of the pending operation: where
                                           // HandOver puts the handle.

  std::mutex grow_mu_;  // Held across grow_.
  std::mutex plan_mu_;
  std::map<uint32_t, uint32_t> last_plans_;  // By group. Guarded by plan_mu_.

  // Guarded by submit_mu_. The join under way; 0: none.
  ringd_handle join_ = 0;
  arena::Ref join_result_ = arena::kNullRef;

  std::mutex group_mu_;  // Held while the ranks agree.
  Groups groups_;
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_ARENA_CLIENT_H_
