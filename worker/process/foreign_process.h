// Processes that this one did not start: clients.
#ifndef RINGD_WORKER_PROCESS_FOREIGN_PROCESS_H_
#define RINGD_WORKER_PROCESS_FOREIGN_PROCESS_H_

#include <sys/types.h>

#include <optional>

#include "common/base/fd.h"

namespace ringd::worker {

// A pidfd of the process at the other end of a Unix socket: the kernel's own, or (before Linux 6.5)
// one opened by number, good if the peer still had its end open afterwards. Invalid: it is gone.
UniqueFd OpenPeerPidfd(int socket, pid_t pid);

// Of a socket: its other end is closed.
bool HungUp(int socket);
bool HasEnded(int pidfd);

// As wait() would have it, of a process that has ended. None: its parent has reaped it already and
// the kernel (before Linux 6.15) doesn't keep the status.
std::optional<int> FindWaitStatus(int pidfd, pid_t pid);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_PROCESS_FOREIGN_PROCESS_H_
