// What a rank prints, cut into lines: pure text, no files.
#ifndef RINGD_WORKER_LOGS_LOG_LINES_H_
#define RINGD_WORKER_LOGS_LOG_LINES_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ringd::worker {

// Joins what a pipe delivers into pieces that are written at once, so that lines of two streams (or
// of two ranks that share a terminal) don't mix. A piece ends with '\n' or '\r' (progress bars), at
// kMaxPending bytes, or where the caller flushes because nothing came for a while.
//
// Thread-compatible: external synchronisation.
class LineSplitter {
 public:
  static constexpr size_t kMaxPending = 64u << 10;  // A longer line is written in parts.

  // Adds bytes and returns what is ready; empty: nothing.
  std::string Add(absl::string_view data);
  // The unfinished line, which is then forgotten.
  std::string Flush();
  bool has_pending() const { return !pending_.empty(); }

 private:
  std::string pending_;
};

// The end of what a rank wrote to stderr, for the report of its failure.
//
// Thread-compatible: external synchronisation.
class StderrTail {
 public:
  static constexpr size_t kMaxBytes = 4096;
  static constexpr size_t kMaxLines = 20;

  void Add(absl::string_view data);
  // The last kMaxLines lines, kMaxBytes at most, as valid UTF-8 without a trailing newline. Of a
  // line that was overwritten with '\r', its last state.
  std::string Text() const;

 private:
  std::string bytes_;
};

// Every byte that is part of no well-formed UTF-8 sequence replaced by '?'; zero bytes too.
std::string CleanUtf8(absl::string_view text);

}  // namespace ringd::worker

#endif  // RINGD_WORKER_LOGS_LOG_LINES_H_
