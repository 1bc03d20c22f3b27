#include "client/c/launch/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "client/c/error.h"

namespace ringd::client {
namespace {

struct Names {
  const char* launcher;
  const char* sign;  // Set wherever this launcher started the process.
  const char *rank, *size, *local_rank;
  const char* local_size;        // A number, or Slurm's list of tasks a node.
  std::vector<const char*> job;  // What names the job, together.
  // Of nodes; null: this launcher doesn't say.
  const char *node = nullptr, *nodes = nullptr;
  // Or: the process above all ranks of this node, which has an option that is the same on all
  // nodes.
  const char* ancestor = nullptr;
  const char* option = nullptr;
};

const Names kLaunchers[] = {
    {.launcher = "torchrun",
     .sign = "TORCHELASTIC_RUN_ID",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE",
     // Without --rdzv-id all jobs are called "none"; a restart must not find what it follows.
     .job = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"},
     .node = "GROUP_RANK",
     .nodes = "GROUP_WORLD_SIZE"},
    {.launcher = "mpirun",
     .sign = "OMPI_COMM_WORLD_RANK",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .job = {"PMIX_NAMESPACE"}},
    {.launcher = "mpirun",
     .sign = "MPI_LOCALRANKID",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .ancestor = "hydra_pmi_proxy",
     .option = "--control-port"},
    {.launcher = "srun",
     .sign = "SLURM_STEP_NUM_TASKS",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .local_rank = "SLURM_LOCALID",
     .local_size = "SLURM_STEP_TASKS_PER_NODE",
     .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .node = "SLURM_NODEID",
     .nodes = "SLURM_STEP_NUM_NODES"},
};

bool ParseNumber(const char* first, const char* last, int32_t* number) {
  const auto [end, error] = std::from_chars(first, last, *number);
  return error == std::errc() && end == last;
}

bool ParseNumber(const std::string& text, int32_t* number) {
  return ParseNumber(text.data(), text.data() + text.size(), number);
}

// "2(x3),1" means 2, 2, 2, 1.
bool TasksOfNode(const std::string& list, int32_t node, int32_t* tasks) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string part = list.substr(begin, end - begin);
    const size_t times = part.find("(x");
    int32_t nodes = 1;
    if (times != std::string::npos &&
        (part.back() != ')' ||
         !ParseNumber(part.substr(times + 2, part.size() - times - 3), &nodes))) {
      return false;
    }
    if (!ParseNumber(part.substr(0, times), tasks)) return false;
    if (node < nodes) return true;
    node -= nodes;
    begin = end + 1;
  }
  return false;
}

// The word that follows `option` on a process's command line.
std::string FindOption(int64_t pid, const std::string& option) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  for (std::string word; std::getline(file, word, '\0');) {
    if (word == option && std::getline(file, word, '\0')) return word;
  }
  return "";
}

// The option of the nearest process of that name above this one, or "PID.START" where it has none;
// empty: there is no such process.
std::string FindAncestor(const std::string& name, const std::string& option) {
  for (int64_t pid = getppid(); pid > 1;) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    // Not by iterators: they throw where the process is reaped between.
    std::string line;
    std::getline(file, line, '\0');
    const size_t open = line.find('('), close = line.rfind(')');
    if (open == std::string::npos || close == std::string::npos) return "";
    std::istringstream fields(line.substr(close + 1));
    std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
    constexpr size_t kParent = 1, kStartTime = 19;
    if (words.size() <= kStartTime) return "";
    if (line.substr(open + 1, close - open - 1) == name) {
      const std::string value = FindOption(pid, option);
      if (!value.empty()) return value;
      return std::to_string(pid) + "." + words[kStartTime];
    }
    pid = std::atoll(words[kParent].c_str());
  }
  return "";
}

int Incomplete(const Names& names, const char* variable, const char* value) {
  return FailFormat(
      Code::kInvalidArgument,
      "%s seems to have started this process (%s is set), but %s is %s%s%s: pass on all of its "
      "variables, or start the job by `ringctl run -n N -- COMMAND`",
      names.launcher, names.sign, variable, value == nullptr ? "not set" : "'",
      value == nullptr ? "" : value, value == nullptr ? "" : "'");
}

// "n[01-03,7],m1" begins with n01.
std::string FirstOfNodeList(const std::string& list) {
  const size_t end = list.find_first_of("[,");
  std::string name = list.substr(0, end);
  if (end != std::string::npos && list[end] == '[') {
    name += list.substr(end + 1, list.find_first_of("-,]", end) - end - 1);
  }
  return name;
}

