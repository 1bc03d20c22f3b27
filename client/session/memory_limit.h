// How much memory this process may still take: the memory cgroup's word, else the machine's.
#ifndef RINGD_CLIENT_SESSION_MEMORY_LIMIT_H_
#define RINGD_CLIENT_SESSION_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace ringd::session {

struct MemoryLimit {
  uint64_t limit_bytes = 0;      // The tightest limit above this process.
  uint64_t available_bytes = 0;  // Of it, what is free or can be reclaimed from the page cache.
  std::string source;            // "memory cgroup" or "RAM": for messages.
};

// Reads the cgroup of this process and those above it (version 2 and version 1), and /proc/meminfo.
// cgroup: a directory to start from instead ("" = ask /proc/self/cgroup). root: prefix of every
// path, for tests. What can't be read doesn't limit.
MemoryLimit ReadMemoryLimit(const std::string& cgroup, const std::string& root = "");

// "256 MB", "1.5 GB": 1,024-based, one decimal where it says something.
std::string FormatBytes(uint64_t bytes);

}  // namespace ringd::session

#endif  // RINGD_CLIENT_SESSION_MEMORY_LIMIT_H_
