// ringd-worker: the supervisor of one rank. Started by ringd; see README.md.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "common/base/version.h"
#include "common/log/log.h"
#include "worker/attach/attach.h"
#include "worker/attach/stand_in.h"
#include "worker/setup.h"
#include "worker/spec.h"
#include "worker/supervisor.h"

namespace {

constexpr int kExitFailure = 1;
constexpr int kExitBadInput = 2;
constexpr int kExitNoCluster = 3;

int Usage() {
  fprintf(stderr,
          "usage: ringd-worker --spec-fd N    supervise the rank that descriptor N describes\n"
          "       ringd-worker --check-fd N   only check its command; exit code 2 and one line if "
          "it can't run\n"
          "       ringd-worker attach JOB NODE FIRST-RANK SIZE LOCAL-SIZE SECONDS\n"
          "                           [host ADDRESS SLOTS,... | guest | refuse]\n"
          "                                   give the ranks that torchrun, mpirun or srun started "
          "on this node\n"
          "                                   their job; in the background\n"
          "       ringd-worker stand-in JOB [NODE]\n"
          "                                   run by ringd for each of these ranks\n"
          "       ringd-worker --version\n"
          "ringd and its libraries start this program; use 'ringctl run' to run a job.\n");
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

int StartAttach(int count, char** words) {
  using Role = ringd::worker::AttachOptions::Role;
  ringd::worker::AttachOptions options{.job = words[0]};
  int seconds = 0;
  const std::pair<const char*, int*> numbers[] = {{words[1], &options.node},
                                                  {words[2], &options.first_rank},
                                                  {words[3], &options.size},
                                                  {words[4], &options.local_size},
                                                  {words[5], &seconds}};
  for (const auto& [word, number] : numbers) {
    if (!absl::SimpleAtoi(word, number)) return Usage();
  }
  if (options.local_size <= 0 || options.size < options.local_size || seconds <= 0) return Usage();
  if (count == 9 && strcmp(words[6], "host") == 0) {
    options.role = Role::kHost;
    options.host = words[7];
    options.guest_slots = words[8];
  } else if (count == 7 && strcmp(words[6], "guest") == 0) {
    options.role = Role::kGuest;
  } else if (count == 7 && strcmp(words[6], "refuse") == 0) {
    options.role = Role::kRefuse;
  } else if (count != 6) {
    return Usage();
  }
  options.timeout = absl::Seconds(seconds);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  const absl::Status status = ringd::worker::Attach(options);
  if (status.ok() || absl::IsAlreadyExists(status)) return 0;
  if (absl::IsFailedPrecondition(status)) {
    printf("%s\n", std::string(status.message()).c_str());
    return kExitNoCluster;
  }
  fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return kExitFailure;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("ringd-worker %s\n", ringd::kVersion);
    return 0;
  }
  if (argc >= 8 && strcmp(argv[1], "attach") == 0) return StartAttach(argc - 2, argv + 2);
  if ((argc == 3 || argc == 4) && strcmp(argv[1], "stand-in") == 0) {
    return ringd::worker::StandIn(argv[2], argc == 4 ? argv[3] : nullptr);
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
