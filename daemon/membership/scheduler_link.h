// The node's one line to its scheduler.
#ifndef RINGD_DAEMON_MEMBERSHIP_SCHEDULER_LINK_H_
#define RINGD_DAEMON_MEMBERSHIP_SCHEDULER_LINK_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/rpc/rpc.h"
#include "common/sync/mutex.h"
#include "proto/cluster.grpc.pb.h"

namespace ringd::daemon {

// Reports that wait for the stream. Beyond this the scheduler is taken for stuck: a new stream
// begins with a hello, which says all that counts.
inline constexpr size_t kMaxWaitingReports = 65536;

struct SchedulerLinkOptions {
  std::string address;  // "unix:/path" or "host:port".
  TlsFiles tls;
};

// Keeps a Join stream to the scheduler open, for ever, with a backoff between tries. A failure is
// logged once for each change of its reason.
//
// Life: Start once; Stop ends stream and threads (the destructor does too).
// Thread-safe. Callbacks run on the link's thread and must not block; none after Stop.
class SchedulerLink {
 public:
  struct Events {
    std::function<void()> up;    // A stream is open: reports pass from now on.
    std::function<void()> down;  // It has ended: reports are dropped until the next one.
    std::function<void(cluster::v1::NodeOrder)> order;
    std::function<void(std::string reason)> unreachable;  // A try has failed before any order came.
  };

  explicit SchedulerLink(SchedulerLinkOptions options);
  ~SchedulerLink();

  void Start(Events events);
  void Stop();
  // Dropped while no stream is open.
  void Send(cluster::v1::NodeReport report);
  // Ends the stream (a new one follows after a while).
  void Disconnect(const std::string& reason);

 private:
  using Stream = grpc::ClientReaderWriter<cluster::v1::NodeReport, cluster::v1::NodeOrder>;

  void Run();
  // One stream, from connecting to its end. Returns whether any order came.
  // A failed call in the user's words.
  std::string Explain(const grpc::Status& status) const;
  bool RunStream(std::string* reason);
  void WriteReports(Stream* stream);
  bool StoppedWithin(absl::Duration duration);

  const SchedulerLinkOptions options_;
  Events events_;
  std::thread thread_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // Of the open stream.
  std::string disconnect_reason_ ABSL_GUARDED_BY(mu_);
  std::deque<cluster::v1::NodeReport> reports_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MEMBERSHIP_SCHEDULER_LINK_H_
