// Finding the rank's program before it is started.
#ifndef RINGD_WORKER_COMMAND_H_
#define RINGD_WORKER_COMMAND_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ringd::worker {

// Where execvp would find `name` with the PATH of `environment`, as an absolute path; relative
// names and PATH entries count from `directory`.
//   NOT_FOUND          no such program: "python: no such program (PATH=/usr/bin)"
//   PERMISSION_DENIED  it is there but can't be executed
absl::StatusOr<std::string> FindProgram(const std::string& name,
                                        const std::map<std::string, std::string>& environment,
                                        const std::string& directory);

// The script of a python command: its first non-option argument; "" where there is none (-c, -m, -,
// no argument, or another program than python, python3, python3.11, ...).
std::string PythonScript(const std::vector<std::string>& command);

// All that can be known before the rank is started, as the user that this process runs as: the
// directory can be entered, the program found, the script read. The status's message is one line
// for the user.
absl::Status CheckCommand(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment,
                          const std::string& directory);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_COMMAND_H_
