// The parts of ringd-scheduler put together.
#ifndef RINGD_SCHEDULER_MAIN_SCHEDULER_H_
#define RINGD_SCHEDULER_MAIN_SCHEDULER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/main/options.h"

namespace ringd::scheduler {

// Serves from Start until it is destroyed.
//
// Thread-compatible: external synchronisation.
class Scheduler {
 public:
  // Store, state and listeners; STATE/scheduler.address holds the real addresses, one a line, while
  // it serves.
  //   INVALID_ARGUMENT, ALREADY_EXISTS  the operator's: one line that says what to do
  static absl::StatusOr<std::unique_ptr<Scheduler>> Start(Options options);
  virtual ~Scheduler() = default;

  // With the chosen ports.
  virtual const std::vector<std::string>& addresses() const = 0;
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_MAIN_SCHEDULER_H_
