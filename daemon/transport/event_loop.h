// The engine thread's view of file descriptors: epoll with callbacks.
#ifndef RINGD_DAEMON_TRANSPORT_EVENT_LOOP_H_
#define RINGD_DAEMON_TRANSPORT_EVENT_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ringd::daemon {

// Watches file descriptors and runs their callbacks on the thread that calls Poll.
//
// Life: created, polled until its owner stops, destroyed after all Unwatch calls or with watches
// left (it never owns a descriptor). Thread-bound: the thread that calls Poll; only Wake() may be
// called from any thread.
class EventLoop {
 public:
  using Callback = std::function<void(uint32_t epoll_events)>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // events: EPOLLIN | EPOLLOUT | EPOLLET ... A callback may Watch and Unwatch any descriptor, its
  // own included. INTERNAL: epoll refused (descriptor closed, limit).
  absl::Status Watch(int fd, uint32_t events, Callback callback);
  absl::Status Modify(int fd, uint32_t events);
  void Unwatch(int fd);

  // Runs the callbacks of ready descriptors; blocks until one is ready, Wake() was called or
  // `timeout` has passed (zero: doesn't block). Returns the number of callbacks run.
  int Poll(absl::Duration timeout);

  // Makes a Poll that blocks, or the next one, return. Thread-safe.
  void Wake();

  // Runs `callback` on Poll's thread once `delay` has passed. Returns an id for CancelTimer.
  uint64_t AddTimer(absl::Duration delay, std::function<void()> callback);
  void CancelTimer(uint64_t id);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_TRANSPORT_EVENT_LOOP_H_
