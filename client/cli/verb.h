// ringctl's verbs: what one is, and how a command line finds it.
#ifndef RINGD_CLIENT_CLI_VERB_H_
#define RINGD_CLIENT_CLI_VERB_H_

#include <functional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "client/cli/settings.h"

namespace ringd::cli {

// What a verb is run with. Its own options it keeps itself.
struct Invocation {
  Settings settings;
  std::vector<std::string> command;  // COMMAND..., for verbs that take one.
  const CLI::App* app = nullptr;     // All of ringctl, for `completion`.
};

struct Verb {
  std::string group;  // "local" in `ringctl local up`; usually empty.
  std::string name;
  std::string help;
  std::string examples;        // Shown under the options by --help.
  bool takes_command = false;  // COMMAND... follows, after "--" or after the positional words.
  int positionals = 0;         // Words before COMMAND.
  std::function<void(CLI::App*)> add_options;  // May be empty.
  // The exit code, or what went wrong (report.h says which exit code that is).
  std::function<absl::StatusOr<int>(const Invocation&)> run;
};

struct Group {
  std::string name;
  std::string help;
};

// Finds the verb, parses its options, runs it, writes errors to standard error. Returns ringctl's
// exit code.
int RunCommandLine(const std::vector<Group>& groups, const std::vector<Verb>& verbs,
                   const std::vector<std::string>& words);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_VERB_H_
