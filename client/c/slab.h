// Which parts of an arena's slab are in use: an allocator that never touches the memory it gives
// out.
#ifndef RINGD_CLIENT_C_SLAB_H_
#define RINGD_CLIENT_C_SLAB_H_

#include <cstdint>
#include <map>
#include <memory_resource>
#include <set>
#include <utility>

#include "proto/arena.h"

namespace ringd::client {

// Best fit over all segments, coalescing, everything aligned to arena::kSlabAlignment.
//
// A block lives while somebody holds it: the caller who allocated it, and each operation in flight
// that uses it. So a caller's free never takes memory away from an operation.
//
// Its own bookkeeping comes from a pool: no malloc in the steady state.
// Thread-compatible: external synchronisation.
class Slab {
 public:
  enum class Holder { kCaller, kOperation };

  Slab();

  // Offsets [begin, end) of the segment are free from now on.
  void AddSegment(uint32_t segment, uint64_t begin, uint64_t end);

  // At least one byte's worth. kNullRef where no free range is long enough.
  arena::Ref Allocate(uint64_t bytes, Holder holder);
  // The caller's hold ends. False: `block` is not the start of memory that a caller holds.
  bool Free(arena::Ref block);

  // One more operation uses bytes [first, first + bytes), which must lie in one block that its
  // caller holds. Returns the block, to be released later; kNullRef where there is none.
  arena::Ref Acquire(arena::Ref first, uint64_t bytes);
  // An operation's hold ends. REQUIRES: `block` came from Acquire, or from Allocate with
  // kOperation.
  void Release(arena::Ref block);

  uint64_t caller_blocks() const { return caller_blocks_; }
  uint64_t live_blocks() const { return live_.size(); }
  uint64_t free_bytes() const { return free_bytes_; }
  // Longest free range.
  uint64_t largest_free() const;

 private:
  struct Block {
    uint64_t bytes = 0;
    uint32_t uses = 0;
    bool caller = false;
  };
  using LiveBlocks = std::pmr::map<arena::Ref, Block>;

  void Insert(arena::Ref ref, uint64_t bytes);
  void Erase(std::pmr::map<arena::Ref, uint64_t>::iterator range);
  void DropIfUnused(LiveBlocks::iterator block);

  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::map<arena::Ref, uint64_t> free_{&pool_};
  std::pmr::set<std::pair<uint64_t, arena::Ref>> free_by_size_{&pool_};
  LiveBlocks live_{&pool_};
  uint64_t caller_blocks_ = 0;
  uint64_t free_bytes_ = 0;
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_SLAB_H_
