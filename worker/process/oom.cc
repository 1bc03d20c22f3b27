#include "worker/process/oom.h"

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/memory_limit.h"

namespace ringd::worker {
namespace {

uint64_t ReadKills(const std::string& path) {
  std::ifstream file(path);
  std::string key;
  uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "oom_kill") return value;
  }
  return 0;
}

uint64_t CountKills(const std::string& cgroup) {
  if (cgroup.empty()) return 0;
  return ReadKills(cgroup + "/memory.events") + ReadKills(cgroup + "/memory.oom_control");
}

// The first of two files that holds a number; 0 if neither does.
uint64_t ReadEither(const std::string& version2, const std::string& version1) {
  for (const std::string& path : {version2, version1}) {
    std::ifstream file(path);
    uint64_t value = 0;
    if (file >> value) return value;
  }
  return 0;
}

}  // namespace

OomWatch::OomWatch(std::string cgroup)
    : cgroup_(std::move(cgroup)), kills_before_(CountKills(cgroup_)) {}

bool OomWatch::Killed() const { return CountKills(cgroup_) > kills_before_; }

std::string OomWatch::Describe() const {
  const uint64_t peak =
      ReadEither(cgroup_ + "/memory.peak", cgroup_ + "/memory.max_usage_in_bytes");
  const uint64_t limit = ReadEither(cgroup_ + "/memory.max", cgroup_ + "/memory.limit_in_bytes");
  std::string text = "OOM-killed";
  if (peak != 0) absl::StrAppend(&text, ", peak ", session::FormatBytes(peak));
  if (limit != 0)
    absl::StrAppend(&text, peak != 0 ? " of " : ", limit ", session::FormatBytes(limit));
  return text;
}

}  // namespace ringd::worker
