#include "worker/setup.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/cpus.h"
#include "common/base/unix_socket.h"
#include "common/status/macros.h"
#include "worker/command.h"
#include "worker/environment.h"
#include "worker/process/credentials.h"

namespace ringd::worker {
namespace {

constexpr mode_t kWorkerUmask = 077;

HostFacts ReadHostFacts(const node::v1::WorkerSpec& spec) {
  HostFacts host;
  host.usable_cpus = UsableCpus();
  if (spec.switch_user()) host.home_directory = HomeDirectory(spec.uid());
  return host;
}

absl::Status Listen(const node::v1::WorkerSpec& spec, UniqueFd* listener) {
  const std::string& path = spec.worker_socket();
  const int rc = ListenUnix(path, SOCK_SEQPACKET, 0600, listener);
  if (rc == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("listening on the rank's socket ", path, ": ", strerror(-rc)));
}

absl::Status PrepareProcess(const node::v1::WorkerSpec& spec, PreparedRank* rank) {
  RINGD_ASSIGN_OR_RETURN(rank->log, LogFile::Open(spec.log_path()));
  const auto variables = RankEnvironment(spec, ReadHostFacts(spec));
  RankCommand command;
  command.argv.assign(spec.command().begin(), spec.command().end());
  RINGD_RETURN_IF_ERROR(CheckCommand(command.argv, variables, spec.working_directory()));
  RINGD_ASSIGN_OR_RETURN(command.program,
                         FindProgram(command.argv[0], variables, spec.working_directory()));
  RINGD_ASSIGN_OR_RETURN(command.cpus, ParseCpuList(spec.bind_cpus()));
  command.environment = EnvironmentStrings(variables);
  command.directory = spec.working_directory();
  command.umask = spec.umask();
  command.die_with_worker = spec.embedded();
  RINGD_ASSIGN_OR_RETURN(rank->process, RankProcess::Prepare(command));
  return absl::OkStatus();
}

// Makes the folder of --output-dir, as the rank's worker would.
absl::Status CheckLogFolder(const std::string& log_path) {
  const std::filesystem::path folder = std::filesystem::path(log_path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(folder.string(), ": ", error.message(),
                                                  "; --output-dir must name a writable folder"));
}

}  // namespace

absl::StatusOr<PreparedRank> PrepareRank(const node::v1::WorkerSpec& spec) {
  PreparedRank rank;
  umask(kWorkerUmask);
  if (chdir("/") < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
    return absl::InternalError(absl::StrCat("setting up the worker: ", strerror(errno)));
  }
  rank.problem = JoinCgroup(spec.cgroup());
  if (spec.switch_user()) RINGD_RETURN_IF_ERROR(BecomeUser(spec));
  // As the user from here on: nobody but the user can be harmed by what lies in the way of these
  // paths.
  if (rank.problem.ok()) rank.problem = Listen(spec, &rank.listener);
  if (rank.problem.ok()) rank.problem = PrepareProcess(spec, &rank);
  return rank;
}

absl::Status CheckRank(const node::v1::WorkerSpec& spec) {
  if (spec.switch_user()) RINGD_RETURN_IF_ERROR(BecomeUser(spec));
  const auto variables = RankEnvironment(spec, ReadHostFacts(spec));
  const std::vector<std::string> command(spec.command().begin(), spec.command().end());
  RINGD_RETURN_IF_ERROR(CheckCommand(command, variables, spec.working_directory()));
  return spec.check_log_folder() ? CheckLogFolder(spec.log_path()) : absl::OkStatus();
}

}  // namespace ringd::worker
