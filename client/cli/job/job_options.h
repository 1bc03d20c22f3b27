// The options of `run` and `submit`, and the job that they describe.
#ifndef RINGD_CLIENT_CLI_JOB_JOB_OPTIONS_H_
#define RINGD_CLIENT_CLI_JOB_JOB_OPTIONS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "client/cli/job/environment.h"
#include "proto/cluster.pb.h"

namespace ringd::cli {

// As typed; "" or 0 where not given.
struct JobOptions {
  int ranks = 0;
  std::string name;
  int nodes = 0;
  int ranks_per_node = 0;
  std::string hosts;
  std::string hostfile;
  int min_ranks = 0;
  int max_ranks = 0;
  std::string on_failure;
  int max_restarts = 3;
  EnvironmentRequest environment;
  std::string cwd;
  std::string output_directory;
  int gpus_per_rank = 0;
  std::string gpu_bind = "none";
  int cpus_per_rank = 0;
  bool reproducible = false;
  std::string deadline;
  std::string stall_timeout = "none";
  std::string grace = "30s";
  bool queue = false;
};

void AddJobOptions(CLI::App* app, JobOptions* options);

// The number of ranks: -n, else nodes x ranks-per-node, else 1. INVALID_ARGUMENT: they contradict
// each other.
absl::StatusOr<int> CountRanks(const JobOptions& options);

// What a job takes from ringctl's own process.
struct Surroundings {
  Variables environment;
  std::string working_directory;
  mode_t umask = 022;
};
Surroundings CurrentSurroundings();

struct JobRequest {
  ringd::cluster::v1::JobSpec spec;
  std::vector<std::string> left_out;  // Environment variables the ranks don't get.
};

// Checks all that can be checked without a cluster. INVALID_ARGUMENT: the message names the option
// and what is right.
absl::StatusOr<JobRequest> BuildJob(const JobOptions& options,
                                    const std::vector<std::string>& command,
                                    const Surroundings& surroundings);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_JOB_JOB_OPTIONS_H_
