// `ringd-worker attach`: gives the ranks that another launcher started on this node their job.
#ifndef RINGD_WORKER_ATTACH_ATTACH_H_
#define RINGD_WORKER_ATTACH_ATTACH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ringd::worker {

struct AttachOptions {
  std::string job;  // As client/c/launch names it.
  int size = 0;
  int local_size = 0;
  absl::Duration timeout;
};

// Listens and forks. The caller's process returns; the other one, with a session of its own, starts
// the job, closes stderr and returns when the job has ended. REQUIRES: no other thread.
// ALREADY_EXISTS: somebody listens for this job on this node. FAILED_PRECONDITION: ranks on other
// nodes.
absl::Status Attach(const AttachOptions& options);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_ATTACH_ATTACH_H_
