#include "common/process/exit_text.h"

#include <string.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ringd {

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

std::string ExitText(int exit_code, int signal) {
  return signal != 0 ? absl::StrCat("was killed by ", SignalName(signal))
                     : absl::StrCat("exited with code ", exit_code);
}

absl::string_view LastLine(absl::string_view text) {
  text = absl::StripTrailingAsciiWhitespace(text);
  const size_t start = text.find_last_of("\r\n");  // A progress bar's last state is its line.
  if (start != absl::string_view::npos) text.remove_prefix(start + 1);
  return absl::StripLeadingAsciiWhitespace(text);
}

std::string RankEndSentence(const RankEnd& end) {
  std::string text = absl::StrCat("rank ", end.rank, " (node ", end.node, ") ");
  if (end.start_failed) {
    absl::StrAppend(&text, "could not be started");
  } else {
    absl::StrAppend(&text, ExitText(end.exit_code, end.signal));
  }
  if (!end.reason.empty()) {
    absl::StrAppend(&text, end.start_failed ? ": " : " (", end.reason, end.start_failed ? "" : ")");
  }
  const absl::string_view line = LastLine(end.stderr_tail);
  if (!line.empty()) absl::StrAppend(&text, ": ", line);
  return text;
}

}  // namespace ringd
