#include "client/cli/output/file_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/fd.h"

namespace ringd::cli {

std::string ReadFileText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

absl::Status WriteFileText(const std::string& path, const std::string& text, mode_t mode) {
  const auto failed = [&] {
    return absl::FailedPreconditionError(absl::StrCat("can't write ", path, ": ", strerror(errno)));
  };
  const std::string temporary = path + ".new";
  unlink(temporary.c_str());
  const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file.valid()) return failed();
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(file.get(), text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) return failed();
    done += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return failed();
  return absl::OkStatus();
}

std::string LastLines(const std::string& text, int count, absl::string_view indent) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  const size_t first = lines.size() - std::min(lines.size(), static_cast<size_t>(count));
  std::string result;
  for (size_t i = first; i < lines.size(); ++i) absl::StrAppend(&result, indent, lines[i], "\n");
  if (!result.empty()) result.pop_back();
  return result;
}

}  // namespace ringd::cli
