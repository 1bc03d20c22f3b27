#include "client/session/memory_limit.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace ringd::session {
namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kUnlimitedFrom = uint64_t{1}
                                    << 60;  // Version 1 writes "no limit" as a huge number.
constexpr int kMaxDepth = 32;               // Of nested cgroups.

bool ReadFile(const std::string& path, std::string* text) {
  std::ifstream file(path);
  if (!file) return false;
  std::ostringstream content;
  content << file.rdbuf();
  *text = content.str();
  return true;
}

uint64_t ReadNumber(const std::string& path) {
  std::string text;
  uint64_t value = 0;
  if (!ReadFile(path, &text) || !absl::SimpleAtoi(text, &value)) return kNone;  // "max" too.
  return value >= kUnlimitedFrom ? kNone : value;
}

// The number after `key` in a file of "key value" or "key: value kB" lines.
uint64_t ReadField(const std::string& path, const std::string& key, uint64_t unit) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value * unit;
  }
  return kNone;
}

// Applies the limit of one cgroup directory, if it has one.
void Apply(const std::string& directory, MemoryLimit* limit) {
  uint64_t maximum = ReadNumber(directory + "/memory.max");
  uint64_t usage = ReadNumber(directory + "/memory.current");
  const char* cache_key = "inactive_file";
  if (usage == kNone) {
    maximum = ReadNumber(directory + "/memory.limit_in_bytes");
    usage = ReadNumber(directory + "/memory.usage_in_bytes");
    cache_key = "total_inactive_file";
  }
  if (maximum == kNone || usage == kNone) return;
  const uint64_t cache = ReadField(directory + "/memory.stat", cache_key, 1);
  if (cache != kNone) usage -= std::min(usage, cache);
  const uint64_t available = maximum > usage ? maximum - usage : 0;
  if (maximum < limit->limit_bytes) {
    limit->limit_bytes = maximum;
    limit->source = "memory cgroup";
  }
  limit->available_bytes = std::min(limit->available_bytes, available);
}

void ApplyUpwards(const std::string& mount, std::string path, MemoryLimit* limit) {
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    Apply(mount + path, limit);
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return;
    path.resize(slash);
  }
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& cgroup, const std::string& root) {
  MemoryLimit limit;
  limit.limit_bytes = ReadField(root + "/proc/meminfo", "MemTotal:", 1024);
  limit.available_bytes = ReadField(root + "/proc/meminfo", "MemAvailable:", 1024);
  limit.source = "RAM";
  if (!cgroup.empty()) Apply(root + cgroup, &limit);
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[0] == "0" && parts[1].empty()) {
      ApplyUpwards(root + "/sys/fs/cgroup", parts[2], &limit);
      ApplyUpwards(root + "/sys/fs/cgroup/unified", parts[2], &limit);
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory") ApplyUpwards(root + "/sys/fs/cgroup/memory", parts[2], &limit);
    }
  }
  return limit;
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  const std::string digits = absl::StrFormat("%.1f", value);
  const bool whole = digits.size() > 2 && digits.substr(digits.size() - 2) == ".0";
  return absl::StrCat(whole ? digits.substr(0, digits.size() - 2) : digits, " ", kUnits[unit]);
}

}  // namespace ringd::session
