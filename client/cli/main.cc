// ringctl.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "client/cli/local/local_verbs.h"
#include "client/cli/verb.h"
#include "client/cli/verbs.h"

namespace {

// Started with stdin, stdout or stderr closed: pipes and sockets must not take their numbers.
void FillStandardDescriptors() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  FillStandardDescriptors();
  signal(SIGPIPE, SIG_IGN);  // A reader that went away is an error of write().
  const std::vector<ringd::cli::Group> groups = {
      {"local", "A cluster on this machine: up, nodes, exec, start, stop, restart, down"},
      {"certs", "Certificates for a cluster over TCP: init, add"},
      {"config", "ringctl's settings"},
  };
  std::vector<ringd::cli::Verb> verbs;
  for (const auto& table :
       {ringd::cli::RunVerbs(), ringd::cli::BenchVerbs(), ringd::cli::JobVerbs(),
        ringd::cli::ClusterVerbs(), ringd::cli::CertsVerbs(), ringd::cli::LocalVerbs()}) {
    verbs.insert(verbs.end(), table.begin(), table.end());
  }
  return ringd::cli::RunCommandLine(groups, verbs, std::vector<std::string>(argv + 1, argv + argc));
}
