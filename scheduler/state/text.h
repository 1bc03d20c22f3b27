// The sentences of the scheduler: causes of failures, lists of nodes.
#ifndef RINGD_SCHEDULER_STATE_TEXT_H_
#define RINGD_SCHEDULER_STATE_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace ringd::scheduler {

// Bounds of texts that nodes send, so that no record grows with them.
inline constexpr size_t kMaxReasonBytes = 1024;
inline constexpr size_t kMaxTailBytes = 8192;

// At most max_bytes of text, cut at a character.
std::string Truncated(const std::string& text, size_t max_bytes);

// "node b", "nodes a, b", "nodes a, b, c, ... (12)".
std::string NodeList(const std::vector<std::string>& names);

// RankEndSentence of a report, of bounded length.
std::string FailureSentence(const ringd::cluster::v1::RankUpdate& update, const std::string& node);

// 1..255: the exit code, or 128 + signal; a rank that couldn't be started is 127 where it has no
// code.
int ExitCodeOf(const ringd::cluster::v1::RankUpdate& update);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STATE_TEXT_H_
