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

#include "absl/strings/str_cat.h"
#include "common/base/unix_socket.h"
#include "common/process/process.h"
#include "common/status/macros.h"
#include "proto/attach.h"
#include "worker/attach/attach_server.h"

namespace ringd::worker {
namespace {

// Survivors of a failure say what they know and end by themselves, or their launcher ends them.
constexpr char kGrace[] = "30s";

// A private scheduler and daemon, whatever the user's files say; or the daemon of a guest.
std::vector<std::string> Command(const AttachOptions& options) {
  std::vector<std::string> words = {SiblingProgram("ringctl"), "--config", "/dev/null"};
  const auto add = [&words](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (options.role == AttachOptions::Role::kGuest) {
    add({"join"});
    return words;
  }
  add({"run", "-n", absl::StrCat(options.size), "--grace", kGrace});
  if (options.role == AttachOptions::Role::kHost) {
    add({"--guests", options.guest_slots, "--guest-host", options.host});
  }
  add({"--", SiblingProgram("ringd-worker"), "stand-in", options.job});
  return words;
}

absl::Status StartCommand(const AttachOptions& options, AttachServer::Options* server) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("making a pipe: ", strerror(errno)));
  }
  server->command_errors.reset(ends[0]);
  const UniqueFd input(ends[1]);
  unsetenv("RINGD_SCHEDULER");
  SpawnOptions spawn;
  spawn.argv = Command(options);
  for (char** entry = environ; *entry != nullptr; ++entry) spawn.environment.emplace_back(*entry);
  spawn.new_session = true;
  spawn.fds = {{STDERR_FILENO, input.get()}};
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
  RINGD_RETURN_IF_ERROR(StartCommand(options, &server));
  CloseStandardStreams();
  AttachServer(std::move(server)).Run();
  return absl::OkStatus();
}

}  // namespace ringd::worker
