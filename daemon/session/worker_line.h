// The orders that wait for a worker: between the threads that give them and the one that writes its
// stream.
#ifndef RINGD_DAEMON_SESSION_WORKER_LINE_H_
#define RINGD_DAEMON_SESSION_WORKER_LINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "common/sync/mutex.h"
#include "proto/node.pb.h"

namespace ringd::daemon {

// A rank gets a handful of orders in its life; a worker that leaves this many unread is stuck and
// loses its stream.
inline constexpr size_t kMaxWaitingOrders = 256;

// One Supervise stream.
//
// Life: made at attach; Close ends it for good, from either side.
// Thread-safe.
class WorkerLine {
 public:
  WorkerLine(uint64_t id, std::function<void()> cancel) : id_(id), cancel_(std::move(cancel)) {}

  uint64_t id() const { return id_; }

  // Never blocks. A line that is full is closed.
  void Push(node::v1::WorkerOrder order) {
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      if (orders_.size() < kMaxWaitingOrders) {
        orders_.push_back(std::move(order));
        changed_.Signal();
        return;
      }
    }
    Close();
  }

  // Blocks until there is an order; nullopt: closed.
  std::optional<node::v1::WorkerOrder> Pop() {
    MutexLock lock(&mu_);
    while (orders_.empty() && !closed_) changed_.Wait(&mu_);
    if (closed_) return std::nullopt;
    node::v1::WorkerOrder order = std::move(orders_.front());
    orders_.pop_front();
    return order;
  }

  // Ends the stream and Pop. The stream's handler calls it before it returns: `cancel` is never
  // called after that.
  void Close() {
    MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    changed_.SignalAll();
    cancel_();
  }

 private:
  const uint64_t id_;
  const std::function<void()> cancel_;  // Thread-safe and quick: marks the call as cancelled.
  Mutex mu_;
  CondVar changed_;
  std::deque<node::v1::WorkerOrder> orders_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_SESSION_WORKER_LINE_H_
