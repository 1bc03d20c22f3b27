// Operation slots from the client's side: which are free, and what to do when the operation of each
// is over.
#ifndef RINGD_CLIENT_C_SLOTS_H_
#define RINGD_CLIENT_C_SLOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "client/c/ringd.h"
#include "proto/arena.h"

namespace ringd::client {

// What a submitted operation holds, and where its result goes.
struct Holdings {
  arena::Ref input_block = arena::kNullRef;
  arena::Ref output_block = arena::kNullRef;
  arena::Ref meta_block = arena::kNullRef;
  const void* copy_from = nullptr;  // In the arena.
  void* copy_to = nullptr;          // The caller's memory outside of it; null: nothing to copy.
  uint64_t copy_bytes = 0;
};

// A free list over arena::kSlotCount slots that prefers the ones used last, and one record for
// each.
//
// A handle is (number << 32 | slot + 1), so that a slot's next operation has another one.
// Thread-compatible: external synchronisation, but `IsLive` is thread-safe.
class Slots {
 public:
  Slots();

  static uint32_t SlotOf(ringd_handle handle) { return static_cast<uint32_t>(handle) - 1; }
  static uint32_t NumberOf(ringd_handle handle) { return static_cast<uint32_t>(handle >> 32); }

  // Whether as many as `count` more operations can be in flight.
  bool Has(size_t count) const { return count <= arena::kSlotCount - in_flight_; }
  // The next operation of a free slot. REQUIRES: Has(1).
  ringd_handle Acquire(const Holdings& holdings);
  // Whether the handle's operation has been neither collected nor abandoned.
  bool IsLive(ringd_handle handle) const;
  // Takes what a live handle holds; the slot stays taken and no longer has a live handle. False:
  // not live.
  bool Take(ringd_handle handle, Holdings* holdings);
  // What a live handle holds from now on.
  void SetHoldings(ringd_handle handle, const Holdings& holdings) {
    records_[SlotOf(handle)].holdings = holdings;
  }
  // The slot of a taken handle is free again.
  void Release(ringd_handle handle);

  size_t in_flight() const { return in_flight_; }
  // Live handles, for shutdown.
  std::vector<ringd_handle> LiveHandles() const;

 private:
  struct Record {
    std::atomic<ringd_handle> handle;  // 0: none.
    uint32_t number;                   // Of its last operation.
    Holdings holdings;
  };
  struct FreeMemory {
    void operator()(Record* records) const { std::free(records); }
  };

  std::unique_ptr<Record[], FreeMemory> records_;  // Zeroed memory, touched as far as it is used.
  std::vector<uint32_t> recycled_;
  uint32_t fresh_ = 0;  // Slots from here on were never used.
  size_t in_flight_ = 0;
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_SLOTS_H_
