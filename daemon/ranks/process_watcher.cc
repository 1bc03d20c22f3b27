#include "daemon/ranks/process_watcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include <cerrno>
#include <utility>

#include "common/process/exit_text.h"

namespace ringd::daemon {
namespace {

constexpr int kMaxEvents = 64;
constexpr uint64_t kWakeKey = 0;

std::string Reap(int pidfd) {
  siginfo_t info{};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
    return "";
  const bool exited = info.si_code == CLD_EXITED;
  return ExitText(exited ? info.si_status : 0, exited ? 0 : info.si_status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessWatcher>> ProcessWatcher::Create() {
  std::unique_ptr<ProcessWatcher> watcher(new ProcessWatcher());
  watcher->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  watcher->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!watcher->epoll_.valid() || !watcher->wake_.valid()) {
    return absl::ResourceExhaustedError("no descriptors left: raise the limit on open files");
  }
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeKey}};
  epoll_ctl(watcher->epoll_.get(), EPOLL_CTL_ADD, watcher->wake_.get(), &event);
  watcher->thread_ = std::thread(&ProcessWatcher::Run, watcher.get());
  return watcher;
}

ProcessWatcher::~ProcessWatcher() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void ProcessWatcher::Watch(pid_t pid, UniqueFd pidfd, Ended ended) {
  if (!pidfd.valid()) return ended("");
  MutexLock lock(&mu_);
  const int fd = pidfd.get();
  const auto [entry, is_new] = entries_.try_emplace(pid);
  if (!is_new) return;
  entry->second = Entry{std::move(pidfd), std::move(ended)};
  epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<uint64_t>(pid)}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void ProcessWatcher::Run() {
  epoll_event events[kMaxEvents];
  while (true) {
    const int count = epoll_wait(epoll_.get(), events, kMaxEvents, -1);
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) {
      Entry entry;
      {
        MutexLock lock(&mu_);
        if (stopping_) return;
        const auto found = entries_.find(static_cast<pid_t>(events[i].data.u64));
        if (found == entries_.end()) continue;
        entry = std::move(found->second);
        entries_.erase(found);
      }
      entry.ended(Reap(entry.pidfd.get()));
    }
  }
}

}  // namespace ringd::daemon