// A port that no other step of Slurm's has now, most likely, outside the range that the kernel
// gives to outgoing connections.
int32_t PortOfStep(const Lookup& lookup) {
  constexpr int64_t kFirstPort = 20000, kPorts = 12000, kStepsApart = 61;
  int64_t number = 0;
  for (const char* const variable : {"SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    const char* const text = lookup(variable);
    number = number * kStepsApart + (text == nullptr ? 0 : std::atoll(text));
  }
  return static_cast<int32_t>(kFirstPort + number % kPorts);
}

int FindMeeting(const Lookup& lookup, Launch* launch) {
  constexpr int32_t kMaxPort = 65534;
  const char* const host = lookup("MASTER_ADDR");
  const char* const port = lookup("MASTER_PORT");
  if (host != nullptr && port != nullptr) {
    if (!ParseNumber(port, &launch->meeting_port) || launch->meeting_port < 1 ||
        launch->meeting_port > kMaxPort) {
      return FailFormat(Code::kInvalidArgument, "MASTER_PORT is '%s', not a port of 1 to %d", port,
                        kMaxPort);
    }
    launch->meeting_host = host;
    ++launch->meeting_port;
  } else if (const char* const list = lookup("SLURM_STEP_NODELIST");
             list != nullptr && launch->launcher == "srun") {
    launch->meeting_host = host != nullptr ? host : FirstOfNodeList(list);
    launch->meeting_port = PortOfStep(lookup);
  }
  return RINGD_OK;
}

// Only where there are several nodes, so that one works with less.
int ReadNodes(const Names& names, const Lookup& lookup, Launch* launch) {
  if (launch->place.size == launch->place.local_size) return RINGD_OK;
  launch->nodes = 0;
  if (const int code = FindMeeting(lookup, launch); code != RINGD_OK) return code;
  if (names.node == nullptr) launch->node = -1;
  if (names.node == nullptr) return RINGD_OK;
  const std::pair<const char*, int32_t*> numbers[] = {{names.node, &launch->node},
                                                      {names.nodes, &launch->nodes}};
  for (const auto& [variable, number] : numbers) {
    const char* const value = lookup(variable);
    if (value == nullptr || !ParseNumber(value, number)) return Incomplete(names, variable, value);
  }
  if (launch->node >= 0 && launch->node < launch->nodes) return RINGD_OK;
  return FailFormat(Code::kInvalidArgument, "%s's variables contradict each other: node %d of %d",
                    names.launcher, launch->node, launch->nodes);
}

int Read(const Names& names, const Lookup& lookup, Launch* launch) {
  attach::Place& place = launch->place;
  const std::pair<const char*, int32_t*> numbers[] = {
      {names.rank, &place.rank}, {names.size, &place.size}, {names.local_rank, &place.local_rank}};
  for (const auto& [variable, number] : numbers) {
    const char* const value = lookup(variable);
    if (value == nullptr || !ParseNumber(value, number)) return Incomplete(names, variable, value);
  }
  const char* const local_size = lookup(names.local_size);
  int32_t node = 0;
  const char* const node_text = lookup("SLURM_NODEID");
  if (node_text != nullptr && !ParseNumber(node_text, &node)) {
    return Incomplete(names, "SLURM_NODEID", node_text);
  }
  if (local_size == nullptr || (!ParseNumber(local_size, &place.local_size) &&
                                !TasksOfNode(local_size, node, &place.local_size))) {
    return Incomplete(names, names.local_size, local_size);
  }
  if (place.rank < 0 || place.rank >= place.size || place.local_rank < 0 ||
      place.local_rank >= place.local_size || place.local_size > place.size) {
    return FailFormat(Code::kInvalidArgument,
                      "%s's variables contradict each other: rank %d of %d, local rank %d of %d "
                      "(%s, %s, %s, %s)",
                      names.launcher, place.rank, place.size, place.local_rank, place.local_size,
                      names.rank, names.size, names.local_rank, names.local_size);
  }
  launch->launcher = names.launcher;
  launch->job = names.launcher;
  for (const char* const variable : names.job) {
    const char* const value = lookup(variable);
    if (value == nullptr) return Incomplete(names, variable, value);
    launch->job += std::string("-") + value;
  }
  if (names.ancestor != nullptr) {
    const std::string ancestor = FindAncestor(names.ancestor, names.option);
    if (ancestor.empty()) {
      return FailFormat(Code::kInvalidArgument,
                        "%s is set, but no process %s is above this one: start the ranks by mpirun "
                        "itself, or by `ringctl run -n N -- COMMAND`",
                        names.sign, names.ancestor);
    }
    launch->job += "-" + ancestor;
  }
  return ReadNodes(names, lookup, launch);
}

// Whether a rank of `outer` has called srun, and that one has started this process. What srun's own
// process on this node was started with says so: variables of a launcher below it aren't there.
bool IsWithinOwnSrun(const Names& outer, const Lookup& lookup) {
  const char* const task = lookup("SLURM_TASK_PID");
  if (task == nullptr || lookup("SLURM_STEP_NUM_TASKS") == nullptr) return false;
  std::ifstream file("/proc/" + std::string(task) + "/environ");
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.starts_with(std::string(outer.sign) + "=")) return true;
  }
  return false;
}

}  // namespace

int FindLaunch(const Lookup& lookup, Launch* launch) {
  *launch = {};
  for (const Names& names : kLaunchers) {
    if (lookup(names.sign) == nullptr) continue;
    if (std::string_view(names.launcher) == "torchrun" && IsWithinOwnSrun(names, lookup)) continue;
    return Read(names, lookup, launch);
  }
  return RINGD_OK;
}

}  // namespace ringd::client
