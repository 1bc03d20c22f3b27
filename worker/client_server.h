// The rank's socket: where its training process gets its arena.
#ifndef RINGD_WORKER_CLIENT_SERVER_H_
#define RINGD_WORKER_CLIENT_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/fd.h"
#include "common/sync/mutex.h"
#include "proto/attach.h"
#include "proto/node.pb.h"
#include "worker/mailbox.h"
#include "worker/rank_arena.h"

namespace ringd::worker {

// Serves RINGD_SOCKET (proto/attach.h) on one thread of its own: one client at a time, everybody
// else is told which process holds the rank. A client is gone when it hangs up or its pidfd says so
// (a forked child may keep the connection open). While the daemon is away, requests wait.
//
// Life: the constructor starts the thread, which first makes the memory for the client to come;
// Stop ends it. Thread-safe. Failure: of clients: a Refusal, or their connection is closed.
class ClientServer {
 public:
  // attach, read_limit: as in RankArena::Options; called on the server's thread.
  ClientServer(const node::v1::WorkerSpec& spec, UniqueFd listener,
               RankArena::Options arena_options);
  ~ClientServer();

  // The daemon is there (again).
  void SetSession(const node::v1::AttachResponse& session);
  void LoseSession();

  // To the process that holds the rank. False: there is none.
  bool SignalClient(int signal);

  // Detaches the client, if any, and ends the thread. Blocks until done (bounded by the daemon's
  // answer).
  void Stop();

 private:
  struct Client {
    UniqueFd socket;
    UniqueFd pidfd;
    pid_t pid = 0;
    int64_t deadline_us = 0;     // For its first message; 0: it has spoken.
    std::vector<char> deferred;  // A request that waits for the daemon.
  };
  struct Command {
    bool stop = false;
    std::optional<node::v1::AttachResponse> session;  // None: lost.
  };

  void Run();
  void HandleCommands();
  void PollOnce();
  void Accept();
  void Receive(Client* client);
  void Handle(Client* client, const std::vector<char>& packet);
  void RetryDeferred();
  void DropLate();
  void Drop(int socket);

  // UNAVAILABLE: the request waits for the daemon. Other failures are told to the client.
  absl::Status HandleHello(Client* client, const std::vector<char>& packet);
  absl::Status HandleNeedSegment(Client* client, const std::vector<char>& packet);
  absl::Status HandleNeedToken(Client* client);

  // OK: nobody else holds the rank (any more).
  absl::Status CheckFree(const Client& client);
  bool HolderIsGone() const;
  void SetHolder(const Client& client, bool by_token);
  void ReleaseHolder();

  void SendWelcome(const Client& client, const session::ArenaLine::Links& links);
  void Refuse(const Client& client, const absl::Status& status);

  // Constant after construction.
  const node::v1::WorkerSpec spec_;
  const UniqueFd listener_;

  // Thread-safe on their own.
  Mailbox<Command> commands_;

  // The server's thread alone.
  RankArena arena_;
  std::map<int, Client> clients_;    // By socket.
  int holder_ = -1;                  // Socket of the client that holds the rank.
  bool holds_token_ = false;         // It attaches by itself.
  int64_t retry_at_us_ = INT64_MAX;  // When deferred requests are tried again.
  bool stopped_ = false;

  Mutex mu_;
  UniqueFd holder_pidfd_ ABSL_GUARDED_BY(mu_);  // A duplicate, for SignalClient.

  std::thread thread_;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_CLIENT_SERVER_H_
