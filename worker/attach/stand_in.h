// `ringd-worker stand-in`: what a rank's worker runs where another launcher started the rank.
#ifndef RINGD_WORKER_ATTACH_STAND_IN_H_
#define RINGD_WORKER_ATTACH_STAND_IN_H_

#include <string>

namespace ringd::worker {

// Tells the `ringd-worker attach` of `job` on this node (`node`, where that is one number on all
// nodes; else null) where its worker listens, waits until the
// rank's process has ended, and ends likewise: by the same exit code or signal. SIGTERM, for which
// a training process of ringd's own would end, is left to the launcher to send. Returns the exit
// code.
int StandIn(const std::string& job, const char* node);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_ATTACH_STAND_IN_H_
