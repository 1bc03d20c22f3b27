// Serves the scheduler's ReadLog orders from the files that workers write.
#ifndef RINGD_DAEMON_LOGS_LOG_READER_H_
#define RINGD_DAEMON_LOGS_LOG_READER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "common/sync/mutex.h"
#include "daemon/logs/rank_log.h"
#include "proto/cluster.pb.h"

namespace ringd::daemon {

// ReadLog orders that wait at once: one a rank that somebody follows, and some to spare.
inline constexpr size_t kMaxLogRequests = 1024;
inline constexpr uint64_t kMaxLogBytes = 1 << 20;  // In one answer; gRPC takes 4 MB.
inline constexpr uint64_t kDefaultLogBytes = 256 << 10;
// Open logs that are kept: reading on from where the last order ended takes no new pass over the
// index.
inline constexpr size_t kMaxOpenLogs = 256;
inline constexpr absl::Duration kLogPollInterval = absl::Milliseconds(20);
inline constexpr absl::Duration kLogWait = absl::Seconds(1);

struct LogReaderOptions {
  std::string log_directory;      // Of jobs without a folder of their own.
  std::string folders_directory;  // Remembers the folders of those that have one, for after they
                                  // are forgotten.
};

// Answers on a thread of its own; one that waits looks again every kLogPollInterval.
//
// Life: the destructor ends the thread; what waits gets no answer.
// Thread-safe. `answer` runs on the reader's thread.
class LogReader {
 public:
  using Answer = std::function<void(cluster::v1::LogData)>;

  LogReader(LogReaderOptions options, Answer answer);
  ~LogReader();

  // A job has begun here: its user, and the folder of its logs.
  void AddJob(const std::string& job, uid_t uid, const std::string& directory);
  // No more output comes from this rank.
  void EndRank(const std::string& job, int rank);
  // All its ranks have ended (or never were).
  void EndJob(const std::string& job);

  void Read(const cluster::v1::ReadLog& order);

 private:
  struct Folder {
    uid_t uid = 0;
    std::string path;
  };
  struct Job {
    Folder folder;
    std::set<int> ended;
  };
  struct Request {
    cluster::v1::ReadLog order;
    absl::Time deadline;
    bool tail_found = false;
  };
  using RankKey = std::pair<std::string, int>;

  void Run();
  // An answer, or nothing: look again later.
  std::optional<cluster::v1::LogData> Serve(Request& request);
  absl::StatusOr<RankLog*> OpenLog(const std::string& job, int rank);
  absl::StatusOr<Folder> FindFolder(const std::string& job);
  bool HasEnded(const std::string& job, int rank);

  const LogReaderOptions options_;
  const Answer answer_;
  std::map<RankKey, RankLog> logs_;  // Of the thread alone.

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);  // Running ones.
  std::set<std::string> replaced_
      ABSL_GUARDED_BY(mu_);  // Their open logs may be an older job's of that name.
  std::list<Request> arrived_ ABSL_GUARDED_BY(mu_);
  size_t waiting_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_LOGS_LOG_READER_H_
