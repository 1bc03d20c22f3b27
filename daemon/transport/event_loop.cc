#include "daemon/transport/event_loop.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"

namespace ringd::daemon {
namespace {

constexpr int kEventsPerPoll = 64;
constexpr uint64_t kWakeTag = 0;
constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr int64_t kMaxWaitNanos = 3600 * kNanosPerSecond;

int64_t NowNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNanosPerSecond + now.tv_nsec;
}

int64_t ToNanos(absl::Duration duration) {
  return std::clamp<int64_t>(absl::ToInt64Nanoseconds(duration), 0, kMaxWaitNanos);
}

int WaitForEvents(int epoll, epoll_event* events, int64_t wait_nanos) {
  if (wait_nanos > 0) {
    timespec wait;
    wait.tv_sec = wait_nanos / kNanosPerSecond;
    wait.tv_nsec = wait_nanos % kNanosPerSecond;
    const int count = epoll_pwait2(epoll, events, kEventsPerPoll, &wait, nullptr);
    if (count >= 0 || errno != ENOSYS) return count;
  }
  // Kernels before 5.11: milliseconds, rounded up so that no timer finds itself early.
  return epoll_wait(epoll, events, kEventsPerPoll,
                    static_cast<int>((wait_nanos + 999'999) / 1'000'000));
}

}  // namespace

struct EventLoop::State {
  struct WatchEntry {
    int fd;
    Callback callback;
  };

  UniqueFd epoll;
  UniqueFd wake;
  // Events carry the watch's tag, not its descriptor: numbers of descriptors are used again.
  uint64_t last_tag = kWakeTag;
  std::unordered_map<uint64_t, std::shared_ptr<WatchEntry>> watches;
  std::unordered_map<int, uint64_t> tags;
  uint64_t last_timer = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> timers;  // By (deadline, id).
  std::unordered_map<uint64_t, int64_t> deadlines;

  int64_t WaitNanos(absl::Duration timeout) const {
    const int64_t wait = ToNanos(timeout);
    if (timers.empty() || wait == 0) return wait;
    return std::clamp<int64_t>(timers.begin()->first.first - NowNanos(), 0, wait);
  }

  int RunEvents(const epoll_event* events, int count) {
    int run = 0;
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64;  // A copy: the structure is packed.
      if (tag == kWakeTag) {
        uint64_t value;
        [[maybe_unused]] const ssize_t ignored = read(wake.get(), &value, sizeof(value));
        continue;
      }
      const auto found = watches.find(tag);
      if (found == watches.end()) continue;  // An earlier callback has removed it.
      const std::shared_ptr<WatchEntry> watch = found->second;
      watch->callback(events[i].events);
      ++run;
    }
    return run;
  }

  // Timers that callbacks add are for the next time, so that a zero delay can't keep us here.
  int RunTimers() {
    if (timers.empty()) return 0;
    const int64_t now = NowNanos();
    const uint64_t last_due = last_timer;
    int run = 0;
    for (auto next = timers.begin(); next != timers.end() && next->first.first <= now;) {
      if (next->first.second > last_due) {
        ++next;
        continue;
      }
      const std::function<void()> callback = std::move(next->second);
      deadlines.erase(next->first.second);
      timers.erase(next);
      callback();
      ++run;
      next = timers.begin();
    }
    return run;
  }
};

EventLoop::EventLoop() : state_(std::make_unique<State>()) {
  state_->epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  state_->wake.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  epoll_ctl(state_->epoll.get(), EPOLL_CTL_ADD, state_->wake.get(), &event);
}

EventLoop::~EventLoop() = default;

absl::Status EventLoop::Watch(int fd, uint32_t events, Callback callback) {
  const uint64_t tag = ++state_->last_tag;
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(state_->epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::InternalError(absl::StrCat("can't watch descriptor ", fd, ": ", strerror(errno)));
  }
  if (const auto old = state_->tags.find(fd); old != state_->tags.end()) {
    state_->watches.erase(old->second);  // Closed without Unwatch.
  }
  state_->tags[fd] = tag;
  state_->watches[tag] =
      std::make_shared<State::WatchEntry>(State::WatchEntry{fd, std::move(callback)});
  return absl::OkStatus();
}

absl::Status EventLoop::Modify(int fd, uint32_t events) {
  const auto found = state_->tags.find(fd);
  epoll_event event{};
  event.events = events;
  event.data.u64 = found == state_->tags.end() ? kWakeTag : found->second;
  if (found == state_->tags.end() ||
      epoll_ctl(state_->epoll.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return absl::InternalError(absl::StrCat("can't modify the watch of descriptor ", fd,
                                            ": it is closed or was never watched"));
  }
  return absl::OkStatus();
}

void EventLoop::Unwatch(int fd) {
  const auto found = state_->tags.find(fd);
  if (found == state_->tags.end()) return;
  epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  state_->watches.erase(found->second);
  state_->tags.erase(found);
}

int EventLoop::Poll(absl::Duration timeout) {
  epoll_event events[kEventsPerPoll];
  const int count = WaitForEvents(state_->epoll.get(), events, state_->WaitNanos(timeout));
  const int run = state_->RunEvents(events, std::max(count, 0));
  return run + state_->RunTimers();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(state_->wake.get(), &one, sizeof(one));
}

uint64_t EventLoop::AddTimer(absl::Duration delay, std::function<void()> callback) {
  const int64_t deadline = NowNanos() + ToNanos(delay);
  const uint64_t id = ++state_->last_timer;
  state_->timers.emplace(std::make_pair(deadline, id), std::move(callback));
  state_->deadlines[id] = deadline;
  return id;
}

void EventLoop::CancelTimer(uint64_t id) {
  const auto found = state_->deadlines.find(id);
  if (found == state_->deadlines.end()) return;
  state_->timers.erase({found->second, id});
  state_->deadlines.erase(found);
}

}  // namespace ringd::daemon
