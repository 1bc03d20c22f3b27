// What a rank has left behind: every process below the worker, and in its cgroup.
#ifndef RINGD_WORKER_PROCESS_DESCENDANTS_H_
#define RINGD_WORKER_PROCESS_DESCENDANTS_H_

#include <string>

namespace ringd::worker {

// Signals the descendants of this process (it is a subreaper: nobody below it gets away by
// daemonising) and the other members of `cgroup` ("" for none). Returns how many got it.
int SignalDescendants(int signal, const std::string& cgroup);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_PROCESS_DESCENDANTS_H_
