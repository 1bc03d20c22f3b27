// Puts "[rank] " before the lines of ranks that share a terminal.
#ifndef RINGD_CLIENT_CLI_OUTPUT_LINE_PREFIXER_H_
#define RINGD_CLIENT_CLI_OUTPUT_LINE_PREFIXER_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ringd::cli {

// A line longer than this is passed on in pieces: the rest of it may be interleaved.
inline constexpr size_t kMaxHeldLineBytes = 1 << 20;

// Of one stream of one rank. Holds text back until its line ends, by '\n' or by '\r' (progress
// bars), so that whole lines never mix with those of other ranks.
//
// Thread-compatible: external synchronisation.
class LinePrefixer {
 public:
  explicit LinePrefixer(int rank);

  // What may be written now.
  std::string Add(absl::string_view data);
  // The unfinished last line, finished by '\n'; empty if there is none.
  std::string Finish();

 private:
  void Emit(absl::string_view text, std::string* output);

  const std::string prefix_;
  std::string held_;
  bool continues_ = false;     // The line's beginning was passed on already.
  bool after_return_ = false;  // The last byte passed on was '\r'.
};

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_OUTPUT_LINE_PREFIXER_H_
