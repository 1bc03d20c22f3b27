// Tells when processes end.
#ifndef RINGD_DAEMON_RANKS_PROCESS_WATCHER_H_
#define RINGD_DAEMON_RANKS_PROCESS_WATCHER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/sync/mutex.h"

namespace ringd::daemon {

// Watches pidfds on a thread of its own; reaps those that are our children.
//
// Life: Create starts the thread, the destructor ends it; what is still watched is left alone.
// Ownership: pidfds are taken over.
// Thread-safe. Callbacks run on the watcher's thread and must not block.
class ProcessWatcher {
 public:
  // how: "was killed by SIGKILL", "exited with code 1"; empty for what is not our child.
  using Ended = std::function<void(const std::string& how)>;

  static absl::StatusOr<std::unique_ptr<ProcessWatcher>> Create();
  ~ProcessWatcher();

  // `ended` runs once, at once if the process has ended already. A process that is watched already
  // keeps its first callback.
  void Watch(pid_t pid, UniqueFd pidfd, Ended ended);

 private:
  struct Entry {
    UniqueFd pidfd;
    Ended ended;
  };

  ProcessWatcher() = default;
  void Run();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::thread thread_;
  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<pid_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_RANKS_PROCESS_WATCHER_H_
