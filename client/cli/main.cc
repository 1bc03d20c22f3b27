// ringctl.
#include <signal.h>

#include <string>
#include <vector>

#include "client/cli/local/local_verbs.h"
#include "client/cli/verb.h"
#include "client/cli/verbs.h"

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // A reader that went away is an error of write().
  const std::vector<ringd::cli::Group> groups = {
      {"local", "A cluster on this machine: up, nodes, exec, start, stop, restart, down"},
      {"config", "ringctl's settings"},
  };
  std::vector<ringd::cli::Verb> verbs;
  for (const auto& table : {ringd::cli::RunVerbs(), ringd::cli::JobVerbs(),
                            ringd::cli::ClusterVerbs(), ringd::cli::LocalVerbs()}) {
    verbs.insert(verbs.end(), table.begin(), table.end());
  }
  return ringd::cli::RunCommandLine(groups, verbs, std::vector<std::string>(argv + 1, argv + argc));
}
