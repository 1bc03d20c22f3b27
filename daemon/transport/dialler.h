// Connects to the right neighbour's data port, as often as it takes, and proves that both hold the
// key.
#ifndef RINGD_DAEMON_TRANSPORT_DIALLER_H_
#define RINGD_DAEMON_TRANSPORT_DIALLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "daemon/transport/event_loop.h"
#include "daemon/transport/handshake.h"
#include "daemon/transport/tcp.h"

namespace ringd::daemon {

struct DialOptions {
  std::string address;  // host:port
  std::string job;
  uint64_t generation = 0;
  std::string key;
  int from_node = 0;
  int to_node = 0;
  uint16_t group = 0;
  absl::Duration attempt_limit;  // From the connect to the proof.
};

// Life: dials from its creation on, until `done` has run or it is destroyed. It has no time limit
// of its own. Ownership: the socket passes to the callback; the event loop outlives it.
// Thread-bound: the event loop's thread. `done` runs inside Poll, once; it may destroy the dialler.
// Failure: UNAUTHENTICATED: whoever answers has another key. All else is tried again; trouble()
// tells the last.
class Dialler {
 public:
  using Done = std::function<void(absl::StatusOr<UniqueFd>)>;

  Dialler(EventLoop* loop, DialOptions options, Done done);
  ~Dialler();
  Dialler(const Dialler&) = delete;
  Dialler& operator=(const Dialler&) = delete;

  const std::string& trouble() const { return trouble_; }

 private:
  void Attempt();
  void Connect();
  void OnConnected();
  void OnReadable();
  void RetryLater(const std::string& trouble);
  void StopAttempt();
  void Finish(absl::StatusOr<UniqueFd> result);

  EventLoop* const loop_;
  const DialOptions options_;
  Done done_;
  std::string trouble_ = "no attempt yet";
  std::shared_ptr<Resolution> resolution_;
  size_t next_address_ = 0;
  absl::Duration backoff_;
  uint64_t timer_ = 0;  // Of the attempt, or of the pause before the next one.
  UniqueFd fd_;
  wire::Hello hello_{};
  wire::Challenge challenge_{};
  size_t received_bytes_ = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_TRANSPORT_DIALLER_H_
