#include "daemon/engine/order/compare.h"

#include "absl/strings/str_cat.h"
#include "daemon/collectives/mismatch.h"

namespace ringd::daemon {

Outcome Compare(OperationKey key, const Request& first, int first_rank, const Request& mine,
                int rank) {
  Outcome outcome;
  outcome.rank = rank;
  if (!mine.rejection.empty()) {
    outcome.code = arena::Code::kInvalidArgument;
    outcome.message = absl::StrCat(OperationText(key), ": rank ", rank, " called ",
                                   DescribeRequest(mine), ": ", mine.rejection);
  } else if (&mine != &first && !SameOperation(first, mine)) {
    outcome.code = arena::Code::kMismatch;
    outcome.message =
        MismatchMessage(key, DescribeForRank(first, first_rank), DescribeForRank(mine, rank));
  }
  return outcome;
}

}  // namespace ringd::daemon
