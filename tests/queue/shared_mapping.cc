#include "tests/queue/shared_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

// Names that the linker's --wrap asks for.
extern "C" {
void* __real_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t bytes);
void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void* address, size_t bytes);
}

namespace ringd {
namespace {

struct Mapping {
  ino_t inode;
  void* address;
  size_t bytes;
  int count;
};

struct Mappings {
  std::mutex mu;
  std::vector<Mapping> all;  // Guarded by mu.
};

Mappings& Registry() {
  static auto* const registry = new Mappings;
  return *registry;
}

ino_t InodeOf(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

template <typename Predicate>
Mapping* Find(Mappings& registry, const Predicate& predicate) {
  const auto found = std::find_if(registry.all.begin(), registry.all.end(), predicate);
  return found == registry.all.end() ? nullptr : &*found;
}

// With MAP_FIXED, what is at `address` goes, whether this mapping comes to lie there or not.
void* Map(void* address, size_t bytes, int protection, int flags, int fd) {
  Mappings& registry = Registry();
  const ino_t inode = InodeOf(fd);
  std::lock_guard lock(registry.mu);
  Mapping* const same = Find(registry, [&](const Mapping& m) { return m.inode == inode; });
  if (same != nullptr && same->bytes != bytes) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  if (same != nullptr) {
    if ((flags & MAP_FIXED) != 0) __real_munmap(address, bytes);
    ++same->count;
    return same->address;
  }
  void* const mapped = __real_mmap(address, bytes, protection, flags, fd, 0);
  if (mapped != MAP_FAILED) registry.all.push_back({inode, mapped, bytes, 1});
  return mapped;
}

int Unmap(void* address, size_t bytes) {
  Mappings& registry = Registry();
  std::lock_guard lock(registry.mu);
  Mapping* const mapping = Find(registry, [&](const Mapping& m) { return m.address == address; });
  if (mapping == nullptr) return __real_munmap(address, bytes);
  if (--mapping->count > 0) return 0;
  std::erase_if(registry.all, [&](const Mapping& m) { return m.address == address; });
  return __real_munmap(address, bytes);
}

}  // namespace

int CountMappings(int fd) {
  Mappings& registry = Registry();
  const ino_t inode = InodeOf(fd);
  std::lock_guard lock(registry.mu);
  const Mapping* const found = Find(registry, [&](const Mapping& m) { return m.inode == inode; });
  return found == nullptr ? 0 : found->count;
}

}  // namespace ringd

void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  const bool is_arena = (flags & ~MAP_FIXED) == MAP_SHARED && fd >= 0 && offset == 0;
  if (is_arena) return ringd::Map(address, bytes, protection, flags, fd);
  return __real_mmap(address, bytes, protection, flags, fd, offset);
}

int __wrap_munmap(void* address, size_t bytes) { return ringd::Unmap(address, bytes); }
