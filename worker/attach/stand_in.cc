#include "worker/attach/stand_in.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "client/session/codes.h"
#include "common/base/fd.h"
#include "common/base/unix_socket.h"
#include "proto/attach.h"

namespace ringd::worker {
namespace {

constexpr int kExitFailure = 1;

std::string Variable(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr ? value : "";
}

bool ReadNumber(const char* name, int32_t* number) {
  return absl::SimpleAtoi(Variable(name), number);
}

int Complain(const std::string& what) {
  fprintf(stderr, "%s\n", what.c_str());
  return kExitFailure;
}

// Without leaving a core: that of the process itself is enough.
[[noreturn]] void EndBy(int signal_number) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(signal_number, SIG_DFL);
  kill(getpid(), signal_number);
  _exit(kExitFailure);
}

}  // namespace

int StandIn(const std::string& job, const char* given_node) {
  signal(SIGTERM, SIG_IGN);
  attach::StandInHello hello{};
  hello.header = {attach::Kind::kStandInHello, attach::kVersion};
  attach::Place& place = hello.place;
  int32_t node = 0;
  if (!ReadNumber("RINGD_RANK", &place.rank) || !ReadNumber("RINGD_SIZE", &place.size) ||
      !ReadNumber("RINGD_LOCAL_RANK", &place.local_rank) ||
      !ReadNumber("RINGD_LOCAL_SIZE", &place.local_size) || !ReadNumber("RINGD_NODE_RANK", &node)) {
    return Complain("ringd-worker stand-in: ringd did not start it; ringd's init() does that");
  }
  if (given_node != nullptr) node = atoi(given_node);
  session::FillText(Variable("RINGD_SOCKET"), hello.worker_socket, sizeof(hello.worker_socket));
  UniqueFd socket;
  PeerCredentials peer;
  const int error =
      ConnectUnix(attach::AttachSocketName(geteuid(), job, node), SOCK_SEQPACKET, &socket);
  if (error < 0 || GetPeerCredentials(socket.get(), &peer) < 0 || peer.uid != geteuid() ||
      SendPacket(socket.get(), &hello, sizeof(hello), nullptr, 0) < 0) {
    return Complain("no `ringd-worker attach` waits for job " + job +
                    " on this node: have all ranks there called init()?");
  }
  attach::RankEnded ended;
  const ssize_t bytes = ReceivePacket(socket.get(), &ended, sizeof(ended), nullptr, -1);
  if (bytes != sizeof(ended) || ended.header.kind != attach::Kind::kRankEnded) {
    return Complain("`ringd-worker attach`, which watches this rank's process, is gone");
  }
  const std::string text = session::ReadText(ended.text, sizeof(ended.text));
  if (!text.empty()) Complain(text);
  if (ended.signal > 0 && ended.signal <= SIGRTMAX) EndBy(ended.signal);
  return ended.exit_code;
}

}  // namespace ringd::worker
