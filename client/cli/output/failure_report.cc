#include <signal.h>
#include <string.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/output/report.h"

namespace ringd::cli {

using namespace ringd::cluster::v1;  // NOLINT: one proto package's names, in a .cc.

namespace {

constexpr int kExitBadInput = 2;
constexpr int kExitCancelled = 143;
constexpr int kSignalBase = 128;
// A rank's own last lines under the report's first one.
constexpr size_t kTailLines = 20;

std::vector<std::string> TailLines(const std::string& tail) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(tail, '\n')) {
    line = absl::StripTrailingAsciiWhitespace(line);
    if (const size_t start = line.rfind('\r'); start != absl::string_view::npos) {
      line.remove_prefix(start + 1);
    }
    if (!line.empty()) lines.emplace_back(line);
  }
  if (lines.size() > kTailLines) {
    lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(kTailLines));
  }
  return lines;
}

// "followed: ranks 0, 2"
std::string FollowedLine(const Job& job) {
  std::vector<std::string> ranks;
  for (const Rank& rank : job.rank()) {
    if (rank.state() == "followed") ranks.push_back(absl::StrCat(rank.rank()));
  }
  if (ranks.empty()) return "";
  return absl::StrCat("  followed: rank", ranks.size() == 1 ? " " : "s ",
                      absl::StrJoin(ranks, ", "), " (ended after it)\n");
}

}  // namespace

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:
      return kExitBadInput;
    default:
      return 1;
  }
}

int ExitCodeOf(const Job& job) {
  if (job.state() == JOB_STATE_SUCCEEDED) return 0;
  if (job.refused()) return kExitBadInput;
  if (job.exit_code() != 0) return job.exit_code();
  if (job.state() == JOB_STATE_CANCELLED || job.state() == JOB_STATE_PREEMPTED)
    return kExitCancelled;
  if (job.has_first_failure()) {
    const FirstFailure& failure = job.first_failure();
    if (failure.signal() != 0) return kSignalBase + failure.signal();
    if (failure.exit_code() != 0) return failure.exit_code();
  }
  return 1;
}

bool IsFinal(JobState state) {
  return state == JOB_STATE_SUCCEEDED || state == JOB_STATE_FAILED ||
         state == JOB_STATE_CANCELLED || state == JOB_STATE_PREEMPTED;
}

std::string StateName(JobState state) {
  const std::string name = JobState_Name(state);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "JOB_STATE_"));
}

std::string StateSentence(const Job& job) {
  const std::string state = StateName(job.state());
  if (job.reason().empty()) return state;
  // Many reasons begin with the state.
  if (absl::StartsWith(job.reason(), state + ":")) return job.reason();
  return absl::StrCat(state, ": ", job.reason());
}

absl::StatusOr<int> ParseSignal(const std::string& text) {
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number > 0 && number < NSIG) return number;
  const std::string upper = absl::AsciiStrToUpper(text);
  const absl::string_view name = absl::StripPrefix(upper, "SIG");
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* candidate = sigabbrev_np(signal);
    if (candidate != nullptr && name == candidate) return signal;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is no signal; give a name or a number, as in USR1, SIGTERM or 15"));
}

std::string FailureReport(const Job& job) {
  if (job.state() == JOB_STATE_SUCCEEDED) return "";
  const std::string reason = job.reason().empty() ? "" : absl::StrCat(": ", job.reason());
  if (job.refused()) return absl::StrCat("ringctl: ", job.reason(), "\n");
  if (job.state() != JOB_STATE_FAILED) {
    return absl::StrCat("ringctl: job ", job.id(), " was ", StateName(job.state()), reason, "\n");
  }
  if (!job.has_first_failure()) {
    return absl::StrCat("ringctl: job ", job.id(), " failed", reason, "\n");
  }
  const FirstFailure& failure = job.first_failure();
  const std::vector<std::string> tail = TailLines(failure.stderr_tail());
  std::string text = absl::StrCat("ringctl: ", failure.reason(), "\n");
  if (tail.size() > 1) {
    absl::StrAppend(&text, "  last lines of rank ", failure.rank(), "'s standard error:\n");
    for (const std::string& line : tail) absl::StrAppend(&text, "    ", line, "\n");
  }
  return absl::StrCat(text, FollowedLine(job));
}

}  // namespace ringd::cli
