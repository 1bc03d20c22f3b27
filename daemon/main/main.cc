// ringd: the daemon of one node.
#include <signal.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "common/log/log.h"
#include "daemon/main/daemon.h"
#include "daemon/main/options.h"

namespace {

constexpr int kBadInput = 2;

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "ringd: %s\n", std::string(status.message()).c_str());
  return code;
}

// Before the first thread: they inherit it, and main reads the signals.
void BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

}  // namespace

int main(int argc, char** argv) {
  BlockSignals();
  const absl::StatusOr<ringd::daemon::ParsedOptions> parsed =
      ringd::daemon::ParseOptions(argc, argv);
  if (!parsed.ok()) return Fail(parsed.status(), kBadInput);
  if (!parsed->output.empty()) {
    std::fputs(parsed->output.c_str(), stdout);
    return 0;
  }
  const absl::Status levels = ringd::SetLogLevels(parsed->options.log_level);
  if (!levels.ok()) return Fail(levels, kBadInput);
  for (const auto line : absl::StrSplit(parsed->effective, '\n', absl::SkipEmpty())) {
    ringd::GetLogger("main")->info("option {}", std::string(line));
  }
  absl::StatusOr<std::unique_ptr<ringd::daemon::Daemon>> daemon =
      ringd::daemon::Daemon::Create(parsed->options);
  if (!daemon.ok()) return Fail(daemon.status(), kBadInput);
  const absl::Status ended = (*daemon)->Run();
  if (ended.ok() && (*daemon)->HasRanksToLeave()) (*daemon)->LeaveRanks();
  return ended.ok() ? 0 : Fail(ended, 1);
}
