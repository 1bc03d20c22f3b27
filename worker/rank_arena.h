// The arenas of one rank, one after the other, and their way to the daemon.
#ifndef RINGD_WORKER_RANK_ARENA_H_
#define RINGD_WORKER_RANK_ARENA_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/arena_keeper.h"
#include "client/session/arena_line.h"
#include "common/base/fd.h"
#include "proto/node.pb.h"

namespace ringd::worker {

// Each client gets an arena of its own, numbered 1, 2, ...; it is forgotten when the client has
// gone. The descriptors are kept meanwhile, so that a daemon that comes back gets the same memory.
//
// Thread-bound: the client server's thread.
// Failure: UNAVAILABLE: the daemon is not there; call again after SetSession, nothing is lost. Else
// final.
class RankArena {
 public:
  struct Options {
    uint64_t arena_bytes = 0;
    uint64_t arena_max_bytes = 0;
    session::ArenaKeeper::LimitReader read_limit;
    int local_ranks = 1;  // That share this node's memory.
    // A new session, after a client that attached by itself had replaced ours. Blocks.
    std::function<absl::StatusOr<node::v1::AttachResponse>()> attach;
  };
  explicit RankArena(Options options);

  // The daemon is there (again). A client's arena is offered again.
  absl::Status SetSession(const node::v1::AttachResponse& session);
  void LoseSession();
  // Null: none.
  const node::v1::AttachResponse* session() const { return session_ ? &*session_ : nullptr; }

  // Makes segment 0 of the next arena, unless it is there.
  absl::Status Prepare();
  // Hands the arena to the daemon for this client. Returns what it needs beside
  // the memory. REQUIRES: no client.
  absl::StatusOr<session::ArenaLine::Links> Attach(pid_t pid, UniqueFd pidfd);
  // Adds a segment; its index. REQUIRES: a client.
  absl::StatusOr<uint32_t> Grow(uint64_t bytes);
  // The client has gone: tells the daemon, forgets the arena.
  void Detach();
  // Another process attaches by itself: no arena of ours is needed, and our session ends.
  void GiveAway();

  // REQUIRES: Prepare or Attach has succeeded since the last Detach.
  const session::ArenaKeeper& keeper() const { return *keeper_; }

 private:
  struct Holder {
    pid_t pid = 0;
    UniqueFd pidfd;
  };

  absl::StatusOr<session::ArenaLine*> Line();
  absl::StatusOr<session::ArenaLine::Links> Offer(uint32_t segment);
  absl::Status OfferAgain();
  // Drops the line when it is dead.
  absl::Status Checked(absl::Status status);

  const Options options_;
  std::optional<node::v1::AttachResponse> session_;
  bool given_away_ = false;
  std::unique_ptr<session::ArenaLine> line_;
  std::unique_ptr<session::ArenaKeeper> keeper_;
  uint64_t number_ = 0;         // Of the last client's arena.
  uint32_t granted_count_ = 0;  // Segments that the daemon has and the client knows of.
  std::optional<Holder> holder_;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_RANK_ARENA_H_
