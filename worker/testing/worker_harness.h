// Runs the real ringd-worker against a FakeDaemon.
#ifndef RINGD_WORKER_TESTING_WORKER_HARNESS_H_
#define RINGD_WORKER_TESTING_WORKER_HARNESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/process/process.h"
#include "gtest/gtest.h"
#include "proto/arena.h"
#include "proto/node.pb.h"
#include "worker/testing/fake_daemon.h"

namespace ringd::worker {

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest();
  ~WorkerTest() override;

  // For `sh -c script`; tests change it before StartWorker.
  static std::vector<std::string> Shell(const std::string& script) {
    return {"/bin/sh", "-c", script};
  }
  void SetCommand(const std::vector<std::string>& command);

  void StartWorker();
  // Runs with --check-fd; what it printed comes back in *output.
  int RunCheck(std::string* output);

  // Fails the test if another report or none comes.
  pid_t ExpectStarted();
  node::v1::RankExited ExpectExited();
  std::string ExpectFailed();
  void Acknowledge();
  void Terminate(absl::Duration grace);
  void SendSignal(int signal);
  // The worker's own exit code (128 + signal), -1 after 20 s.
  int WaitForWorker();

  // Starts the command and gets through to its exit, acknowledged.
  node::v1::RankExited RunToEnd(const std::string& script);

  std::string ReadFile(const std::string& name) const;
  // "out 4, err 7": the index as words.
  std::string ReadIndex() const;
  bool WaitForFile(const std::string& name) const;
  static bool WaitForDeath(pid_t pid);
  // Connects to the rank's socket and says hello; what came back.
  struct Answer {
    UniqueFd socket;
    std::vector<char> packet;
    std::vector<UniqueFd> fds;
  };
  Answer SayHello(uint32_t layout_version = arena::kLayoutVersion) const;
  // One request on a connection.
  static void Ask(Answer* connection, const void* request, size_t bytes);

  std::string directory_;
  FakeDaemon daemon_;
  node::v1::WorkerSpec spec_;
  Child worker_;

 private:
  absl::StatusOr<Child> Spawn(const std::string& mode, int output);
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_TESTING_WORKER_HARNESS_H_
