// Who is told what workers say.
#ifndef RINGD_DAEMON_SESSION_WORKER_OBSERVER_H_
#define RINGD_DAEMON_SESSION_WORKER_OBSERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "proto/node.pb.h"

namespace ringd::daemon {

// Thread-safe; calls come from the threads of Supervise streams and don't block. `line` is the
// WorkerLine's id.
class WorkerObserver {
 public:
  virtual ~WorkerObserver() = default;
  virtual void OnWorkerAttached(const std::string& job, int rank, uint64_t line, pid_t pid) = 0;
  virtual void OnWorkerReport(const std::string& job, int rank, node::v1::WorkerReport report) = 0;
  virtual void OnWorkerDetached(const std::string& job, int rank, uint64_t line) = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_SESSION_WORKER_OBSERVER_H_
