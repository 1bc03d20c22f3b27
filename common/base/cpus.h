// How many CPUs there are for us.
#ifndef RINGD_COMMON_BASE_CPUS_H_
#define RINGD_COMMON_BASE_CPUS_H_

#include <sched.h>

namespace ringd {

// Those that this process may run on (affinity, cpuset); 1 where that can't be told.
inline int UsableCpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_CPUS_H_
