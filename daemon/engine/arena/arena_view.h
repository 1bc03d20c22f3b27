// The daemon's side of one client's arena: its mappings, and the only code that reads or writes
// them as structures.
#ifndef RINGD_DAEMON_ENGINE_ARENA_ARENA_VIEW_H_
#define RINGD_DAEMON_ENGINE_ARENA_ARENA_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/arena/sigbus_guard.h"
#include "proto/arena.h"

namespace ringd::daemon {

// Maps the segments, checks every place that a client names, copies before it reads, and writes
// results.
//
// Life: Map takes segment 0, AddSegment the others in order; the destructor unmaps. Nothing may use
// the memory then. Thread-bound: the engine's thread; the tensors themselves are used by the
// reduction's threads too. Failure: what a client did wrong is a status or null; nothing here
// trusts the memory. bad() tells that a page was missing and that zeros were put in its place.
class ArenaView {
 public:
  // INVALID_ARGUMENT: not a sealed memfd of that size, too small, or the header differs from
  // proto/arena.h. RESOURCE_EXHAUSTED: no address space, or too many segments on this daemon.
  // place: of MapSpread; each of a job's local ranks has its own.
  static absl::StatusOr<std::unique_ptr<ArenaView>> Map(UniqueFd fd, uint64_t bytes,
                                                        uint32_t place);
  ~ArenaView();
  ArenaView(const ArenaView&) = delete;
  ArenaView& operator=(const ArenaView&) = delete;

  // INVALID_ARGUMENT: index is not the next one, or not a sealed memfd.
  absl::Status AddSegment(uint32_t index, UniqueFd fd, uint64_t bytes);

  // Where `bytes` bytes at `ref` lie; null unless they are in the slab of a segment and aligned.
  // alignment: power of two.
  std::byte* Resolve(arena::Ref ref, uint64_t bytes, uint64_t alignment) const;

  // Whether a daemon has served this arena before: this process's predecessor.
  bool was_served() const { return was_served_; }
  // Descriptors that it copied, as the header says.
  uint64_t tail() const;

  // Descriptors that the client has published so far; one load, seq_cst.
  uint64_t head() const;
  // Copies descriptor `index` once.
  arena::Descriptor ReadDescriptor(uint64_t index) const;
  void set_tail(uint64_t tail);
  void set_sleeping(bool sleeping);
  void SetConstants(uint64_t incarnation, uint64_t generation, uint64_t sequence);
  // What the rank has come to in group 0: after a join, before its client is told.
  void SetSequence(uint64_t sequence);
  uint32_t SlotWord(uint32_t slot) const;
  // Of the client: threads that have submitted or waited, and those that sleep in the slot without
  // a time limit.
  uint32_t threads() const;
  uint32_t BlockedThreads(uint32_t slot) const;

  // Tells the slot: operation `number` is over. Writes an error record when it failed. REQUIRES:
  // slot < kSlotCount.
  void Complete(uint32_t slot, uint32_t number, const Outcome& outcome);
  // Every pending and later operation of the arena has failed; wakes all. Once: later calls do
  // nothing.
  void Poison(const Outcome& outcome);
  bool poisoned() const { return poisoned_; }

  void CountOperation(uint64_t bytes_reduced);
  void CountStall();
  // Notes between nodes for an operation.
  void CountNegotiation(uint64_t messages);

  bool bad() const;

 private:
  struct Segment {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    uint64_t first = 0;  // Offset of the first byte that tensors may use.
    SigbusGuard guard;
  };

  explicit ArenaView(uint32_t place) : place_(place) {}
  absl::Status MapSegment(UniqueFd fd, uint64_t bytes, uint64_t first);
  arena::ArenaHeader* header() const;
  arena::Slot* slots() const;
  arena::ErrorRecord* records() const;
  void ReadFormerState();
  uint32_t WriteError(const Outcome& outcome);

  const uint32_t place_;
  std::vector<Segment> segments_;
  uint32_t error_serial_ = 0;
  bool was_served_ = false;
  bool poisoned_ = false;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ARENA_ARENA_VIEW_H_
