// Where the scheduler's records outlive it.
#ifndef RINGD_SCHEDULER_STORE_STORE_H_
#define RINGD_SCHEDULER_STORE_STORE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "scheduler/state/machine.h"
#include "scheduler/state/record.pb.h"

namespace ringd::scheduler {

// Jobs, nodes and counters.
//
// Life: opened, Load once, then Commit.
// Ownership: what a batch points to stays the caller's.
// Thread-bound: the state thread.
class Store {
 public:
  struct Batch {
    struct Job {
      const v1::JobRecord* record = nullptr;
      const ringd::cluster::v1::JobSpec* spec =
          nullptr;  // Null: as it was. REQUIRES: given for a new job.
    };
    uint64_t next_number = 0;
    std::vector<Job> jobs;
    std::vector<uint64_t> deleted_jobs;  // Numbers.
    std::vector<v1::NodeRecord> nodes;
  };

  virtual ~Store() = default;

  // Everything that was committed. The term is one more than at any Load before, and durable.
  //   DATA_LOSS  a record can't be read
  virtual absl::StatusOr<Snapshot> Load() = 0;

  // All or nothing. Durable when it returns OK: it survives kill -9 and loss of power.
  //   UNAVAILABLE  the disk is full or fails; nothing was written
  virtual absl::Status Commit(const Batch& batch) = 0;
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STORE_STORE_H_
