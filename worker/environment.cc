#include "worker/environment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace ringd::worker {
namespace {

using Variables = std::map<std::string, std::string>;

// Of a launcher around ringd. Those that a rank sees are of one that it has started itself, and
// whose ranks are meant then (client/c/launch).
constexpr const char* kOuterLaunchers[] = {"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK",
                                           "MPI_LOCALRANKID", "SLURM_STEP_NUM_TASKS"};

void AddIdentity(const node::v1::WorkerSpec& spec, Variables* variables) {
  const node::v1::RankLayout& layout = spec.layout();
  const std::pair<const char*, int> numbers[] = {
      {"RINGD_RANK", layout.rank()},
      {"RINGD_SIZE", layout.size()},
      {"RINGD_LOCAL_RANK", layout.local_rank()},
      {"RINGD_LOCAL_SIZE", layout.local_size()},
      {"RINGD_NODE_RANK", layout.node_rank()},
      {"RINGD_NODE_COUNT", layout.node_count()},
      {"RANK", layout.rank()},
      {"WORLD_SIZE", layout.size()},
      {"LOCAL_RANK", layout.local_rank()},
      {"LOCAL_WORLD_SIZE", layout.local_size()},
      {"GROUP_RANK", layout.node_rank()},
      {"GROUP_WORLD_SIZE", layout.node_count()},
      {"HOROVOD_RANK", layout.rank()},
      {"HOROVOD_SIZE", layout.size()},
      {"HOROVOD_LOCAL_RANK", layout.local_rank()},
      {"HOROVOD_LOCAL_SIZE", layout.local_size()},
      {"HOROVOD_CROSS_RANK", layout.node_rank()},
      {"HOROVOD_CROSS_SIZE", layout.node_count()},
  };
  for (const auto& [name, number] : numbers) (*variables)[name] = absl::StrCat(number);
  (*variables)["RINGD_JOB"] = spec.job();
  (*variables)["RINGD_SOCKET"] = spec.worker_socket();
  (*variables)["HOROVOD_HOSTNAME"] = spec.node();
  (*variables)["HOROVOD_CONTROLLER"] =
      "gloo";  // What Horovod's own launcher says where there is no MPI.
  (*variables)["HOROVOD_CPU_OPERATIONS"] = "gloo";
  if (!spec.master_address().empty()) {
    (*variables)["MASTER_ADDR"] = spec.master_address();
    (*variables)["MASTER_PORT"] = absl::StrCat(spec.master_port());
  }
}

// A rank bound to CPUs of its own uses these; others what they were promised, or a share.
int ThreadCount(const node::v1::WorkerSpec& spec, const HostFacts& host) {
  if (const auto bound = ParseCpuList(spec.bind_cpus()); bound.ok() && !bound->empty()) {
    return static_cast<int>(bound->size());
  }
  if (spec.cpus_per_rank() > 0) return spec.cpus_per_rank();
  return std::max(1, host.usable_cpus / std::max(1, spec.slots_used()));
}

}  // namespace

Variables RankEnvironment(const node::v1::WorkerSpec& spec, const HostFacts& host) {
  Variables variables(spec.environment().begin(), spec.environment().end());
  for (const char* const name : kOuterLaunchers) variables.erase(name);
  if (spec.switch_user() && !spec.user().empty()) {
    variables.emplace("USER", spec.user());
    variables.emplace("LOGNAME", spec.user());
    if (!host.home_directory.empty()) variables.emplace("HOME", host.home_directory);
  }
  variables.emplace("PYTHONUNBUFFERED", "1");
  variables.emplace("OMP_NUM_THREADS", absl::StrCat(ThreadCount(spec, host)));
  AddIdentity(spec, &variables);
  return variables;
}

std::vector<std::string> EnvironmentStrings(const Variables& variables) {
  std::vector<std::string> strings;
  strings.reserve(variables.size());
  for (const auto& [name, value] : variables) strings.push_back(absl::StrCat(name, "=", value));
  return strings;
}

absl::StatusOr<std::vector<int>> ParseCpuList(const std::string& text) {
  std::vector<int> cpus;
  if (text.empty()) return cpus;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    if (!absl::SimpleAtoi(ends.first, &first))
      return absl::InvalidArgumentError(absl::StrCat("CPU list '", text, "'"));
    int last = first;
    const bool range = part.find('-') != absl::string_view::npos;
    if ((range && !absl::SimpleAtoi(ends.second, &last)) || first < 0 || last < first ||
        last >= kMaxCpu) {
      return absl::InvalidArgumentError(absl::StrCat("CPU list '", text, "'"));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

}  // namespace ringd::worker
