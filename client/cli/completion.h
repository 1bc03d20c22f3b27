// Completion of ringctl's words by a shell.
#ifndef RINGD_CLIENT_CLI_COMPLETION_H_
#define RINGD_CLIENT_CLI_COMPLETION_H_

#include <string>

#include "CLI/App.hpp"

namespace ringd::cli {

// A bash script: `source <(ringctl completion bash)`.
std::string BashCompletion(const CLI::App& app);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_COMPLETION_H_
