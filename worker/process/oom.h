// Whether the kernel's OOM killer has ended something of the rank.
#ifndef RINGD_WORKER_PROCESS_OOM_H_
#define RINGD_WORKER_PROCESS_OOM_H_

#include <cstdint>
#include <string>

namespace ringd::worker {

// The directory of the group whose memory this process takes: its own, or the closest one above
// that has the memory controller. "" if there is none. root: prefix of every path, for tests.
std::string OwnMemoryCgroup(const std::string& root = "");

// Compares the OOM-kill counter of a memory cgroup (version 2: memory.events, version 1:
// memory.oom_control) with what it was at construction. Without a cgroup it never sees anything.
//
// Thread-compatible: external synchronisation.
class OomWatch {
 public:
  explicit OomWatch(std::string cgroup);

  const std::string& cgroup() const { return cgroup_; }
  bool Killed() const;
  // "OOM-killed, peak 1.2 GB of 1 GB": of the tightest limit, be it of a group above.
  std::string Describe() const;

 private:
  const std::string cgroup_;
  const uint64_t kills_before_;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_PROCESS_OOM_H_
