// Who may attach to which rank: jobs, tokens, sessions and the lines to workers.
#ifndef RINGD_DAEMON_SESSION_SESSION_TABLE_H_
#define RINGD_DAEMON_SESSION_SESSION_TABLE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/unix_socket.h"
#include "common/sync/mutex.h"
#include "daemon/session/worker_line.h"
#include "proto/cluster.pb.h"
#include "proto/node.pb.h"

namespace ringd::daemon {

struct SessionOptions {
  std::string node;
  std::string arena_socket;         // Path.
  absl::Duration reattach_timeout;  // Zero: ranks end with this daemon.
  // If set: told of the users who have jobs, before their workers start, and of those left.
  std::function<void(const std::set<uint32_t>&)> users = nullptr;
};

// A rank of a job, by the secret of its session.
struct SessionOwner {
  std::string job;
  int rank = 0;
};

// Thread-safe.
// Failure: a refused attach is its caller's alone; the messages never say whether a token was
// nearly right.
class SessionTable {
 public:
  explicit SessionTable(SessionOptions options);

  // The job's workers may attach from now on. Replaces an older generation.
  void AddJob(const cluster::v1::Prepare& order);
  // Closes the lines of its workers and forgets its sessions.
  void RemoveJob(const std::string& job);

  struct Attachment {
    node::v1::AttachResponse response;
    std::shared_ptr<WorkerLine> line;  // Null for a program that attaches by itself.
  };
  // `cancel` ends the caller's Supervise stream; it stands until Detach. An older stream of the
  // rank is closed.
  //   PERMISSION_DENIED    wrong token, another user's job, another process than the rank's worker
  //   NOT_FOUND            no such job or rank here
  //   FAILED_PRECONDITION  layout or program version differs (both are named)
  absl::StatusOr<Attachment> AttachWorker(const PeerCredentials& peer,
                                          const node::v1::AttachRequest& request,
                                          std::function<void()> cancel);
  // A training program that attaches by itself: it replaces the worker's session for arenas. The
  // same codes.
  absl::StatusOr<node::v1::AttachResponse> AttachProgram(const PeerCredentials& peer,
                                                         const node::v1::AttachRequest& request);
  // The stream has ended. Returns whether it was still the rank's.
  bool Detach(const std::string& job, int rank, const WorkerLine& line);

  // The worker's process of a rank, once it is known: nobody else may attach as worker.
  void SetWorker(const std::string& job, int rank, pid_t pid);

  // Hands an order to the rank's worker; false: no line stands.
  bool Order(const std::string& job, int rank, node::v1::WorkerOrder order);

  // NOT_FOUND: no such session; PERMISSION_DENIED: another user's.
  absl::StatusOr<SessionOwner> FindSession(const std::string& secret, uid_t uid) const;

  // Whether a user has a job here: only such a one is worth a connection.
  bool HasJobOf(uid_t uid) const;
  std::set<uint32_t> Users() const;

 private:
  struct Rank {
    node::v1::RankLayout layout;
    std::string secret;  // Of the newest session; empty before the first.
    std::shared_ptr<WorkerLine> line;
    pid_t worker_pid = 0;
  };
  struct Job {
    uid_t uid = 0;
    uint64_t generation = 0;
    std::string token;
    std::map<int, Rank> ranks;
  };

  absl::StatusOr<Rank*> Check(const PeerCredentials& peer, const node::v1::AttachRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  node::v1::AttachResponse OpenSession(const std::string& job, Rank& rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::set<uint32_t> UsersLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Rank* FindLocked(const std::string& job, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SessionOptions options_;
  mutable Mutex mu_;
  uint64_t line_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<std::string, SessionOwner> sessions_ ABSL_GUARDED_BY(mu_);  // By secret.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_SESSION_SESSION_TABLE_H_
