// What outlives the daemon's process: records of running jobs, and the term it follows.
#ifndef RINGD_DAEMON_MEMBERSHIP_RECORD_STORE_H_
#define RINGD_DAEMON_MEMBERSHIP_RECORD_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/membership/job_record.pb.h"

namespace ringd::daemon {

// Files: JOBS_DIR/JOB (a JobRecord, 0600) and TERM_FILE (a decimal number). Written whole to a
// temporary file and renamed. Job records survive the process, not the machine (no fsync: the run
// directory is a tmpfs); the term survives both.
//
// Thread-compatible: external synchronisation.
class RecordStore {
 public:
  RecordStore(std::string jobs_directory, std::string term_file);

  absl::Status Write(const v1::JobRecord& record) const;
  void Remove(const std::string& job) const;
  // Records that can't be read (another uid's, open to others, damaged) are logged and left out.
  std::vector<v1::JobRecord> LoadAll() const;

  absl::Status WriteTerm(uint64_t term) const;
  // 0 if there is none yet.  DATA_LOSS: the file is no number; the message says what to do.
  absl::StatusOr<uint64_t> ReadTerm() const;

 private:
  const std::string jobs_directory_;
  const std::string term_file_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MEMBERSHIP_RECORD_STORE_H_
