// How processes and ranks end, in the same words wherever it is said.
#ifndef RINGD_COMMON_PROCESS_EXIT_TEXT_H_
#define RINGD_COMMON_PROCESS_EXIT_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ringd {

// "SIGKILL" for 9; "signal 99" for numbers without a name.
std::string SignalName(int signal);

// "exited with code 3", "was killed by SIGKILL". signal 0: none.
std::string ExitText(int exit_code, int signal);

// The last line with something in it, without blanks at its ends.
absl::string_view LastLine(absl::string_view text);

struct RankEnd {
  int rank = 0;
  absl::string_view node;
  int exit_code = 0;
  int signal = 0;
  bool start_failed = false;
  absl::string_view reason;       // What is known beyond code and signal.
  absl::string_view stderr_tail;  // Its last line is told.
};
// "rank 1 (node b) exited with code 3: ValueError: x", "rank 1 (node b) was killed by SIGKILL
// (OOM-killed)".
std::string RankEndSentence(const RankEnd& end);

}  // namespace ringd

#endif  // RINGD_COMMON_PROCESS_EXIT_TEXT_H_
