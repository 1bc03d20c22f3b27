// The arena socket: where workers hand over their clients' memory.
#ifndef RINGD_DAEMON_SESSION_ARENA_SERVER_H_
#define RINGD_DAEMON_SESSION_ARENA_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/sync/mutex.h"
#include "daemon/engine/engine.h"
#include "daemon/session/session_table.h"
#include "proto/attach.h"

namespace ringd::daemon {

// One a rank and some to spare (a worker opens the next before the last is noticed as closed).
inline constexpr size_t kMaxArenaConnections = 8192;
inline constexpr size_t kMaxArenaConnectionsOfUser = 4096;
// What a reference can address, and far above any node's memory.
inline constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 47;

struct ArenaServerOptions {
  std::string path;
  mode_t mode = 0600;
  uint64_t arena_max_bytes = 0;  // Of all segments of a client; 0: as the worker finds right.
  // A client has come over from the daemon before us. Only that one knew how far its operations had
  // got, so the job's operations have been failed (Engine::FailJob) before the engine sees its
  // arena. On the server's thread.
  std::function<void(const std::string& job, const std::string& reason)> inherited;
};

// Takes packets of proto/attach.h on a thread of its own, checks sender, session, sizes and seals,
// and passes the memory on to the engine. Whoever breaks the protocol loses the connection, nothing
// else.
//
// Life: Create listens and starts the thread; the destructor ends it and removes the socket.
// Ownership: engine and table outlive it.
// Thread-safe.
class ArenaServer {
 public:
  // ALREADY_EXISTS: somebody accepts at that path; INVALID_ARGUMENT: the path is too long.
  static absl::StatusOr<std::unique_ptr<ArenaServer>> Create(const ArenaServerOptions& options,
                                                             Engine* engine, SessionTable* table);
  ~ArenaServer();

  // The rank has ended: its client's arena goes once nothing in flight uses it.
  void EndRank(const std::string& job, int rank);
  void ForgetJob(const std::string& job);

 private:
  struct Connection {
    UniqueFd socket;
    uid_t uid = 0;
  };
  using RankKey = std::pair<std::string, int>;
  struct SegmentIdentity {
    dev_t device = 0;
    ino_t inode = 0;
  };
  struct Arena {  // The client that a rank has now.
    uint64_t number = 0;
    std::string secret;  // Of the session that offered it.
    uint64_t bytes = 0;
    UniqueFd doorbell;
    std::vector<SegmentIdentity> segments;
  };
  struct Command {
    std::string job;
    int rank = -1;  // -1: all of the job.
  };

  ArenaServer(const ArenaServerOptions& options, Engine* engine, SessionTable* table);

  void Run();
  void Accept();
  void RunCommands();
  // False: the connection is to be closed.
  bool Serve(const Connection& connection);
  bool ServePacket(const Connection& connection, const std::string& packet,
                   std::vector<UniqueFd> fds);
  // What the accept carries.
  absl::StatusOr<std::vector<UniqueFd>> Offer(const Connection& connection,
                                              const attach::ArenaOffer& offer,
                                              std::vector<UniqueFd> fds);
  absl::StatusOr<std::vector<UniqueFd>> OfferFirst(const SessionOwner& owner,
                                                   const attach::ArenaOffer& offer,
                                                   const std::string& secret,
                                                   const SegmentIdentity& identity,
                                                   UniqueFd memory);
  absl::StatusOr<std::vector<UniqueFd>> Links(const std::string& job, const Arena& arena) const;
  void FailInherited(const SessionOwner& owner);
  absl::Status OfferNext(const SessionOwner& owner, const attach::ArenaOffer& offer,
                         const SegmentIdentity& identity, UniqueFd memory);
  absl::Status SetProcess(const Connection& connection, const attach::ClientAttached& message,
                          std::vector<UniqueFd> fds);
  absl::Status RemoveClient(const Connection& connection, const attach::ClientDetached& message);
  absl::StatusOr<SessionOwner> Owner(const Connection& connection, const uint8_t* session) const;
  void Drop(const RankKey& key);
  void Push(Command command);

  const ArenaServerOptions options_;
  Engine* const engine_;
  SessionTable* const table_;
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::thread thread_;

  // Of the thread alone.
  std::map<int, Connection> connections_;  // By descriptor.
  std::map<RankKey, Arena> arenas_;

  Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_SESSION_ARENA_SERVER_H_
