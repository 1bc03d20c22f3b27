#include "scheduler/state/text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/process/exit_text.h"

namespace ringd::scheduler {
namespace {

constexpr size_t kMaxNodesNamed = 8;
constexpr int kExitNotStarted = 127;
constexpr int kExitSignalBase = 128;

}  // namespace

std::string Truncated(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::string NodeList(const std::vector<std::string>& names) {
  if (names.size() == 1) return absl::StrCat("node ", names[0]);
  if (names.size() <= kMaxNodesNamed) return absl::StrCat("nodes ", absl::StrJoin(names, ", "));
  const std::vector<std::string> first(names.begin(), names.begin() + kMaxNodesNamed);
  return absl::StrCat("nodes ", absl::StrJoin(first, ", "), ", ... (", names.size(), ")");
}

std::string FailureSentence(const ringd::cluster::v1::RankUpdate& update, const std::string& node) {
  return Truncated(RankEndSentence({.rank = update.rank(),
                                    .node = node,
                                    .exit_code = update.exit_code(),
                                    .signal = update.signal(),
                                    .start_failed = update.start_failed(),
                                    .reason = update.reason(),
                                    .stderr_tail = update.stderr_tail()}),
                   kMaxReasonBytes);
}

int ExitCodeOf(const ringd::cluster::v1::RankUpdate& update) {
  // A failure never reads as success, whatever number a node sends.
  if (update.signal() != 0) return std::max((kExitSignalBase + update.signal()) & 0xFF, 1);
  if (update.exit_code() != 0) return std::max(update.exit_code() & 0xFF, 1);
  return update.start_failed() ? kExitNotStarted : 0;
}

}  // namespace ringd::scheduler
