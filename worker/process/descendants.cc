#include "worker/process/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"

namespace ringd::worker {
namespace {

struct Relation {
  pid_t parent = 0;
  char state = '?';
};

// From /proc/PID/stat: the fields after the name, which may itself hold parentheses.
bool ReadRelation(pid_t pid, Relation* relation) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return false;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(line.substr(name_end + 1));
  return static_cast<bool>(fields >> relation->state >> relation->parent);
}

std::unordered_map<pid_t, Relation> ReadProcesses() {
  std::unordered_map<pid_t, Relation> processes;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
  if (directory == nullptr) return processes;
  while (const dirent* entry = readdir(directory.get())) {
    const pid_t pid = atoi(entry->d_name);
    Relation relation;
    if (pid > 0 && ReadRelation(pid, &relation)) processes[pid] = relation;
  }
  return processes;
}

// The process can't be replaced by another of the same number between the check of its parent and
// the signal.
bool SignalChecked(pid_t pid, pid_t parent, int signal) {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) return false;
  Relation relation;
  const bool same = ReadRelation(pid, &relation) && (parent == 0 || relation.parent == parent);
  return same && syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

bool DescendsFrom(const std::unordered_map<pid_t, Relation>& processes, pid_t pid, pid_t ancestor) {
  for (size_t steps = 0; steps <= processes.size(); ++steps) {
    const auto found = processes.find(pid);
    if (found == processes.end()) return false;
    pid = found->second.parent;
    if (pid == ancestor) return true;
  }
  return false;
}

}  // namespace

int SignalDescendants(int signal, const std::string& cgroup) {
  const auto processes = ReadProcesses();
  std::unordered_set<pid_t> done = {getpid()};
  int count = 0;
  for (const auto& [pid, relation] : processes) {
    if (relation.state == 'Z' || !DescendsFrom(processes, pid, getpid())) continue;
    done.insert(pid);
    if (SignalChecked(pid, relation.parent, signal)) ++count;
  }
  if (cgroup.empty()) return count;
  std::ifstream members(cgroup + "/cgroup.procs");
  pid_t pid = 0;
  while (members >> pid) {
    if (pid > 0 && done.insert(pid).second && SignalChecked(pid, 0, signal)) ++count;
  }
  return count;
}

}  // namespace ringd::worker
