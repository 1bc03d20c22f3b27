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

// What this node has of a job whose ranks another launcher started on several.
struct JobPart {
  std::string ranks;    // "FIRST:COUNT"; empty: this is no part.
  std::string of;       // The launcher's job.
  std::string timeout;  // For the other parts to come.
};

struct ForegroundRun {
  JobOptions options;
  std::vector<std::string> command;
  // As many ranks as there are slots (embedded: cores), 2 at least; options.ranks is not looked at.
  bool all_slots = false;
  // Daemons on other machines that take part in an embedded run: slots of each; and how they reach
  // this one. Their invitations go to standard output, a line each, which is then closed.
  std::vector<int> guests;
  std::string guest_host;
  JobPart part;
  RankOutput::Taker take_output;  // Gets the ranks' standard output; empty: ringctl's own does.
};

// Blocks until it has ended. The exit code, or what went wrong before it began (INVALID_ARGUMENT
// and FAILED_PRECONDITION: what the user can put right). REQUIRES: this process has one thread.
absl::StatusOr<int> RunJob(const Settings& settings, ForegroundRun run);

// `ringctl join`: the daemon of one guest of an embedded run elsewhere, for the invitation on
// standard input. Blocks until that run has ended. REQUIRES: this process has one thread.
absl::StatusOr<int> JoinAsGuest();

// Says on standard error which environment variables the ranks don't get.
void TellLeftOut(const std::vector<std::string>& names);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_JOB_H_
