#include "common/base/sealed_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

namespace ringd {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kStatBlockBytes = 512;

}  // namespace

int CreateSealedMemory(const char* name, uint64_t bytes, UniqueFd* fd) {
  UniqueFd memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return -errno;
  int rc;
  do {
    rc = fallocate(memory.get(), 0, 0, static_cast<off_t>(bytes));
  } while (rc < 0 && errno == EINTR);
  if (rc < 0) return -errno;
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) < 0) return -errno;
  *fd = std::move(memory);
  return 0;
}

int CheckSealedMemory(int fd, uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return -EINVAL;
  struct stat info;
  if (fstat(fd, &info) < 0) return -errno;
  if (static_cast<uint64_t>(info.st_size) != bytes) return -EINVAL;
  if (static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes < bytes) return -EINVAL;
  return 0;
}

}  // namespace ringd
