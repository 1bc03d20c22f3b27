#include "worker/attach/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/read_to_end.h"
#include "common/base/unix_socket.h"
#include "common/process/process.h"
#include "common/status/macros.h"
#include "proto/attach.h"
#include "worker/attach/attach_server.h"

namespace ringd::worker {
namespace {

// Survivors of a failure say what they know and end by themselves, or their launcher ends them.
constexpr char kGrace[] = "30s";
constexpr size_t kMaxNameBytes = 100;  // Of what a job may be called.
constexpr size_t kMaxErrorBytes = 64 << 10;

// Whether the user's settings name a cluster that this node is of. FAILED_PRECONDITION: no, and
// why.
absl::Status FindCluster() {
  SpawnOptions spawn;
  spawn.argv = {SiblingProgram("ringctl"), "here"};
  spawn.environment = OwnEnvironment();
  RINGD_ASSIGN_OR_RETURN(Finished here, RunToEnd(std::move(spawn), {STDERR_FILENO}, kMaxErrorBytes,
                                                 absl::InfiniteDuration()));
  if (here.status.signal == 0 && here.status.exit_code == 0) return absl::OkStatus();
  absl::StripTrailingAsciiWhitespace(&here.output);
  return absl::FailedPreconditionError(absl::StripPrefix(here.output, "ringctl: "));
}

// What runs the job: the user's cluster; or a private scheduler and daemon, whatever the user's
// files say; or the daemon of a guest.
std::vector<std::string> Command(const AttachOptions& options, bool cluster) {
  std::vector<std::string> words = {SiblingProgram("ringctl")};
  const auto add = [&words](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (!cluster) add({"--config", "/dev/null"});
  if (options.role == AttachOptions::Role::kGuest) {
    add({"join"});
    return words;
  }
  add({"run", "-n", absl::StrCat(options.size), "--grace", kGrace, "--name",
       options.job.substr(0, kMaxNameBytes)});
  if (options.role == AttachOptions::Role::kHost) {
    add({"--guests", options.guest_slots, "--guest-host", options.host});
  }
  if (cluster) {
    // The ranks are there already: their slots are waited for.
    add({"--queue", "--part", absl::StrCat(options.first_rank, ":", options.local_size),
         "--part-of", options.job, "--part-timeout", absl::FormatDuration(options.timeout)});
  }
  add({"--", SiblingProgram("ringd-worker"), "stand-in", options.job});
  if (options.node < 0) add({absl::StrCat(options.node)});
  return words;
}

absl::Status StartCommand(const AttachOptions& options, bool cluster,
                          AttachServer::Options* server) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("making a pipe: ", strerror(errno)));
  }
  server->command_errors.reset(ends[0]);
  const UniqueFd errors(ends[1]);
  if (!cluster) unsetenv("RINGD_SCHEDULER");
  SpawnOptions spawn;
  spawn.argv = Command(options, cluster);
  spawn.environment = OwnEnvironment();
  spawn.new_session = true;
  spawn.fds = {{STDERR_FILENO, errors.get()}};
  if (options.role == AttachOptions::Role::kHost) spawn.fds[STDOUT_FILENO] = STDOUT_FILENO;
  if (options.role == AttachOptions::Role::kGuest) spawn.fds[STDIN_FILENO] = STDIN_FILENO;
  RINGD_ASSIGN_OR_RETURN(server->command, Spawn(spawn));
  return absl::OkStatus();
}

void CloseStandardStreams() {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) dup2(null.get(), fd);
}

}  // namespace

absl::Status Attach(const AttachOptions& options) {
  using Role = AttachOptions::Role;
  bool cluster = false;
  if (options.role == Role::kFind) {
    const absl::Status found = FindCluster();
    cluster = found.ok();
    if (!cluster && (options.size > options.local_size || !absl::IsFailedPrecondition(found))) {
      return found;
    }
  }
  AttachServer::Options server;
  server.size = options.size;
  server.local_size = options.local_size;
  server.timeout = options.timeout;
  const std::string name = attach::AttachSocketName(geteuid(), options.job, options.node);
  const int error = ListenUnix(name, SOCK_SEQPACKET, 0, &server.listener);
  if (error == -EADDRINUSE) {
    return absl::AlreadyExistsError(
        absl::StrCat("somebody serves job ", options.job, " on this node already"));
  }
  if (error < 0) return absl::UnavailableError(absl::StrCat("listening: ", strerror(-error)));
  fcntl(server.listener.get(), F_SETFL, O_NONBLOCK);
  if (chdir("/") < 0) return absl::InternalError(absl::StrCat("entering /: ", strerror(errno)));
  const pid_t child = fork();
  if (child < 0) return absl::ResourceExhaustedError(absl::StrCat("forking: ", strerror(errno)));
  if (child > 0) return absl::OkStatus();
  setsid();
  if (options.role == Role::kRefuse) {
    const std::string text = ReadToEnd(STDIN_FILENO);
    CloseStandardStreams();
    RefuseRanks(server.listener, options.local_size - 1, options.timeout, text);
    return absl::OkStatus();
  }
  RINGD_RETURN_IF_ERROR(StartCommand(options, cluster, &server));
  CloseStandardStreams();
  AttachServer(std::move(server)).Run();
  return absl::OkStatus();
}

}  // namespace ringd::worker
