// Brings the ranks that another launcher started together with the workers of a job of ringd.
#ifndef RINGD_WORKER_ATTACH_ATTACH_SERVER_H_
#define RINGD_WORKER_ATTACH_ATTACH_SERVER_H_

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/process/process.h"
#include "proto/attach.h"

namespace ringd::worker {

// Tells `count` ranks why they can't be attached. Blocks until it has, or until `timeout`.
void RefuseRanks(const UniqueFd& listener, int count, absl::Duration timeout,
                 const std::string& text);

// One a job and node. Each rank has two connections: its client (libringd.so in the training
// process) and its stand-in (what ringd runs as this rank). When all of the node's ranks have both,
// each client is told where its rank's worker listens. From then on a client's end, which its pidfd
// shows, becomes its stand-in's: for ringd the rank has ended like that.
//
// Life: Run, once. Ends when the command that runs the job has ended. Thread-bound: one thread.
// Failure: of the job, before its start: a Refusal to each client that waits; later its workers
// tell the clients.
class AttachServer {
 public:
  struct Options {
    UniqueFd listener;
    int32_t size = 0;         // Ranks of the job.
    int32_t local_size = 0;   // Of them on this node.
    absl::Duration timeout;   // For all ranks of this node to call init().
    Child command;            // Runs the job; its end is the job's.
    UniqueFd command_errors;  // What it writes to stderr.
  };
  explicit AttachServer(Options options);

  void Run();

 private:
  struct Rank {
    attach::Place place;   // As the client says.
    attach::Place ringds;  // As the stand-in says.
    UniqueFd client;       // Open until its process ends.
    UniqueFd pidfd;
    pid_t pid = 0;  // 0: there was no client yet.
    bool said_goodbye = false;
    bool ended = false;
    attach::RankEnded end;  // Where it has ended.
    UniqueFd stand_in;
    std::string worker_socket;
  };

  void PollOnce();
  void CheckCommand();
  void CheckTimeout();
  void Accept();
  void ReadStranger(int socket);
  void ReadClient(Rank* rank);
  void ReadCommandErrors();

  void OnRankHello(UniqueFd socket, const attach::RankHello& hello);
  void OnStandInHello(UniqueFd socket, const attach::StandInHello& hello);
  void OnClientEnded(Rank* rank);
  // Once everybody is there, tells the clients.
  void PlaceClients();
  void Place(Rank* rank);
  // Ends the job; those that wait are told why. Before the start only.
  void Fail(absl::StatusCode code, const std::string& text);
  void EndRank(Rank* rank, int exit_code, int signal, const std::string& text);

  absl::Status CheckHello(const attach::RankHello& hello) const;
  std::string MissingRanks() const;  // Empty: none.

  // Constant after construction.
  const UniqueFd listener_;
  const int32_t size_;
  const int32_t local_size_;
  const absl::Duration timeout_;
  const int64_t start_us_;
  const Child command_;

  UniqueFd command_errors_;
  std::string errors_;                 // The end of what came there.
  std::map<int, UniqueFd> strangers_;  // Connections that have said nothing yet.
  std::map<int32_t, Rank> ranks_;
  bool placed_ = false;
  bool failed_ = false;
  bool over_ = false;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_ATTACH_ATTACH_SERVER_H_
