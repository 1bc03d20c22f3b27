// Becoming the user whose rank this is.
#ifndef RINGD_WORKER_PROCESS_CREDENTIALS_H_
#define RINGD_WORKER_PROCESS_CREDENTIALS_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "proto/node.pb.h"

namespace ringd::worker {

// Moves this process into a cgroup (a directory; "" does nothing).
absl::Status JoinCgroup(const std::string& cgroup);

// initgroups, setgid, setuid to spec.user, gid, uid, then proves that nothing of root is left.
// REQUIRES: one thread.
//   PERMISSION_DENIED  uid or gid 0, or a step failed: the process must not go on
absl::Status BecomeUser(const node::v1::WorkerSpec& spec);

// From the user database; "" if it has none.
std::string HomeDirectory(uid_t uid);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_PROCESS_CREDENTIALS_H_
