// A scheduler and daemons as real processes in a folder of their own, for tests.
#ifndef RINGD_TESTS_NODE_TEST_CLUSTER_H_
#define RINGD_TESTS_NODE_TEST_CLUSTER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/process/process.h"
#include "proto/cluster.grpc.pb.h"

namespace ringd::tests {

// Runs `condition` until it is true or `timeout` has passed; returns the last answer.
bool Eventually(const std::function<bool()>& condition, absl::Duration timeout = absl::Seconds(10));

// Whether a process is there and not a zombie.
bool Lives(pid_t pid);

// Life: the destructor kills what was started and removes the folder.
// Thread-bound: the test's thread. What goes wrong at set-up aborts the test.
class TestCluster {
 public:
  explicit TestCluster(bool embedded = false);
  ~TestCluster();

  const std::string& directory() const { return directory_; }
  std::string scheduler_address() const;

  void StartScheduler();
  // extra: further flags. Waits until the scheduler sees it, unless `wait` is false.
  Child& StartDaemon(const std::string& name, const std::vector<std::string>& extra = {},
                     bool wait = true);
  Child& daemon(const std::string& name) { return daemons_.at(name); }
  Child& scheduler() { return scheduler_; }
  void Kill(Child& child, int signal);
  // Blocks until the daemon has ended: its exit status and what it said.
  ExitStatus WaitForDaemon(const std::string& name, absl::Duration timeout = absl::Seconds(20));
  std::string DaemonOutput(const std::string& name) const;

  cluster::v1::JobSpec Shell(const std::string& script, int ranks) const;
  // The job's id; empty: refused, with *error.
  std::string Submit(const cluster::v1::JobSpec& spec, std::string* error = nullptr);
  cluster::v1::Job Describe(const std::string& job);
  // Waits for a final state.
  cluster::v1::Job Wait(const std::string& job, absl::Duration timeout = absl::Seconds(30));
  cluster::v1::Job WaitForRunning(const std::string& job);
  // Output of a rank: text of both streams, in order.
  std::string Logs(const std::string& job, int rank, int tail_lines = 0);
  cluster::v1::Cluster::Stub& stub() { return *stub_; }

  // Path of a program of this workspace.
  static std::string Program(const std::string& path);

 private:
  std::vector<std::string> Environment() const;

  const bool embedded_;
  std::string directory_;
  Child scheduler_;
  UniqueFd scheduler_lifeline_;
  std::map<std::string, Child> daemons_;
  std::unique_ptr<cluster::v1::Cluster::Stub> stub_;
};

}  // namespace ringd::tests

#endif  // RINGD_TESTS_NODE_TEST_CLUSTER_H_
