// The engine: takes submissions from arenas, brings them in order, runs them on communicators,
// completes them.
#ifndef RINGD_DAEMON_ENGINE_ENGINE_H_
#define RINGD_DAEMON_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/collectives/communicator.h"

namespace ringd::daemon {

struct EngineOptions {
  int reduce_threads = 0;  // Including the engine's own. 0: one for each usable CPU.
  int gather_bytes = -1;   // RingTuning::gather_bytes; -1: as measured.
  std::string
      data_address;  // "host:port" to listen on; empty: this daemon never forms rings with others.
};

// A generation of a job on this node.
struct JobGeneration {
  std::string job;
  uint64_t generation = 0;
  GroupLayout layout;
  std::string key;                          // 32 bytes.
  std::vector<std::string> data_addresses;  // By node index.
  int64_t first_stall_us = 10'000'000;      // Age at which an operation that waits is reported.
};

// The oldest operation of a job waits for long.
struct Stall {
  std::string report;       // Empty: nothing does any more.
  int64_t age_us = 0;       // Since its first submission here.
  bool names_rank = false;  // The report says which rank of this node is missing.
};

// One segment of a client's arena: a sealed memfd, checked by the session. The engine maps it.
struct ArenaSegment {
  int fd = -1;  // Taken over.
  uint64_t bytes = 0;
};

// Owns the engine thread: everything of the data path happens there. The other threads of the
// daemon (gRPC handlers, sessions) talk to it by the calls below, each a message to that thread;
// callbacks run on the engine thread and must not block.
//
// Life: Create starts the thread; Stop ends it (operations in flight fail as aborted); the
// destructor stops too. Ownership: descriptors passed in are taken over. Thread-safe. Failure: of
// clients: each gets its own (a bad descriptor fails that client alone: its arena is poisoned and
// `client_failed` is called); of a job: FailJob.
class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  virtual ~Engine() = default;

  // host:port that other daemons dial, with the real port; empty without a data address.
  virtual std::string data_address() const = 0;

  // Connects the generation's ring (several nodes) or prepares the local communicator. `done`: OK,
  // or why not.
  virtual void PrepareJob(const JobGeneration& generation,
                          std::function<void(absl::Status)> done) = 0;
  // Ends the job here: pending operations fail with `outcome`, arenas are released. `done` when
  // nothing is left.
  virtual void RemoveJob(const std::string& job, const Outcome& outcome,
                         std::function<void()> done) = 0;

  // A client of a rank begins: segment 0 of its arena. Returns the doorbell: an eventfd that the
  // client writes to (the caller owns the returned duplicate).  INVALID_ARGUMENT: header or size
  // not as proto/arena.h says; NOT_FOUND: no such job or rank; ALREADY_EXISTS: the rank has a
  // client. Blocks until the engine thread has answered (bounded, milliseconds).
  virtual absl::StatusOr<int> AddClient(const std::string& job, int rank, uint64_t arena,
                                        ArenaSegment segment) = 0;
  // The job's shared segment (proto/segment.h), which the client needs beside the doorbell: a
  // duplicate of its memfd, the caller's; -1: the job has none. NOT_FOUND: no such job.
  virtual absl::StatusOr<int> ShareSegment(const std::string& job) = 0;
  virtual absl::Status AddSegment(const std::string& job, int rank, uint64_t arena, uint32_t index,
                                  ArenaSegment segment) = 0;
  // The client's process: its pidfd (taken over) tells its death at once.
  virtual absl::Status SetClientProcess(const std::string& job, int rank, uint64_t arena, int pid,
                                        int pidfd) = 0;
  // The client has detached or died; what it had submitted whole is still carried out, then its
  // arena is unmapped.
  virtual void RemoveClient(const std::string& job, int rank, uint64_t arena) = 0;

  // The rank's process has ended: operations that it has not submitted fail everywhere with
  // `outcome` (kPeerFailed). The engine adds "after K operations, s.N is pending" where exit_code
  // is 0 and signal 0.
  virtual void RankEnded(const std::string& job, int rank, const Outcome& outcome) = 0;
  // All pending and later operations of the job fail on this node with `outcome`.
  virtual void FailJob(const std::string& job, const Outcome& outcome) = 0;

  struct Events {
    std::function<void(std::string job, int rank, std::string reason)>
        client_failed;  // Bad descriptor, arena misuse.
    std::function<void(std::string job, int rank, int pid)> client_died;  // Its pidfd fired.
    // At Stall's age, at doubling ages, and when it is over.
    std::function<void(std::string job, Stall stall)> stalled;
    std::function<void(std::string job, absl::Status)> ring_failed;  // A neighbour's link broke.
  };
  // Before the first job. Called on the engine thread.
  virtual void SetEvents(Events events) = 0;

  virtual void Stop() = 0;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ENGINE_H_
