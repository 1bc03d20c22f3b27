#include "client/cli/local/tool.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process/process.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr size_t kMaxOutputBytes = 4096;

}  // namespace

std::string FindTool(const std::string& name) {
  const char* path = std::getenv("PATH");
  const std::string folders =
      absl::StrCat(path != nullptr ? path : "", ":/usr/sbin:/usr/bin:/sbin:/bin");
  for (const absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty())) {
    const std::string candidate = absl::StrCat(folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

absl::Status RunTool(const std::string& command_line) {
  SpawnOptions spawn;
  spawn.argv = absl::StrSplit(command_line, ' ', absl::SkipEmpty());
  const std::string path = FindTool(spawn.argv[0]);
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no program ", spawn.argv[0], " here"));
  }
  spawn.argv[0] = path;
  spawn.environment = {"LC_ALL=C"};
  const auto finished =
      RunToEnd(std::move(spawn), {STDOUT_FILENO, STDERR_FILENO}, kMaxOutputBytes, kTimeout);
  if (absl::IsDeadlineExceeded(finished.status())) {
    return absl::FailedPreconditionError(absl::StrCat("'", command_line, "' does not end"));
  }
  RINGD_RETURN_IF_ERROR(finished.status());
  if (finished->status.signal == 0 && finished->status.exit_code == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("'", command_line, "' failed: ", absl::StripAsciiWhitespace(finished->output)));
}

}  // namespace ringd::cli
