#include "client/c/slots.h"

#include <new>

namespace ringd::client {

Slots::Slots() : records_(static_cast<Record*>(std::calloc(arena::kSlotCount, sizeof(Record)))) {
  if (records_ == nullptr) throw std::bad_alloc();
}

ringd_handle Slots::Acquire(const Holdings& holdings) {
  uint32_t slot;
  if (recycled_.empty()) {
    slot = fresh_++;
  } else {
    slot = recycled_.back();
    recycled_.pop_back();
  }
  ++in_flight_;
  Record& record = records_[slot];
  ++record.number;
  record.holdings = holdings;
  const ringd_handle handle = uint64_t{record.number} << 32 | (slot + 1);
  record.handle.store(handle, std::memory_order_release);
  return handle;
}

bool Slots::IsLive(ringd_handle handle) const {
  const uint32_t slot = SlotOf(handle);
  return slot < arena::kSlotCount &&
         records_[slot].handle.load(std::memory_order_acquire) == handle;
}

bool Slots::Take(ringd_handle handle, Holdings* holdings) {
  if (!IsLive(handle)) return false;
  Record& record = records_[SlotOf(handle)];
  *holdings = record.holdings;
  record.handle.store(0, std::memory_order_release);
  return true;
}

void Slots::Release(ringd_handle handle) {
  recycled_.push_back(SlotOf(handle));
  --in_flight_;
}

std::vector<ringd_handle> Slots::LiveHandles() const {
  std::vector<ringd_handle> live;
  for (uint32_t slot = 0; slot < fresh_; ++slot) {
    const ringd_handle handle = records_[slot].handle.load(std::memory_order_acquire);
    if (handle != 0) live.push_back(handle);
  }
  return live;
}

}  // namespace ringd::client
