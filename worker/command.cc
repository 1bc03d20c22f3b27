#include "worker/command.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status/macros.h"

namespace ringd::worker {
namespace {

constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";

std::string Join(const std::string& directory, const std::string& path) {
  if (!path.empty() && path[0] == '/') return path;
  return absl::StrCat(directory, absl::EndsWith(directory, "/") ? "" : "/", path);
}

bool IsDirectory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// 0 or errno.
int CheckExecutable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) < 0) return errno;
  if (!S_ISREG(info.st_mode)) return EACCES;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

bool IsPython(const std::string& program) {
  const std::string name = program.substr(program.rfind('/') + 1);
  if (!absl::StartsWith(name, "python")) return false;
  return name.find_first_not_of("0123456789.", strlen("python")) == std::string::npos;
}

enum class Option { kFlag, kTakesNext, kEndsScript };

// What a word of short options ("-u", "-Wignore", "-uX", "-m") means for the search.
Option ClassifyShortOptions(const std::string& word) {
  for (size_t i = 1; i < word.size(); ++i) {
    switch (word[i]) {
      case 'c':
      case 'm':
      case 'h':
      case 'V':
        return Option::kEndsScript;
      case 'W':
      case 'X':
        return i + 1 == word.size() ? Option::kTakesNext : Option::kFlag;
      default:
        break;
    }
  }
  return Option::kFlag;
}

Option ClassifyOption(const std::string& word) {
  if (!absl::StartsWith(word, "--")) return ClassifyShortOptions(word);
  if (word == "--check-hash-based-pycs") return Option::kTakesNext;
  return word == "--version" || absl::StartsWith(word, "--help") ? Option::kEndsScript
                                                                 : Option::kFlag;
}

absl::Status CheckDirectory(const std::string& directory) {
  struct stat info;
  const bool found = stat(directory.c_str(), &info) == 0;
  if (found && !S_ISDIR(info.st_mode))
    return absl::NotFoundError(absl::StrCat(directory, ": not a directory (--cwd)"));
  if (found && access(directory.c_str(), X_OK) == 0) return absl::OkStatus();
  if (errno == ENOENT)
    return absl::NotFoundError(absl::StrCat(directory, ": no such directory (--cwd)"));
  return absl::PermissionDeniedError(absl::StrCat(directory, ": ", strerror(errno), " (--cwd)"));
}

absl::Status CheckScript(const std::string& script, const std::string& directory) {
  std::string path = Join(directory, script);
  if (IsDirectory(path)) absl::StrAppend(&path, "/__main__.py");
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  if (errno == ENOENT || errno == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat(script, ": no such file (in ", directory, ")"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat(script, ": ", strerror(errno), " (in ", directory, ")"));
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name,
                                        const std::map<std::string, std::string>& environment,
                                        const std::string& directory) {
  if (name.find('/') != std::string::npos) {
    const std::string path = Join(directory, name);
    const int error = CheckExecutable(path);
    if (error == 0) return path;
    if (error != EACCES)
      return absl::NotFoundError(absl::StrCat(name, ": no such program (in ", directory, ")"));
    return absl::PermissionDeniedError(
        absl::StrCat(name, ": not an executable file (in ", directory, ")"));
  }
  const auto found = environment.find("PATH");
  const std::string path_list = found == environment.end() ? kDefaultPath : found->second;
  std::string denied;
  for (const absl::string_view entry : absl::StrSplit(path_list, ':')) {
    const std::string path = Join(Join(directory, std::string(entry)), name);
    const int error = CheckExecutable(path);
    if (error == 0) return path;
    if (error == EACCES && denied.empty() && !IsDirectory(path)) denied = path;
  }
  if (!denied.empty())
    return absl::PermissionDeniedError(absl::StrCat(denied, ": not an executable file"));
  return absl::NotFoundError(absl::StrCat(name, ": no such program (PATH=", path_list, ")"));
}

std::string PythonScript(const std::vector<std::string>& command) {
  if (command.empty() || !IsPython(command[0])) return "";
  for (size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == "-") return "";
    if (word == "--") return i + 1 < command.size() ? command[i + 1] : "";
    if (word.empty() || word[0] != '-') return word;
    const Option option = ClassifyOption(word);
    if (option == Option::kEndsScript) return "";
    if (option == Option::kTakesNext) ++i;
  }
  return "";
}

absl::Status CheckCommand(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment,
                          const std::string& directory) {
  RINGD_RETURN_IF_ERROR(CheckDirectory(directory));
  if (command.empty() || command[0].empty()) return absl::InvalidArgumentError("no command given");
  RINGD_RETURN_IF_ERROR(FindProgram(command[0], environment, directory).status());
  const std::string script = PythonScript(command);
  return script.empty() ? absl::OkStatus() : CheckScript(script, directory);
}

}  // namespace ringd::worker
