#include "daemon/engine/order/end_outcome.h"

#include "common/process/exit_text.h"

namespace ringd::daemon {

Outcome EndOutcome(const Outcome& outcome, int rank, const std::string& node,
                   const std::string& finished) {
  Outcome full = outcome;
  if (full.rank < 0) full.rank = rank;
  if (full.node.empty()) full.node = node;
  if (!full.message.empty()) return full;
  const bool has_failed = full.signal != 0 || full.exit_code > 0;
  full.message = has_failed ? RankEndSentence({.rank = full.rank,
                                               .node = full.node,
                                               .exit_code = full.exit_code,
                                               .signal = full.signal})
                            : finished;
  return full;
}

}  // namespace ringd::daemon
