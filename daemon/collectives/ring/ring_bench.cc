// Allreduce between two processes of this host over loopback TCP, beside a loop that only moves the
// same bytes.
//
//   ring_bench [MB] [ROUNDS]
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/transport/data_port.h"
#include "daemon/transport/event_loop.h"

namespace ringd::daemon {
namespace {

using Clock = std::chrono::steady_clock;

// One of the two processes.
class Node {
 public:
  Node(int index, int to_peer, int from_peer)
      : index_(index), port_(DataPort::Create(&loop_, "127.0.0.1:0").value()) {
    int mine = port_->port();
    if (write(to_peer, &mine, sizeof(mine)) != sizeof(mine) ||
        read(from_peer, &peer_port_, sizeof(peer_port_)) != sizeof(peer_port_)) {
      std::abort();
    }
  }

  RingSockets Connect(uint64_t generation) {
    RingOptions options;
    options.job = "bench";
    options.generation = generation;
    options.key = std::string(32, 'k');
    options.node_index = index_;
    options.node_count = 2;
    options.right_address = absl::StrCat("127.0.0.1:", peer_port_);
    RingSockets result;
    port_->OpenRing(options,
                    [&](absl::StatusOr<RingSockets> sockets) { result = sockets.value(); });
    while (result.left < 0) loop_.Poll(absl::Milliseconds(10));
    return result;
  }

  // Milliseconds of each round, in order of size.
  std::vector<double> Allreduce(size_t bytes, int rounds) {
    GroupLayout layout;
    layout.nodes = {{"a", 0, 1}, {"b", 1, 1}};
    layout.node_index = index_;
    const auto communicator = MakeRingCommunicator(layout, 1, Connect(1), &loop_);
    std::vector<float> tensor(bytes / sizeof(float), 1.0f);
    std::vector<double> times;
    for (int round = 1; round <= rounds; ++round) {
      auto collective = std::make_shared<Collective>();
      collective->operation = Operation::kAllreduce;
      collective->dtype = DType::kFloat32;
      collective->reduction = Reduction::kAverage;
      collective->scaling.divisor = 2;
      collective->count = tensor.size();
      auto* const data = reinterpret_cast<std::byte*>(tensor.data());
      collective->ranks.push_back({data, data});
      bool is_done = false;
      const Clock::time_point start = Clock::now();
      communicator->Start({0, static_cast<uint64_t>(round)}, collective,
                          [&](const Outcome& outcome) {
                            if (!outcome.ok())
                              std::fprintf(stderr, "%s\n", outcome.message.c_str());
                            is_done = true;
                          });
      while (!is_done) {
        if (!communicator->Progress()) loop_.Poll(absl::Milliseconds(1));
      }
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    return times;
  }

  // The same bytes to the right and from the left, nothing else.
  std::vector<double> Raw(size_t bytes, int rounds) {
    const RingSockets sockets = Connect(2);
    std::vector<char> out(bytes), in(bytes);
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      const Clock::time_point start = Clock::now();
      size_t sent = 0, received = 0;
      while (sent < bytes || received < bytes) {
        const ssize_t written = send(sockets.right, out.data() + sent,
                                     std::min<size_t>(bytes - sent, 256 << 10), MSG_NOSIGNAL);
        const ssize_t got = recv(sockets.left, in.data() + received,
                                 std::min<size_t>(bytes - received, 256 << 10), 0);
        if (written > 0) sent += static_cast<size_t>(written);
        if (got > 0) received += static_cast<size_t>(got);
        if (written > 0 || got > 0) continue;
        pollfd ready[2] = {{sockets.left, static_cast<short>(received < bytes ? POLLIN : 0), 0},
                           {sockets.right, static_cast<short>(sent < bytes ? POLLOUT : 0), 0}};
        poll(ready, 2, 100);
      }
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    close(sockets.left);
    close(sockets.right);
    std::sort(times.begin(), times.end());
    return times;
  }

 private:
  const int index_;
  EventLoop loop_;
  const std::unique_ptr<DataPort> port_;
  int peer_port_ = 0;
};

void RunNode(int index, int to_peer, int from_peer, size_t bytes, int rounds) {
  Node node(index, to_peer, from_peer);
  const std::vector<double> raw = node.Raw(bytes, rounds);
  const std::vector<double> ring = node.Allreduce(bytes, rounds);
  if (index != 0) return;
  const auto report = [&](const char* name, const std::vector<double>& times) {
    const double median = times[times.size() / 2];
    std::printf("%-10s median %8.3f ms  best %8.3f ms  %8.1f MB/s each way\n", name, median,
                times[0], static_cast<double>(bytes) / 1e3 / median);
  };
  report("raw loop", raw);
  report("allreduce", ring);
  std::printf("allreduce / raw loop: %.2f\n", raw[raw.size() / 2] / ring[ring.size() / 2]);
}

int Main(int argc, char** argv) {
  const size_t megabytes = argc > 1 ? static_cast<size_t>(std::atoi(argv[1])) : 32;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  if (megabytes == 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: ring_bench [MB] [ROUNDS]\n");
    return 2;
  }
  if (const absl::Status status = SetLogLevels("warning"); !status.ok()) return 1;
  int forward[2], backward[2];
  if (pipe(forward) != 0 || pipe(backward) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    RunNode(1, backward[1], forward[0], megabytes << 20, rounds);
    _exit(0);
  }
  RunNode(0, forward[1], backward[0], megabytes << 20, rounds);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ringd::daemon

int main(int argc, char** argv) { return ringd::daemon::Main(argc, argv); }
