// Which launcher started this process, by the variables that it sets.
#ifndef RINGD_CLIENT_C_LAUNCH_LAUNCHER_H_
#define RINGD_CLIENT_C_LAUNCH_LAUNCHER_H_

#include <functional>
#include <string>

#include "proto/attach.h"

namespace ringd::client {

struct Launch {
  std::string launcher;  // "torchrun", "mpirun" or "srun"; empty: none of them.
  std::string job;       // The same in all processes of the job, and in no other job of this user.
  attach::Place place;
  int32_t node = 0;   // The number of this node in the job; -1: there are several, and the launcher
                      // doesn't say which this is.
  int32_t nodes = 1;  // 0: several, and the launcher doesn't say how many.
  // Of several nodes: where those of mpirun and srun can meet. By MASTER_ADDR and the port after
  // MASTER_PORT, which itself may be a store's of the program; else by what Slurm says. 0: nobody
  // says.
  std::string meeting_host;
  int32_t meeting_port = 0;
};

// getenv, or a test's.
using Lookup = std::function<const char*(const char* name)>;

// The innermost launcher: torchrun (unless one of its ranks has called srun), then mpirun (Open
// MPI's, MPICH's), then srun. Ranks of ringctl
// don't see the variables of a launcher around it (worker/environment). RINGD_INVALID_ARGUMENT: a
// launcher's variables are incomplete or contradict each other.
int FindLaunch(const Lookup& lookup, Launch* launch);

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_LAUNCH_LAUNCHER_H_
