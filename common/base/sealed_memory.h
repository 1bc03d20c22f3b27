// Memory that processes share without trusting each other's ftruncate: memfds that are backed and
// sealed.
#ifndef RINGD_COMMON_BASE_SEALED_MEMORY_H_
#define RINGD_COMMON_BASE_SEALED_MEMORY_H_

#include <cstdint>

#include "common/base/fd.h"

namespace ringd {

// A memfd of `bytes` (rounded up to whole pages by the caller), backed by fallocate and sealed
// against shrinking, growing and further seals. Returns 0, or -errno: -ENOSPC, -ENOMEM, -EINVAL.
int CreateSealedMemory(const char* name, uint64_t bytes, UniqueFd* fd);

// 0 if fd is a memfd of exactly `bytes` with those seals and all blocks present; else -EINVAL.
int CheckSealedMemory(int fd, uint64_t bytes);

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_SEALED_MEMORY_H_
