// Messages from any thread to the one that polls.
#ifndef RINGD_WORKER_MAILBOX_H_
#define RINGD_WORKER_MAILBOX_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "common/sync/mutex.h"

namespace ringd::worker {

// An unbounded queue whose senders are few and bounded themselves (orders of the daemon, state
// changes).
//
// Thread-safe.
template <typename T>
class Mailbox {
 public:
  Mailbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void Post(T message) {
    {
      MutexLock lock(&mu_);
      messages_.push_back(std::move(message));
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
  }

  // Everything posted so far, in order.
  std::vector<T> Take() {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));
    MutexLock lock(&mu_);
    return std::exchange(messages_, {});
  }

  // Readable while there is something to take.
  int event_fd() const { return event_.get(); }

 private:
  const UniqueFd event_;
  Mutex mu_;
  std::vector<T> messages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_MAILBOX_H_
