// All parts of ringd, put together.
#ifndef RINGD_DAEMON_MAIN_DAEMON_H_
#define RINGD_DAEMON_MAIN_DAEMON_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/rpc/rpc.h"
#include "common/sync/mutex.h"
#include "daemon/engine/engine.h"
#include "daemon/main/options.h"
#include "daemon/membership/node_driver.h"
#include "daemon/membership/record_store.h"
#include "daemon/ranks/process_watcher.h"
#include "daemon/ranks/rank_spawner.h"
#include "daemon/server/node_service.h"
#include "daemon/session/arena_server.h"
#include "daemon/session/session_table.h"

namespace ringd::daemon {

// Life: Create (takes over the jobs of the daemon before, listens, connects), Run, destructor.
// REQUIRES: SIGTERM, SIGINT and SIGHUP are blocked in all threads.
// Thread-bound: main's thread.
class Daemon {
 public:
  // INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION, UNAVAILABLE: something that the user has
  // to put right; the message says what.
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(const Options& options);
  ~Daemon();

  // Blocks until a signal, the end of the lifeline, or the scheduler's word ends it. OK: as asked.
  absl::Status Run();

  // Whether ranks are to go on without this daemon: then LeaveRanks, instead of the destructor,
  // ends the process.
  bool HasRanksToLeave();
  // Closes everything but the engine, whose orderly end would end the clients' arenas too, and
  // exits with code 0.
  [[noreturn]] void LeaveRanks();

 private:
  explicit Daemon(Options options) : options_(std::move(options)) {}
  absl::Status SetUp();
  absl::Status ReadKeys(NodeServiceOptions* service) const;
  // Lets these users' workers in, and nobody else's.
  void ShareSockets(const std::set<uint32_t>& users) const;
  absl::Status SetUpServer();
  NodeDriver::Options DriverOptions(uint64_t term) const;
  SpawnerOptions MakeSpawnerOptions() const;
  node::v1::GetInfoResponse GetInfo();
  void RequestExit(std::string reason);
  void EndRanks(absl::Duration grace, const std::string& reason);

  const Options options_;
  UniqueFd lock_;
  UniqueFd signals_;
  UniqueFd exit_event_;
  std::string attach_socket_;  // That workers use.

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SessionTable> table_;
  std::unique_ptr<RecordStore> records_;
  std::unique_ptr<RankSpawner> spawner_;
  std::unique_ptr<ProcessWatcher> watcher_;
  std::unique_ptr<ArenaServer> arenas_;
  std::unique_ptr<NodeDriver> driver_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<NodeService> service_;

  Mutex mu_;
  std::string exit_reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MAIN_DAEMON_H_
