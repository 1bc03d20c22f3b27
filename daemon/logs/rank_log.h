// Reading one rank's log: rank-N.log and rank-N.log.index, as worker/README.md has them.
#ifndef RINGD_DAEMON_LOGS_RANK_LOG_H_
#define RINGD_DAEMON_LOGS_RANK_LOG_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "proto/cluster.pb.h"

namespace ringd::daemon {

// The log holds the rank's output in order; the index is a sequence of 32-bit little-endian
// numbers, each describing the next bytes of the log: the top bit says stderr, the others how many.
// What the index doesn't cover yet isn't there yet.
//
// Both files are the job's user's: they are opened without following links, must be regular and
// that user's, and their content is taken for hostile.
//
// Thread-compatible: external synchronisation.
class RankLog {
 public:
  // NOT_FOUND: no such log (yet); PERMISSION_DENIED: not the user's own regular files.
  static absl::StatusOr<RankLog> Open(const std::string& path, uid_t uid);

  // Bytes that the index covers now.
  absl::StatusOr<uint64_t> Size();

  // Where the last `lines` lines begin, at most kMaxTailBytes before the end.
  absl::StatusOr<uint64_t> FindTail(int lines);

  struct Chunk {
    std::vector<cluster::v1::LogPiece> pieces;
    uint64_t next_offset = 0;
  };
  // Output from `offset` on, at most max_bytes; empty at the end.  OUT_OF_RANGE: offset is behind
  // the end; DATA_LOSS: log and index don't fit together.
  absl::StatusOr<Chunk> Read(uint64_t offset, uint64_t max_bytes);

 private:
  RankLog(std::string path, UniqueFd log, UniqueFd index);

  // Reads new index records; advances end_.
  absl::Status ReadIndex();

  struct Record {
    uint64_t end = 0;  // Of its bytes in the log.
    bool is_stderr = false;
  };
  std::string path_;
  UniqueFd log_;
  UniqueFd index_;
  uint64_t index_bytes_ = 0;     // Read so far.
  std::vector<Record> records_;  // Neighbours of one stream are joined.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_LOGS_RANK_LOG_H_
