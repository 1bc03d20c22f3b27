#include "client/c/launch/attach_line.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
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
constexpr size_t kAnswerBytes = 16384;  // An invitation has two certificates and a key.
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

// Above the numbers of the standard streams, which this process may have closed.
bool MakePipe(UniqueFd* read_end, UniqueFd* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const UniqueFd first(ends[0]), second(ends[1]);
  read_end->reset(fcntl(ends[0], F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  write_end->reset(fcntl(ends[1], F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  return read_end->valid() && write_end->valid();
}

// What the helper does beyond its own node, and what it reads.
struct Role {
  std::vector<std::string> words;
  std::string input;
};

// Blocks until the helper listens and has gone into the background, or has failed. *output: what it
// has written.
int StartHelper(const Launch& launch, const Role& role, int64_t timeout_us, std::string* output) {
  const std::string program = FindHelper();
  if (program.empty()) return LastError().code;
  const int64_t seconds = std::max<int64_t>(1, timeout_us / kMicrosPerSecond);
  std::vector<std::string> words = {program,
                                    "attach",
                                    launch.job,
                                    std::to_string(launch.node),
                                    std::to_string(launch.place.size),
                                    std::to_string(launch.place.local_size),
                                    std::to_string(seconds)};
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
  *output = ReadToEnd(output_fd.get());
  const std::string text = ReadToEnd(errors.get());
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text.empty() ? RINGD_OK : Fail(Code::kUnavailable, text);
}

std::string InvitationKey(int32_t node) { return "invitation/" + std::to_string(node); }
std::string SizeKey(int32_t node) { return "size/" + std::to_string(node); }

// Node 0: learns the others' sizes, starts the scheduler, and invites them.
int StartHost(const Launch& launch, const Exchange& exchange, int64_t timeout_us) {
  const char* const host = getenv("MASTER_ADDR");
  if (host == nullptr) return Fail(Code::kInvalidArgument, "MASTER_ADDR is not set");
  std::string slots;
  for (int32_t node = 1; node < launch.nodes; ++node) {
    std::string size;
    if (const int code = exchange.Get(SizeKey(node), node, &size); code != RINGD_OK) return code;
    slots += (node > 1 ? "," : "") + size;
  }
  std::string output;
  const int code = StartHelper(launch, {{"host", host, slots}, ""}, timeout_us, &output);
  const std::string why = LastError().message;
  for (int32_t node = 1; node < launch.nodes; ++node) {
    const size_t end = output.find('\n');
    // Empty: what has happened is known on node 0, and told there.
    const std::string line = end == std::string::npos ? "" : output.substr(0, end);
    output.erase(0, end == std::string::npos ? end : end + 1);
    if (const int put = exchange.Put(InvitationKey(node), line); put != RINGD_OK) return put;
  }
  return code == RINGD_OK ? code : Fail(static_cast<Code>(code), why);
}

int StartGuest(const Launch& launch, const Exchange& exchange, int64_t timeout_us) {
  const std::string size = std::to_string(launch.place.local_size);
  if (const int code = exchange.Put(SizeKey(launch.node), size); code != RINGD_OK) return code;
  std::string line, output;
  if (const int code = exchange.Get(InvitationKey(launch.node), 0, &line); code != RINGD_OK) {
    return code;
  }
  if (line.empty()) {
    return Fail(Code::kUnavailable, "ringd has not started on node 0: rank 0's error says why");
  }
  return StartHelper(launch, {{"guest"}, line + "\n"}, timeout_us, &output);
}

int Start(const Launch& launch, const Exchange& exchange, int64_t timeout_us) {
  std::string output;
  if (launch.nodes == 1) return StartHelper(launch, {}, timeout_us, &output);
  return launch.node == 0 ? StartHost(launch, exchange, timeout_us)
                          : StartGuest(launch, exchange, timeout_us);
}

// Said by all ranks at once: none need wait for another that can't start.
int CheckNodes(const Launch& launch, const Exchange& exchange) {
  const bool torchrun = launch.launcher == "torchrun";
  if (launch.nodes == 1 || (torchrun && exchange.call != nullptr)) return RINGD_OK;
  return FailFormat(
      Code::kUnavailable,
      "only %d of the job's %d ranks are on this node, and %s%s: start it by "
      "`ringctl run`, or a Python program by torchrun",
      launch.place.local_size, launch.place.size,
      torchrun ? "this program can't use torchrun's store" : "ringd can't connect nodes under ",
      torchrun ? "" : launch.launcher.c_str());
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

int Exchange::Put(const std::string& key, const std::string& text) const {
  char answer[kAnswerBytes] = "";
  if (call(context, key.c_str(), text.c_str(), answer, sizeof(answer)) == 0) return RINGD_OK;
  return FailFormat(Code::kUnavailable, "telling the other nodes '%s': %s", key.c_str(), answer);
}

int Exchange::Get(const std::string& key, int32_t node, std::string* text) const {
  char answer[kAnswerBytes] = "";
  const bool good = call(context, key.c_str(), nullptr, answer, sizeof(answer)) == 0;
  *text = std::string(answer, strnlen(answer, sizeof(answer)));
  if (good) return RINGD_OK;
  return FailFormat(Code::kDeadlineExceeded,
                    "node %d of this job has not come: do all ranks there call init(), and reach "
                    "MASTER_ADDR? init(timeout=...) waits longer (%s)",
                    node, text->c_str());
}

int AttachLine::Open(const Launch& launch, const Exchange& exchange, int64_t timeout_us,
                     std::unique_ptr<AttachLine>* line) {
  if (const int code = CheckNodes(launch, exchange); code != RINGD_OK) return code;
  const std::string name = attach::AttachSocketName(geteuid(), launch.job, launch.node);
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
      if (const int code = Start(launch, exchange, left_us); code != RINGD_OK) return code;
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
