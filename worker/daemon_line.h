// The worker's line to the node's daemon: gRPC Supervise, and Attach beside it.
#ifndef RINGD_WORKER_DAEMON_LINE_H_
#define RINGD_WORKER_DAEMON_LINE_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/sync/mutex.h"
#include "proto/node.grpc.pb.h"

namespace ringd::worker {

struct LineEvent {
  enum class Kind {
    kAttached,  // Again after each reconnect.
    kOrder,
    kLost,     // The stream broke; a new one is being tried.
    kGivenUp,  // No more tries. The last event.
  };
  Kind kind = Kind::kGivenUp;
  node::v1::AttachResponse attached;
  node::v1::WorkerOrder order;
  absl::Status status;  // kLost, kGivenUp: why.
};

// Life: the constructor starts the thread; the destructor cancels the stream and joins it.
// Thread-safe, except for construction and destruction. Events come on the line's own thread and
// must not block. Failure: a refusal by the daemon (PERMISSION_DENIED, NOT_FOUND,
// FAILED_PRECONDITION, ...) is final; an absent daemon (UNAVAILABLE, CANCELLED) is tried again for
// reattach_timeout since it was last there.
class DaemonLine {
 public:
  struct Options {
    std::string address;  // "unix:/path"
    node::v1::AttachRequest attach;
    absl::Duration reattach_timeout;  // Zero: never again (embedded).
  };
  using OnEvent = std::function<void(LineEvent)>;

  DaemonLine(Options options, OnEvent on_event);
  ~DaemonLine();

  // False: there is no stream now; send again after the next kAttached.
  bool Send(const node::v1::WorkerReport& report);

  // A new session for the rank, after another process had it. Blocks until answered, a few seconds
  // at most.
  absl::StatusOr<node::v1::AttachResponse> Attach();

 private:
  using Stream = grpc::ClientReaderWriter<node::v1::WorkerReport, node::v1::WorkerOrder>;
  struct Connection {
    std::unique_ptr<node::v1::Node::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
  };

  void Run();
  // From connecting until the stream has ended; whether it was attached in between.
  absl::Status RunStream(bool* attached);
  absl::StatusOr<std::shared_ptr<Connection>> Open();
  void SetAttached(bool attached);
  // Null unless the daemon has taken the line's attach.
  std::shared_ptr<Connection> Attached();
  // Whether the line is being destroyed; waits for that or the duration.
  bool StoppedWithin(absl::Duration duration);

  const Options options_;
  const OnEvent on_event_;

  Mutex write_mu_;  // One writer at a time; taken before mu_.
  Mutex mu_;
  CondVar stopped_changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_DAEMON_LINE_H_
