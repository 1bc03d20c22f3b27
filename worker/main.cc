// ringd-worker: the supervisor of one rank. Started by ringd; see README.md.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/version.h"
#include "common/log/log.h"
#include "worker/setup.h"
#include "worker/spec.h"
#include "worker/supervisor.h"

namespace {

constexpr int kExitFailure = 1;
constexpr int kExitBadInput = 2;

int Usage() {
  fprintf(stderr,
          "usage: ringd-worker --spec-fd N    supervise the rank that descriptor N describes\n"
          "       ringd-worker --check-fd N   only check its command; exit code 2 and one line if "
          "it can't run\n"
          "       ringd-worker --version\n"
          "ringd starts this program; use 'ringctl run' to run a job.\n");
  return kExitBadInput;
}

int Check(const ringd::node::v1::WorkerSpec& spec) {
  const absl::Status status = ringd::worker::CheckRank(spec);
  if (status.ok()) return 0;
  printf("%s\n", std::string(status.message()).c_str());
  return kExitBadInput;
}

int Supervise(const ringd::node::v1::WorkerSpec& spec) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  const sigset_t signals = ringd::worker::SupervisedSignals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  absl::StatusOr<ringd::worker::PreparedRank> rank = ringd::worker::PrepareRank(spec);
  if (!rank.ok()) {
    ringd::GetLogger("worker")->error("worker not started job={} rank={} error={}", spec.job(),
                                      spec.layout().rank(), std::string(rank.status().message()));
    return kExitFailure;
  }
  return ringd::worker::Supervisor(spec, *std::move(rank)).Run();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("ringd-worker %s\n", ringd::kVersion);
    return 0;
  }
  int fd = -1;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &fd) || fd < 0) return Usage();
  const bool check = strcmp(argv[1], "--check-fd") == 0;
  if (!check && strcmp(argv[1], "--spec-fd") != 0) return Usage();
  const absl::StatusOr<ringd::node::v1::WorkerSpec> spec = ringd::worker::ReadSpec(fd);
  if (!spec.ok()) {
    fprintf(check ? stdout : stderr, "%s\n", std::string(spec.status().message()).c_str());
    return check ? kExitBadInput : kExitFailure;
  }
  if (fd > STDERR_FILENO) close(fd);
  return check ? Check(*spec) : Supervise(*spec);
}
