#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/config.h"

namespace ringd {
namespace {

// Edits by which two words may differ for one to be offered in place of the other.
constexpr size_t kNearEdits = 2;

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string EnvironmentOr(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  struct Unit {
    const char* suffix;
    int64_t factor;
  };
  static constexpr Unit kUnits[] = {{"tb", int64_t{1} << 40}, {"gb", 1 << 30}, {"mb", 1 << 20},
                                    {"kb", 1 << 10},          {"b", 1},        {"", 1}};
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  for (const Unit& unit : kUnits) {
    if (!absl::EndsWith(lower, unit.suffix)) continue;
    double number;
    const std::string digits = lower.substr(0, lower.size() - std::string(unit.suffix).size());
    if (!absl::SimpleAtod(digits, &number) || !(number >= 0) || number * unit.factor > 9e18) break;
    return static_cast<int64_t>(number * unit.factor);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a size such as 256MB, 1KB or 4096"));
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  double seconds;
  if (absl::SimpleAtod(text, &seconds) && seconds >= 0) return absl::Seconds(seconds);
  if (absl::ParseDuration(text, &duration) && duration >= absl::ZeroDuration()) return duration;
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a duration such as 30s, 5m or 250ms"));
}

std::string NearestWord(const std::string& word, const std::vector<std::string>& words) {
  std::string nearest;
  size_t fewest = kNearEdits + 1;
  for (const std::string& candidate : words) {
    const size_t edits = EditDistance(word, candidate);
    if (edits < fewest && edits < candidate.size()) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

UserPaths GetUserPaths() {
  const std::string home = EnvironmentOr("HOME", "/");
  const std::string temporary = EnvironmentOr("TMPDIR", "/tmp");
  UserPaths paths;
  paths.config_file = EnvironmentOr("XDG_CONFIG_HOME", home + "/.config") + "/ringd/ringd.toml";
  paths.state_directory = EnvironmentOr("XDG_STATE_HOME", home + "/.local/state") + "/ringd";
  const std::string runtime = EnvironmentOr("XDG_RUNTIME_DIR", "");
  paths.run_directory =
      runtime.empty() ? absl::StrCat(temporary, "/ringd-", getuid()) : runtime + "/ringd";
  return paths;
}

}  // namespace ringd
