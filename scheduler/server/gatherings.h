// The jobs whose ranks another launcher has started on several nodes, until all of them are here.
#ifndef RINGD_SCHEDULER_SERVER_GATHERINGS_H_
#define RINGD_SCHEDULER_SERVER_GATHERINGS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"

namespace ringd::scheduler {

// Parts that wait at once, of all jobs. One is a call of some KB: the nodes of the largest cluster.
inline constexpr size_t kMaxParts = 8192;

using PartId = uint64_t;

// Pure: its clock is handed in, its answers are returned. What waits is not kept over a restart:
// the callers' connections break with it.
//
// Thread-compatible: external synchronisation.
class Gatherings {
 public:
  struct Part {
    PartId id = 0;
    uint32_t uid = 0;  // Parts of different users never meet.
    ringd::cluster::v1::GatherRequest request;
  };
  // What becomes of parts that wait no longer: the job to submit, rank 0's part first; or why there
  // is none.
  struct Outcome {
    std::vector<PartId> parts;
    absl::StatusOr<ringd::cluster::v1::JobSpec> spec;
  };

  // INVALID_ARGUMENT: a part that can't be, or that contradicts those that wait (they go on
  // waiting); RESOURCE_EXHAUSTED: kMaxParts wait.
  std::vector<Outcome> Add(Part part, absl::Duration now);
  // Its caller has gone.
  void Remove(PartId id);
  // DEADLINE_EXCEEDED: of the parts whose timeout has passed, and of all that wait with them.
  std::vector<Outcome> Expire(absl::Duration now);

 private:
  struct Waiting {
    std::map<int32_t, Part> parts;  // By first rank.
    absl::Duration deadline = absl::InfiniteDuration();
  };
  using Key = std::pair<uint32_t, std::string>;  // User, name.

  static absl::Status Check(const Waiting& waiting, const ringd::cluster::v1::GatherRequest& part);

  std::map<Key, Waiting> waiting_;
  std::map<PartId, Key> keys_;
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_SERVER_GATHERINGS_H_
