#include "client/c/launch/helper.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "client/c/error.h"
#include "common/base/fd.h"
#include "common/base/read_to_end.h"

namespace ringd::client {
namespace {

constexpr int64_t kMicrosPerSecond = 1'000'000;
constexpr int kExitNoCluster = 3;

// Beside this library, or in the bin beside its folder.
std::string FindHelper() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&FindHelper), &info) == 0) return "";
  const std::string library = info.dli_fname;
  const size_t slash = library.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : library.substr(0, slash);
  for (const char* const place : {"/bin/ringd-worker", "/ringd-worker", "/../bin/ringd-worker"}) {
    if (access((folder + place).c_str(), X_OK) == 0) return folder + place;
  }
  FailFormat(Code::kUnavailable,
             "there is no ringd-worker in %s or its bin: install ringd's wheel, or start the job "
             "by `ringctl run -n N -- COMMAND`",
             folder.c_str());
  return "";
}

// Descriptors of ours that become the helper's stdin, stdout and stderr; it gets no others.
struct Streams {
  int input, output, error;
};

int Spawn(const std::vector<std::string>& words, const Streams& streams, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, streams.input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, streams.output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, streams.error, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int rc = posix_spawn(pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return rc;
}

// Above the numbers of the standard streams, which this process may have closed.
bool MakePipe(UniqueFd* read_end, UniqueFd* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const UniqueFd first(ends[0]), second(ends[1]);
  read_end->reset(fcntl(ends[0], F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  write_end->reset(fcntl(ends[1], F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  return read_end->valid() && write_end->valid();
}

}  // namespace

int StartHelper(const Launch& launch, const HelperRole& role, int64_t timeout_us,
                HelperAnswer* answer) {
  const std::string program = FindHelper();
  if (program.empty()) return LastError().code;
  const int64_t seconds =
      std::max<int64_t>(1, (timeout_us + kMicrosPerSecond - 1) / kMicrosPerSecond);
  std::vector<std::string> words = {program, "attach", launch.job};
  for (const int64_t number :
       {int64_t{launch.node}, int64_t{launch.place.rank - launch.place.local_rank},
        int64_t{launch.place.size}, int64_t{launch.place.local_size}, seconds}) {
    words.push_back(std::to_string(number));
  }
  words.insert(words.end(), role.words.begin(), role.words.end());
  UniqueFd input, input_end, output_fd, output_end, errors, errors_end;
  if (!MakePipe(&input, &input_end) || !MakePipe(&output_fd, &output_end) ||
      !MakePipe(&errors, &errors_end)) {
    return FailFormat(Code::kResourceExhausted, "making a pipe: %s", strerror(errno));
  }
  // Less than a pipe holds.
  if (write(input_end.get(), role.input.data(), role.input.size()) < 0) {
    return FailFormat(Code::kResourceExhausted, "writing to a pipe: %s", strerror(errno));
  }
  input_end.reset();
  pid_t pid = 0;
  const Streams streams{input.get(), output_end.get(), errors_end.get()};
  if (const int error = Spawn(words, streams, &pid); error != 0) {
    return FailFormat(Code::kUnavailable, "starting %s: %s", program.c_str(), strerror(error));
  }
  output_end.reset();
  errors_end.reset();
  answer->output = ReadToEnd(output_fd.get());
  const std::string text = ReadToEnd(errors.get());
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  answer->found_none = WIFEXITED(status) && WEXITSTATUS(status) == kExitNoCluster;
  return text.empty() ? RINGD_OK : Fail(Code::kUnavailable, text);
}

}  // namespace ringd::client
