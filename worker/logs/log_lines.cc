#include "worker/logs/log_lines.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ringd::worker {
namespace {

// Length of the well-formed UTF-8 sequence at the start of text, 0 if there is none (RFC 3629's
// table).
size_t SequenceLength(absl::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const auto continues = [&](size_t i) { return (at(i) & 0xc0) == 0x80; };
  const uint8_t lead = at(0);
  if (lead == 0) return 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool overlong = lead == 0xe0 && at(1) < 0xa0;
    const bool surrogate = lead == 0xed && at(1) > 0x9f;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool overlong = lead == 0xf0 && at(1) < 0x90;
    const bool beyond = lead == 0xf4 && at(1) > 0x8f;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

// "10%\r20%\r" was overwritten: "20%".
absl::string_view LastState(absl::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const size_t start = line.rfind('\r');
  return start == absl::string_view::npos ? line : line.substr(start + 1);
}

}  // namespace

std::string LineSplitter::Add(absl::string_view data) {
  pending_.append(data.data(), data.size());
  const size_t end = pending_.find_last_of("\n\r");
  const size_t rest = end == std::string::npos ? pending_.size() : pending_.size() - end - 1;
  if (rest >= kMaxPending) return std::exchange(pending_, {});
  if (end == std::string::npos) return {};
  std::string tail = pending_.substr(end + 1);
  pending_.resize(end + 1);
  return std::exchange(pending_, std::move(tail));
}

std::string LineSplitter::Flush() { return std::exchange(pending_, {}); }

void StderrTail::Add(absl::string_view data) {
  bytes_.append(data.data(), data.size());
  if (bytes_.size() > 4 * kMaxBytes) bytes_.erase(0, bytes_.size() - 2 * kMaxBytes);
}

std::string StderrTail::Text() const {
  absl::string_view text = bytes_;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.size() > kMaxBytes) {
    const bool at_line_start = text[text.size() - kMaxBytes - 1] == '\n';
    text = text.substr(text.size() - kMaxBytes);
    const size_t line_end = text.find('\n');
    if (!at_line_start && line_end != absl::string_view::npos) text = text.substr(line_end + 1);
  }
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
  for (absl::string_view& line : lines) line = LastState(line);
  return CleanUtf8(absl::StrJoin(lines, "\n"));
}

std::string CleanUtf8(absl::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) {
      clean.push_back('?');
    } else {
      clean.append(text.data(), length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return clean;
}

}  // namespace ringd::worker
