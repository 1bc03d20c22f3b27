// The worker's orders: a WorkerSpec in an inherited memfd.
#ifndef RINGD_WORKER_SPEC_H_
#define RINGD_WORKER_SPEC_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/node.pb.h"

namespace ringd::worker {

// Reads the descriptor from its start to its end (kMaxSpecBytes at most). The caller closes it.
//   INVALID_ARGUMENT  not a WorkerSpec, or ValidateSpec's word
absl::StatusOr<node::v1::WorkerSpec> ReadSpec(int fd);

// INVALID_ARGUMENT names the field that makes no sense.
absl::Status ValidateSpec(const node::v1::WorkerSpec& spec);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_SPEC_H_
