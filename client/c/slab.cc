#include "client/c/slab.h"

#include <algorithm>
#include <iterator>

namespace ringd::client {
namespace {

constexpr uint64_t RoundUp(uint64_t bytes) {
  return (bytes + arena::kSlabAlignment - 1) / arena::kSlabAlignment * arena::kSlabAlignment;
}

}  // namespace

Slab::Slab() = default;

void Slab::AddSegment(uint32_t segment, uint64_t begin, uint64_t end) {
  begin = RoundUp(begin);
  end = end / arena::kSlabAlignment * arena::kSlabAlignment;
  if (begin < end) Insert(arena::MakeRef(segment, begin), end - begin);
}

arena::Ref Slab::Allocate(uint64_t bytes, Holder holder) {
  if (bytes > largest_free()) return arena::kNullRef;
  bytes = RoundUp(std::max<uint64_t>(bytes, 1));
  const auto fit = free_by_size_.lower_bound({bytes, 0});
  if (fit == free_by_size_.end()) return arena::kNullRef;
  const auto [free_bytes, ref] = *fit;
  Erase(free_.find(ref));
  if (free_bytes > bytes) Insert(ref + bytes, free_bytes - bytes);
  const bool caller = holder == Holder::kCaller;
  live_.emplace(ref, Block{.bytes = bytes, .uses = caller ? 0u : 1u, .caller = caller});
  caller_blocks_ += caller;
  return ref;
}

bool Slab::Free(arena::Ref block) {
  const auto found = live_.find(block);
  if (found == live_.end() || !found->second.caller) return false;
  found->second.caller = false;
  --caller_blocks_;
  DropIfUnused(found);
  return true;
}

arena::Ref Slab::Acquire(arena::Ref first, uint64_t bytes) {
  auto found = live_.upper_bound(first);
  if (found == live_.begin()) return arena::kNullRef;
  --found;
  auto& [ref, block] = *found;
  const uint64_t offset = first - ref;
  if (!block.caller || offset > block.bytes || bytes > block.bytes - offset) return arena::kNullRef;
  ++block.uses;
  return ref;
}

void Slab::Release(arena::Ref block) {
  const auto found = live_.find(block);
  if (found == live_.end()) return;
  --found->second.uses;
  DropIfUnused(found);
}

uint64_t Slab::largest_free() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

void Slab::Insert(arena::Ref ref, uint64_t bytes) {
  free_bytes_ += bytes;
  free_.emplace(ref, bytes);
  free_by_size_.emplace(bytes, ref);
}

void Slab::Erase(std::pmr::map<arena::Ref, uint64_t>::iterator range) {
  free_bytes_ -= range->second;
  free_by_size_.erase({range->second, range->first});
  free_.erase(range);
}

void Slab::DropIfUnused(LiveBlocks::iterator block) {
  if (block->second.caller || block->second.uses > 0) return;
  arena::Ref ref = block->first;
  uint64_t bytes = block->second.bytes;
  live_.erase(block);
  const auto after = free_.find(ref + bytes);
  if (after != free_.end()) {
    bytes += after->second;
    Erase(after);
  }
  auto before = free_.lower_bound(ref);
  if (before != free_.begin()) {
    --before;
    if (before->first + before->second == ref) {
      ref = before->first;
      bytes += before->second;
      Erase(before);
    }
  }
  Insert(ref, bytes);
}

}  // namespace ringd::client
