#include "daemon/ranks/cgroup.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ringd::daemon {
namespace {

constexpr char kRoot[] = "/sys/fs/cgroup";
// A younger group may be waiting for its worker to join.
constexpr time_t kOldSeconds = 60;
constexpr long kCgroup2Magic = 0x63677270;

bool IsCgroup2(const std::string& path) {
  struct statfs info;
  return statfs(path.c_str(), &info) == 0 && static_cast<long>(info.f_type) == kCgroup2Magic;
}

// Writable for us, and a place where groups can be made: found out by making one.
bool CanMakeGroups(const std::string& directory) {
  const std::string probe = absl::StrCat(directory, "/ringd-probe-", getpid());
  if (mkdir(probe.c_str(), 0755) != 0) return false;
  const bool usable = access(absl::StrCat(probe, "/cgroup.procs").c_str(), W_OK) == 0;
  rmdir(probe.c_str());
  return usable;
}

}  // namespace

absl::StatusOr<std::string> FindCgroupParent() {
  std::ifstream self("/proc/self/cgroup");
  std::vector<std::string> memory, unified, others;
  std::string line;
  while (std::getline(self, line)) {  // "4:memory:/path", "0::/path"
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || absl::StrContains(fields[2], "..")) continue;
    const std::string path = fields[2] == "/" ? "" : fields[2];
    if (fields[0] == "0") {
      for (const char* mount : {"", "/unified"}) {
        const std::string root = absl::StrCat(kRoot, mount);
        if (IsCgroup2(root)) unified.push_back(absl::StrCat(root, path));
      }
    } else if (fields[1] == "memory") {
      memory.push_back(absl::StrCat(kRoot, "/memory", path));
    } else if (fields[1] == "pids" || fields[1] == "name=systemd") {
      others.push_back(absl::StrCat(kRoot, fields[1] == "pids" ? "/pids" : "/systemd", path));
    }
  }
  std::vector<std::string> candidates = std::move(memory);
  for (const auto* more : {&unified, &others})
    candidates.insert(candidates.end(), more->begin(), more->end());
  for (const std::string& candidate : candidates) {
    if (CanMakeGroups(candidate)) return candidate;
  }
  return absl::FailedPreconditionError(
      candidates.empty()
          ? "no cgroup hierarchy is mounted"
          : absl::StrCat("may not make groups in ", candidates[0], " (systemd: Delegate=yes)"));
}

absl::StatusOr<std::string> MakeCgroup(const std::string& parent, const std::string& name) {
  std::string directory = absl::StrCat(parent, "/", name);
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat(directory, ": ", strerror(errno)));
  }
  return directory;
}

void RemoveOldCgroups(const std::string& parent) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(parent.c_str()), closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder.get())) {
    if (!absl::StartsWith(entry->d_name, "ringd-")) continue;
    const std::string path = absl::StrCat(parent, "/", entry->d_name);
    struct stat info;
    if (stat(path.c_str(), &info) != 0 || time(nullptr) - info.st_mtime < kOldSeconds) continue;
    rmdir(path.c_str());  // Fails where there are members.
  }
}

bool KillCgroup(const std::string& directory) {
  if (rmdir(directory.c_str()) == 0 || errno == ENOENT) return true;
  std::ofstream kill_file(absl::StrCat(directory, "/cgroup.kill"), std::ios::in);
  if (kill_file) {
    kill_file << "1" << std::flush;
  } else {
    std::ifstream members(absl::StrCat(directory, "/cgroup.procs"));
    pid_t pid = 0;
    while (members >> pid) {
      if (pid > 1) kill(pid, SIGKILL);
    }
  }
  return rmdir(directory.c_str()) == 0 || errno == ENOENT;
}

}  // namespace ringd::daemon
