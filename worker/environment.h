// The environment of a rank's process: the user's, and who it is.
#ifndef RINGD_WORKER_ENVIRONMENT_H_
#define RINGD_WORKER_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/node.pb.h"

namespace ringd::worker {

struct HostFacts {
  int usable_cpus = 1;         // That the worker may run on.
  std::string home_directory;  // Of spec.user; empty: unknown.
};

// The user's variables, HOME USER LOGNAME (unless set) where the worker switches to a user, the
// rank's identity (it wins over the user's; ringctl(1) lists it), PYTHONUNBUFFERED and
// OMP_NUM_THREADS unless set. A pure function.
std::map<std::string, std::string> RankEnvironment(const node::v1::WorkerSpec& spec,
                                                   const HostFacts& host);

// "NAME=VALUE", sorted.
std::vector<std::string> EnvironmentStrings(const std::map<std::string, std::string>& variables);

// "0-3,8": the numbers in it, ascending. INVALID_ARGUMENT for anything else, or a number of kMaxCpu
// or above.
absl::StatusOr<std::vector<int>> ParseCpuList(const std::string& text);
inline constexpr int kMaxCpu = 4096;

}  // namespace ringd::worker

#endif  // RINGD_WORKER_ENVIRONMENT_H_
