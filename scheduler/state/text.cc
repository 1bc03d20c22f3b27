#include "scheduler/state/text.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ringd::scheduler {
namespace {

constexpr size_t kMaxNodesNamed = 8;
constexpr int kExitNotStarted = 127;
constexpr int kExitSignalBase = 128;

}  // namespace

std::string Truncated(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::string SignalName(int signal) {
  constexpr std::pair<int, const char*> kNames[] = {
      {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
      {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"},
      {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"},
      {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},
      {SIGSYS, "SIGSYS"},   {SIGTRAP, "SIGTRAP"}};
  for (const auto& [number, name] : kNames) {
    if (number == signal) return name;
  }
  return absl::StrCat("signal ", signal);
}

std::string NodeList(const std::vector<std::string>& names) {
  if (names.size() == 1) return absl::StrCat("node ", names[0]);
  if (names.size() <= kMaxNodesNamed) return absl::StrCat("nodes ", absl::StrJoin(names, ", "));
  const std::vector<std::string> first(names.begin(), names.begin() + kMaxNodesNamed);
  return absl::StrCat("nodes ", absl::StrJoin(first, ", "), ", ... (", names.size(), ")");
}

std::string LastLine(const std::string& text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t newline = text.find_last_of('\n', end - 1);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const std::string line(
        absl::StripAsciiWhitespace(absl::string_view(text).substr(begin, end - begin)));
    if (!line.empty()) return line;
    if (newline == std::string::npos) break;
    end = newline;
  }
  return "";
}

std::string FailureSentence(const ringd::cluster::v1::RankUpdate& update, const std::string& node) {
  std::string text = absl::StrCat("rank ", update.rank(), " on node ", node);
  if (update.start_failed()) {
    absl::StrAppend(&text, " could not be started");
  } else if (update.signal() != 0) {
    absl::StrAppend(&text, " was killed by ", SignalName(update.signal()));
  } else {
    absl::StrAppend(&text, " exited with code ", update.exit_code());
  }
  if (!update.reason().empty()) {
    absl::StrAppend(&text, update.start_failed() ? ": " : " (", update.reason(),
                    update.start_failed() ? "" : ")");
  }
  if (const std::string line = LastLine(update.stderr_tail()); !line.empty()) {
    absl::StrAppend(&text, ": ", line);
  }
  return Truncated(text, kMaxReasonBytes);
}

int ExitCodeOf(const ringd::cluster::v1::RankUpdate& update) {
  // A failure never reads as success, whatever number a node sends.
  if (update.signal() != 0) return std::max((kExitSignalBase + update.signal()) & 0xFF, 1);
  if (update.exit_code() != 0) return std::max(update.exit_code() & 0xFF, 1);
  return update.start_failed() ? kExitNotStarted : 0;
}

}  // namespace ringd::scheduler
