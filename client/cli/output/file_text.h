// Small files, read and written whole.
#ifndef RINGD_CLIENT_CLI_OUTPUT_FILE_TEXT_H_
#define RINGD_CLIENT_CLI_OUTPUT_FILE_TEXT_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringd::cli {

// The file's content; empty if it can't be read.
std::string ReadFileText(const std::string& path);

// Replaces the file in one step (a reader sees the old content or the new). FAILED_PRECONDITION
// names path and cause.
absl::Status WriteFileText(const std::string& path, const std::string& text, mode_t mode);

// The last `count` lines that aren't empty, each after `indent`.
std::string LastLines(const std::string& text, int count, absl::string_view indent);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_OUTPUT_FILE_TEXT_H_
