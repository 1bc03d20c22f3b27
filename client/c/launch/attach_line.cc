#include "client/c/launch/attach_line.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/c/error.h"
#include "common/base/futex.h"
#include "common/base/unix_socket.h"

namespace ringd::client {
namespace {

using attach::Kind;

constexpr int64_t kRetryMicros = 10'000;
constexpr int64_t kMicrosPerSecond = 1'000'000;
// The server answers late ranks itself, and knows who is missing.
constexpr int64_t kServerPatienceMicros = 5 * kMicrosPerSecond;

void Pause() {
  const timespec pause{.tv_sec = 0, .tv_nsec = kRetryMicros * 1000};
  nanosleep(&pause, nullptr);
}

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

// posix_spawn's arguments: a session of its own, no descriptor of ours but `error` as its stderr.
int Spawn(const std::vector<std::string>& words, int error, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, error, STDERR_FILENO);
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

std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[1024];
  while (true) {
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    text.append(buffer, static_cast<size_t>(bytes));
  }
}

// Blocks until the helper listens and has gone into the background, or has failed.
int StartHelper(const Launch& launch, int64_t timeout_us) {
  const std::string program = FindHelper();
  if (program.empty()) return LastError().code;
  const int64_t seconds = std::max<int64_t>(1, timeout_us / kMicrosPerSecond);
  const std::vector<std::string> words = {program,
                                          "attach",
                                          launch.job,
                                          std::to_string(launch.place.size),
                                          std::to_string(launch.place.local_size),
                                          std::to_string(seconds)};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return FailFormat(Code::kResourceExhausted, "making a pipe: %s", strerror(errno));
  }
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  pid_t pid = 0;
  if (const int error = Spawn(words, input.get(), &pid); error != 0) {
    return FailFormat(Code::kUnavailable, "starting %s: %s", program.c_str(), strerror(error));
  }
  input.reset();
  const std::string text = ReadToEnd(output.get());
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text.empty() ? RINGD_OK : Fail(Code::kUnavailable, text);
}

int NobodyThere(const Launch& launch, int64_t timeout_us) {
  return FailFormat(Code::kDeadlineExceeded,
                    "local rank 0 of this node has not called ringd's init() within %lld s: it "
                    "starts ringd for the job that %s started. All ranks call init(); give "
                    "init(timeout=...) more where they need longer",
                    static_cast<long long>(timeout_us / kMicrosPerSecond), launch.launcher.c_str());
}

enum class Outcome { kPlaced, kFailed, kAgain };

Outcome Greet(int socket, const Launch& launch, int64_t timeout_us, std::string* worker_socket) {
  PeerCredentials peer;
  if (GetPeerCredentials(socket, &peer) != 0 || peer.uid != geteuid()) {
    FailFormat(Code::kUnavailable,
               "process %d of user %u listens where ringd's helper for job %s should: end it, or "
               "start the job under another name",
               peer.pid, peer.uid, launch.job.c_str());
    return Outcome::kFailed;
  }
  const attach::RankHello hello{.header = {Kind::kRankHello, attach::kVersion},
                                .place = launch.place,
                                .timeout_us = timeout_us};
  if (SendPacket(socket, &hello, sizeof(hello), nullptr, 0) < 0) return Outcome::kAgain;
  alignas(8) std::byte packet[sizeof(attach::Refusal)];
  const ssize_t bytes =
      ReceivePacket(socket, packet, sizeof(packet), nullptr, timeout_us + kServerPatienceMicros);
  if (bytes == -ETIMEDOUT) {
    Fail(Code::kDeadlineExceeded,
         "`ringd-worker attach` does not answer: end it, and start the job again");
    return Outcome::kFailed;
  }
  // One of a job before that is just ending.
  if (bytes <= 0) return Outcome::kAgain;
  const auto& header = *reinterpret_cast<const attach::Header*>(packet);
  if (header.kind == Kind::kRankPlace && bytes == sizeof(attach::RankPlace)) {
    const auto& place = *reinterpret_cast<const attach::RankPlace*>(packet);
    worker_socket->assign(place.worker_socket,
                          strnlen(place.worker_socket, sizeof(place.worker_socket)));
    return Outcome::kPlaced;
  }
  if (header.kind == Kind::kRefusal && bytes == sizeof(attach::Refusal)) {
    const auto& refusal = *reinterpret_cast<const attach::Refusal*>(packet);
    Fail(static_cast<Code>(refusal.code),
         std::string(refusal.text, strnlen(refusal.text, sizeof(refusal.text))));
    return Outcome::kFailed;
  }
  Fail(Code::kInternal,
       "ringd-worker's answer can't be read: install the same version of ringd for all ranks");
  return Outcome::kFailed;
}

}  // namespace

int AttachLine::Open(const Launch& launch, int64_t timeout_us, std::unique_ptr<AttachLine>* line) {
  const std::string name = attach::AttachSocketName(geteuid(), launch.job);
  const int64_t deadline_us = MonotonicMicros() + timeout_us;
  bool started = launch.place.local_rank != 0;
  while (true) {
    const int64_t left_us = std::max<int64_t>(1, deadline_us - MonotonicMicros());
    UniqueFd socket;
    const int error = ConnectUnix(name, SOCK_SEQPACKET, &socket);
    if (error == 0) {
      std::string worker_socket;
      const Outcome outcome = Greet(socket.get(), launch, left_us, &worker_socket);
      if (outcome == Outcome::kFailed) return LastError().code;
      if (outcome == Outcome::kPlaced) {
        line->reset(new AttachLine(std::move(socket), std::move(worker_socket)));
        return RINGD_OK;
      }
    } else if (error != -ECONNREFUSED && error != -EAGAIN) {
      return FailFormat(Code::kUnavailable, "reaching `ringd-worker attach`: %s", strerror(-error));
    } else if (!started) {
      if (const int code = StartHelper(launch, left_us); code != RINGD_OK) return code;
      started = true;
      continue;
    }
    if (MonotonicMicros() >= deadline_us) return NobodyThere(launch, timeout_us);
    Pause();
  }
}

int AttachLine::Return(const Launch& launch, int64_t timeout_us) {
  const Outcome outcome = Greet(socket_.get(), launch, timeout_us, &worker_socket_);
  if (outcome == Outcome::kPlaced) return RINGD_OK;
  if (outcome == Outcome::kFailed) return LastError().code;
  return Fail(Code::kUnavailable, "the job that this process was part of has ended");
}

void AttachLine::SayGoodbye() {
  const attach::RankGoodbye goodbye{.header = {Kind::kRankGoodbye, attach::kVersion}};
  (void)SendPacket(socket_.get(), &goodbye, sizeof(goodbye), nullptr, 0);
}

}  // namespace ringd::client
