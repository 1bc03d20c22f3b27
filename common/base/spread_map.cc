#include "common/base/spread_map.h"

#include <errno.h>
#include <sys/mman.h>

namespace ringd {
namespace {

constexpr uint64_t kWindowBytes = 256 << 20;
constexpr uint64_t kPlaces = kWindowBytes / kSpreadBytes;
constexpr uint64_t kPageBytes = 4096;

}  // namespace

void* MapSpread(int fd, uint64_t bytes, uint32_t place) {
  if (bytes == 0 || bytes > UINT64_MAX / 2) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  const uint64_t mapped = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uint64_t reserved = mapped + 2 * kWindowBytes;
  void* const room =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  char* const begin = static_cast<char*>(room);
  const uint64_t skew = place % kPlaces * kSpreadBytes;
  const uint64_t to_window = kWindowBytes - reinterpret_cast<uintptr_t>(begin) % kWindowBytes;
  char* const at = begin + to_window + skew;
  void* const memory = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  const int error = errno;
  if (memory == MAP_FAILED) {
    munmap(begin, reserved);
    errno = error;
    return MAP_FAILED;
  }
  munmap(begin, at - begin);
  munmap(at + mapped, begin + reserved - (at + mapped));
  return memory;
}

}  // namespace ringd
