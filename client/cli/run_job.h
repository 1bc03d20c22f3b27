// A job that a verb runs in the foreground: on this machine or on the scheduler's cluster.
#ifndef RINGD_CLIENT_CLI_RUN_JOB_H_
#define RINGD_CLIENT_CLI_RUN_JOB_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/job/job_options.h"
#include "client/cli/output/rank_output.h"
#include "client/cli/settings.h"

namespace ringd::cli {

struct ForegroundRun {
  JobOptions options;
  std::vector<std::string> command;
  // As many ranks as there are slots (embedded: cores), 2 at least; options.ranks is not looked at.
  bool all_slots = false;
  RankOutput::Taker take_output;  // Gets the ranks' standard output; empty: ringctl's own does.
};

// Blocks until it has ended. The exit code, or what went wrong before it began (INVALID_ARGUMENT
// and FAILED_PRECONDITION: what the user can put right). REQUIRES: this process has one thread.
absl::StatusOr<int> RunJob(const Settings& settings, ForegroundRun run);

// Says on standard error which environment variables the ranks don't get.
void TellLeftOut(const std::vector<std::string>& names);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_JOB_H_
