// Ranks' output from the nodes that hold it to the clients that ask: pulled piece by piece, so that
// nothing piles up here.
#ifndef RINGD_SCHEDULER_SERVER_LOG_RELAY_H_
#define RINGD_SCHEDULER_SERVER_LOG_RELAY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"
#include "scheduler/state/event.h"
#include "scheduler/state/machine.h"

namespace ringd::scheduler {

// Bounds: a reader holds kLogWindow pieces of kLogBytes at most, 4 MB; 64 readers 256 MB if no
// client reads.
inline constexpr size_t kLogWindow = 64;
inline constexpr int kLogBytes = 64 * 1024;
inline constexpr size_t kMaxLogReaders = 64;
// A node that answers "nothing new" at once is asked again after this.
inline constexpr absl::Duration kLogPause = absl::Milliseconds(200);

// Where a reader's chunks go. Thread-bound: the state thread.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual bool idle() const = 0;
  // REQUIRES: idle().
  virtual void Send(ringd::cluster::v1::LogChunk chunk) = 0;
  virtual void End(absl::Status status) = 0;
};

// Each reader has a cursor a rank and one request outstanding a rank. A rank is read from when it
// has started; with `follow` the stream ends when all ranks have ended and all was read, else where
// the output ends now.
//
// Thread-bound: the state thread.
class LogRelay {
 public:
  using ReaderId = uint64_t;
  using SendOrder = std::function<void(ConnectionId, ringd::cluster::v1::NodeOrder)>;

  LogRelay(const Machine* machine, SendOrder send) : machine_(machine), send_(std::move(send)) {}

  // `job` is an id. Errors end the sink. 0: it has ended.
  ReaderId Open(const std::string& job, const ringd::cluster::v1::LogsRequest& request,
                LogSink* sink, absl::Duration now);
  // The sink goes: no call of it any more.
  void Close(ReaderId reader);
  // The sink is idle again.
  void Pump(ReaderId reader, absl::Duration now);

  void OnData(ConnectionId connection, ringd::cluster::v1::LogData data, absl::Duration now);
  void OnConnectionGone(ConnectionId connection, absl::Duration now);
  // Something has changed for the job's ranks ("": for any).
  void OnChange(const std::string& job, absl::Duration now);

 private:
  struct Cursor {
    int rank = 0;
    uint64_t offset = 0;
    bool begun = false;  // tail_lines has been asked for.
    bool done = false;
    uint64_t request = 0;  // Outstanding; 0: none.
    absl::Duration asked;
    absl::Duration not_before = -absl::InfiniteDuration();
  };
  struct Reader {
    std::string job;
    ringd::cluster::v1::LogsRequest request;
    LogSink* sink = nullptr;
    bool built = false;  // Cursors exist: the ranks have nodes.
    std::vector<Cursor> cursors;
    size_t next = 0;  // Round robin.
    size_t outstanding = 0;
    size_t open = 0;  // Cursors not done.
    std::deque<ringd::cluster::v1::LogChunk> chunks;
    absl::Status status;  // First error of a rank.
  };
  struct Request {
    ReaderId reader = 0;
    size_t cursor = 0;
    ConnectionId connection = 0;
  };

  // False: the reader has ended.
  bool Build(Reader* reader);
  void Ask(ReaderId id, Reader* reader, size_t index, absl::Duration now);
  void Finish(Reader* reader, Cursor* cursor, absl::Status status);

  const Machine* const machine_;
  const SendOrder send_;
  ReaderId next_reader_ = 1;
  uint64_t next_request_ = 1;
  std::map<ReaderId, Reader> readers_;
  std::map<uint64_t, Request> requests_;
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_SERVER_LOG_RELAY_H_
