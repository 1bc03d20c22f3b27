// Attaching to a rank over gRPC from the process that trains: for C++ programs that carry gRPC
// anyway.
#ifndef RINGD_CLIENT_SESSION_SESSION_H_
#define RINGD_CLIENT_SESSION_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/arena_keeper.h"
#include "client/session/arena_line.h"
#include "common/base/fd.h"
#include "proto/node.pb.h"

namespace ringd::session {

struct SessionOptions {
  std::string worker_socket;                   // The rank's RINGD_SOCKET.
  absl::Duration timeout = absl::Seconds(60);  // For each step of attaching.
  uint64_t arena_bytes = 0;                    // 0: default.
  uint64_t arena_max_bytes = 0;                // 0: half of the memory limit.
};

// This process as the client of its rank: the token comes from the worker, the session from the
// daemon, the arena is made here. What is done with the arena (descriptors, completions) is another
// library's business (client/c).
//
// Life: Attach; Detach or the destructor. The worker refuses others meanwhile, as for any client.
// Ownership: descriptors handed out by accessors are borrowed and live as long as the session.
// Thread-safe after Attach, except for destruction.
// Failure: messages say what to do; UNAVAILABLE: the worker or the daemon is gone.
class Session {
 public:
  // Blocks until attached.
  //   INVALID_ARGUMENT    no worker listens there (not started by ringd), or versions differ
  //   FAILED_PRECONDITION another process holds the rank
  //   RESOURCE_EXHAUSTED  the memory limit has no room for an arena
  //   UNAVAILABLE, DEADLINE_EXCEEDED
  static absl::StatusOr<std::unique_ptr<Session>> Attach(const SessionOptions& options);
  ~Session();

  const node::v1::RankLayout& layout() const { return attached_.layout(); }
  const std::string& job() const { return job_; }
  const std::string& node() const { return attached_.node(); }
  uint64_t generation() const { return attached_.generation(); }

  int segment_fd() const { return keeper_.segments()[0].fd.get(); }
  uint64_t segment_bytes() const { return keeper_.segments()[0].bytes; }
  uint64_t arena_max_bytes() const { return keeper_.max_bytes(); }
  int doorbell_fd() const { return links_.doorbell.get(); }
  // proto/segment.h; -1: the job has none.
  int shared_segment_fd() const { return links_.shared_segment.get(); }
  // Hangs up when the worker ends.
  int liveness_fd() const { return worker_.get(); }

  struct Segment {
    UniqueFd fd;
    uint64_t bytes = 0;
  };
  // One more segment of at least `bytes`, already known to the daemon. One call at a time.
  absl::StatusOr<Segment> Grow(uint64_t bytes);

  // Tells the daemon and frees the rank for another process. Nothing of the arena may be used any
  // more.
  absl::Status Detach();

 private:
  Session(const SessionOptions& options, UniqueFd worker);
  // Steps of Attach.
  absl::Status RequestToken(absl::Duration timeout);
  absl::Status OpenSession(absl::Duration timeout);
  absl::Status OfferArena();

  UniqueFd worker_;
  std::string job_;
  node::v1::AttachRequest request_;
  std::string daemon_socket_;
  node::v1::AttachResponse attached_;
  ArenaKeeper keeper_;
  std::unique_ptr<ArenaLine> line_;
  uint64_t arena_ = 0;
  ArenaLine::Links links_;
};

}  // namespace ringd::session

#endif  // RINGD_CLIENT_SESSION_SESSION_H_
