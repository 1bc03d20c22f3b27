#include "worker/process/oom.h"

#include <unistd.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/session/memory_limit.h"

namespace ringd::worker {
namespace {

constexpr uint64_t kUnlimitedFrom = uint64_t{1} << 60;  // Version 1's "no limit" is huge.

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

bool HasCounter(const std::string& cgroup) {
  return access((cgroup + "/memory.events").c_str(), R_OK) == 0 ||
         access((cgroup + "/memory.oom_control").c_str(), R_OK) == 0;
}

// `path` below a mount, or the closest directory above it that counts OOM kills.
std::string ClosestWithCounter(const std::string& mount, std::string path) {
  if (path == "/" || absl::StrContains(path, "..")) path.clear();  // Of a namespace above ours.
  while (!HasCounter(mount + path)) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return "";
    path.resize(slash);
  }
  return mount + path;
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

// The tightest limit of a group and those above it; 0 if there is none.
uint64_t TightestLimit(std::string cgroup) {
  uint64_t tightest = 0;
  while (!cgroup.empty()) {
    const uint64_t limit = ReadEither(cgroup + "/memory.max", cgroup + "/memory.limit_in_bytes");
    if (limit != 0 && limit < kUnlimitedFrom && (tightest == 0 || limit < tightest))
      tightest = limit;
    const size_t slash = cgroup.rfind('/');
    cgroup.resize(slash == std::string::npos ? 0 : slash);
  }
  return tightest;
}

}  // namespace

std::string OwnMemoryCgroup(const std::string& root) {
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line, unified;
  while (std::getline(file, line)) {  // "4:memory:/path", "0::/path"
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1] == "memory") return ClosestWithCounter(mounts + "/memory", fields[2]);
    if (fields[0] == "0") unified = fields[2];
  }
  return unified.empty() ? "" : ClosestWithCounter(mounts, unified);
}

OomWatch::OomWatch(std::string cgroup)
    : cgroup_(std::move(cgroup)), kills_before_(CountKills(cgroup_)) {}

bool OomWatch::Killed() const { return CountKills(cgroup_) > kills_before_; }

std::string OomWatch::Describe() const {
  const uint64_t peak =
      ReadEither(cgroup_ + "/memory.peak", cgroup_ + "/memory.max_usage_in_bytes");
  const uint64_t limit = TightestLimit(cgroup_);
  std::string text = "OOM-killed";
  if (peak != 0) absl::StrAppend(&text, ", peak ", session::FormatBytes(peak));
  if (limit != 0)
    absl::StrAppend(&text, peak != 0 ? " of " : ", limit ", session::FormatBytes(limit));
  return text;
}

}  // namespace ringd::worker
