// `ringd-worker attach`: gives the ranks that another launcher started on this node their job.
#ifndef RINGD_WORKER_ATTACH_ATTACH_H_
#define RINGD_WORKER_ATTACH_ATTACH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ringd::worker {

struct AttachOptions {
  enum class Role {
    kFind,   // The cluster that the user's settings name, if this node is of it; else, where all of
             // the job's ranks are here, a private scheduler and daemon.
    kHost,   // A private scheduler, and the daemon of the first ranks; guests on other nodes join.
    kGuest,  // The daemon of such a guest.
    kRefuse,  // No job: all ranks but the caller are told why, by a text on stdin.
  };

  std::string job;     // As client/c/launch names it.
  int node = 0;        // The number of this node in the job; -1: the launcher doesn't say.
  int first_rank = 0;  // On this node.
  int size = 0;
  int local_size = 0;
  absl::Duration timeout;
  Role role = Role::kFind;
  std::string host;         // kHost: this machine's name or address, as guests reach it.
  std::string guest_slots;  // kHost: "2,2", the ranks on each guest.
};

// Listens and forks. The caller's process returns; the other one, with a session of its own, starts
// the job, closes its standard streams and returns when the job has ended. A host writes an
// invitation for each guest to stdout; a guest reads its own on stdin. REQUIRES: no other thread.
// ALREADY_EXISTS: somebody listens for this job on this node. FAILED_PRECONDITION: kFind, and there
// is neither; the message says why there is no cluster. Nobody listens then.
absl::Status Attach(const AttachOptions& options);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_ATTACH_ATTACH_H_
