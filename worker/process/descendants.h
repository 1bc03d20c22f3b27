// What a rank has left behind: every process below the worker, and in its cgroup.
#ifndef RINGD_WORKER_PROCESS_DESCENDANTS_H_
#define RINGD_WORKER_PROCESS_DESCENDANTS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace ringd::worker {

// All living processes whose chain of parents leads to `ancestor` (zombies left out), from /proc.
std::vector<pid_t> ListDescendants(pid_t ancestor);

// Signals the descendants of this process (it is a subreaper: nobody below it gets away by
// daemonising) and the other members of `cgroup` ("" for none). Returns how many got it.
int SignalDescendants(int signal, const std::string& cgroup);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_PROCESS_DESCENDANTS_H_
