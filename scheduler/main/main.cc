// ringd-scheduler: options, start, wait, stop.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <string>

#include "common/base/fd.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "common/process/process.h"
#include "scheduler/main/options.h"
#include "scheduler/main/scheduler.h"

namespace {

constexpr int kExitBadInput = 2;
constexpr char kSystemConfig[] = "/etc/ringd/ringd.toml";

int BadInput(const std::string& message) {
  fprintf(stderr, "ringd-scheduler: %s\n", message.c_str());
  return kExitBadInput;
}

// SIGTERM and SIGINT as a descriptor, blocked in all threads that come later.
ringd::UniqueFd BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return ringd::UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC));
}

// Blocks until a signal comes or the lifeline breaks, and says which.
const char* WaitForEnd(int signals, int lifeline) {
  ringd::Watchdog watchdog;
  pollfd entries[2] = {{signals, POLLIN, 0},
                       {lifeline, POLLIN, 0}};  // A negative descriptor is ignored.
  while (true) {
    const int count = poll(entries, 2, watchdog.TimeoutMillis());
    watchdog.TellIfDue();
    if (count < 0 && errno != EINTR) return "poll failed";
    if (count <= 0) continue;
    if (entries[0].revents != 0) return "signal";
    if (entries[1].revents != 0) return "lifeline";
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", 0);  // What goes wrong is told by us, in one line.
  ringd::scheduler::Options options;
  ringd::Config config("ringd-scheduler");
  ringd::scheduler::AddOptions(&options, &config);
  const std::string user_file = ringd::GetUserPaths().config_file;
  const bool system = geteuid() == 0 && access(user_file.c_str(), R_OK) != 0;
  std::string output;
  const auto rest = config.Parse(argc, argv, system ? kSystemConfig : user_file, &output);
  if (absl::IsCancelled(rest.status())) {
    fputs(output.c_str(), stdout);
    return 0;
  }
  if (!rest.ok()) return BadInput(std::string(rest.status().message()));
  if (!rest->empty())
    return BadInput("unexpected argument '" + rest->front() + "' (--help lists what there is)");
  if (const absl::Status status = ringd::SetLogLevels(options.log_level); !status.ok()) {
    return BadInput("log_level: " + std::string(status.message()));
  }
  if (const absl::Status status = ringd::scheduler::CompleteOptions(&options); !status.ok()) {
    return BadInput(std::string(status.message()));
  }
  if (options.lifeline_fd >= 0 && fcntl(options.lifeline_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return BadInput("lifeline_fd is no open descriptor");
  }

  const ringd::UniqueFd signals = BlockSignals();
  auto scheduler = ringd::scheduler::Scheduler::Start(options);
  if (!scheduler.ok()) return BadInput(std::string(scheduler.status().message()));
  ringd::NotifySystemd("READY=1");
  const char* why = WaitForEnd(signals.get(), options.lifeline_fd);
  ringd::NotifySystemd("STOPPING=1");
  ringd::GetLogger("scheduler")->info("scheduler stops why={}", why);
  scheduler->reset();
  return 0;
}
