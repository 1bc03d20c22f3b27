// Which of ringctl's environment variables the ranks get.
#ifndef RINGD_CLIENT_CLI_JOB_ENVIRONMENT_H_
#define RINGD_CLIENT_CLI_JOB_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ringd::cli {

using Variables = std::map<std::string, std::string>;

struct EnvironmentRequest {
  bool all = false;              // --env-all, and every embedded run.
  std::vector<std::string> env;  // --env NAME or NAME=VALUE.
};

struct EnvironmentChoice {
  Variables passed;
  std::vector<std::string> left_out;  // Names to tell the user about, sorted.
};

// This process's environment.
Variables CurrentEnvironment();

// True for the names that ranks on a cluster get unasked: PATH, HOME, LC_*, OMP_*, ...
bool IsPassedUnasked(const std::string& name);

// Text that no protobuf string can carry is left out even with `all`.
// INVALID_ARGUMENT: --env names a variable that isn't set, or isn't NAME or NAME=VALUE.
absl::StatusOr<EnvironmentChoice> ChooseEnvironment(const Variables& environment,
                                                    const EnvironmentRequest& request);

bool IsUtf8(const std::string& text);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_JOB_ENVIRONMENT_H_
