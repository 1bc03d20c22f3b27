// The words for "these ranks did not call the same thing", from the descriptions of two of them.
#ifndef RINGD_DAEMON_COLLECTIVES_MISMATCH_H_
#define RINGD_DAEMON_COLLECTIVES_MISMATCH_H_

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/collectives/communicator.h"

namespace ringd::daemon {

// Collective::description of a plan is its canonical text: this header line, then one line a bucket
// and one a tensor, each field followed by a tab. `rank R: ` stands before the whole, as before
// every description.
//   plan 1 with 2 buckets and 3 tensors
//   bucket <TAB> 0 <TAB> float32[30] average
//   tensor <TAB> layer1.weight <TAB> float32[10, 3] <TAB> 0 <TAB> 0      (name, signature, bucket,
//   offset)
// Tabs, line ends and backslashes in names are escaped.
inline constexpr char kPlanTextBucket[] = "bucket";
inline constexpr char kPlanTextTensor[] = "tensor";

// " of plan 2 of group 5", " with tag 3"; empty for the job's own sequence.
std::string ChannelText(uint64_t channel);
// "operation s.5 of group 3", "operation n.2" (the second named one), "message with tag 1". 0 in a
// channel of named operations: not ordered yet.
std::string OperationText(OperationKey key);

// What to tell the ranks: "operation s.5 is not the same on all ranks: rank 0 called allreduce
// float32[10] sum, rank 1 called ...". Plans: names the first tensor that one of them lacks, or
// that has another dtype, shape or bucket, with both values. first and second:
// Collective::description of the two; a text that was cut short is taken as it is.
std::string MismatchMessage(OperationKey key, absl::string_view first, absl::string_view second);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_MISMATCH_H_
