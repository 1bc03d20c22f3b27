// Where shared memory is mapped whose buffers are walked side by side.
#ifndef RINGD_COMMON_BASE_SPREAD_MAP_H_
#define RINGD_COMMON_BASE_SPREAD_MAP_H_

#include <cstdint>

namespace ringd {

// Addresses of two places that are equal in their lower 28 bits are kSpreadBytes or more apart.
inline constexpr uint64_t kSpreadBytes = 64 << 10;

// As mmap of the descriptor's first `bytes` bytes, shared, for reading and writing; for munmap as
// any other.
//
// place: a small number of its own for each mapping of those that are read and written together,
// as 0 to n - 1 for the memory of n ranks. Mappings of the same size otherwise lie one after the
// other, and some processors (AMD's Zen) tell the lines of their first cache apart by a hash of
// address bits 12 to 27: from buffers a multiple of 256 MB apart they keep one line each in turn.
void* MapSpread(int fd, uint64_t bytes, uint32_t place);

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_SPREAD_MAP_H_
