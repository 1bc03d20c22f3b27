// Running small system programs.
#ifndef RINGD_CLIENT_CLI_LOCAL_TOOL_H_
#define RINGD_CLIENT_CLI_LOCAL_TOOL_H_

#include <string>

#include "absl/status/status.h"

namespace ringd::cli {

// Path of a program in PATH or in the system's own folders; empty: none.
std::string FindTool(const std::string& name);

// Runs a command line (words without spaces or quotes). Blocks until it ends, 10 s at most.
// FAILED_PRECONDITION: it is missing or failed; the message has the command and what it wrote.
absl::Status RunTool(const std::string& command_line);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_LOCAL_TOOL_H_
