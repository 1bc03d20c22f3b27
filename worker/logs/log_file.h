// A rank's log on disk: rank-N.log and its index (format: README.md).
#ifndef RINGD_WORKER_LOGS_LOG_FILE_H_
#define RINGD_WORKER_LOGS_LOG_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/fd.h"

namespace ringd::worker {

inline constexpr uint32_t kLogStderrBit = uint32_t{1} << 31;

// Appends pieces of output and, after each, its index record. Output never stops the rank: what
// can't be written (disk full) is counted, and a line says so once writing works again.
//
// Thread-compatible: external synchronisation.
class LogFile {
 public:
  // Creates both files (0600) and missing folders. An older log is continued: its index is mended
  // first, if a worker died between the two writes.
  static absl::StatusOr<std::unique_ptr<LogFile>> Open(const std::string& path);

  void Write(bool is_stderr, absl::string_view piece);

 private:
  LogFile(std::string path, UniqueFd log, UniqueFd index);
  absl::Status MendIndex();
  // Returns how many bytes could not be written.
  size_t WriteIndexed(bool is_stderr, absl::string_view piece);
  bool FlushRecord();

  const std::string path_;
  const UniqueFd log_;
  const UniqueFd index_;
  bool record_is_stderr_ = false;
  uint32_t record_bytes_ = 0;  // Written to the log, not yet to the index.
  uint64_t lost_bytes_ = 0;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_LOGS_LOG_FILE_H_
