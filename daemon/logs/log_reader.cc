#include "daemon/logs/log_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/status/macros.h"

namespace ringd::daemon {
namespace {

constexpr absl::Duration kIdleBeforeClose = absl::Seconds(30);

bool IsPlainName(const std::string& job) {
  return !job.empty() && job[0] != '.' && job.find('/') == std::string::npos;
}

}  // namespace

LogReader::LogReader(LogReaderOptions options, Answer answer)
    : options_(std::move(options)), answer_(std::move(answer)), thread_(&LogReader::Run, this) {}

LogReader::~LogReader() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void LogReader::AddJob(const std::string& job, uid_t uid, const std::string& directory) {
  const std::string remembered = absl::StrCat(options_.folders_directory, "/", job);
  if (directory != absl::StrCat(options_.log_directory, "/", job)) {
    std::ofstream file(remembered, std::ios::trunc);
    file << uid << "\n" << directory << "\n";
  } else {
    remove(remembered.c_str());
  }
  MutexLock lock(&mu_);
  jobs_[job] = Job{Folder{uid, directory}, {}};
  replaced_.insert(job);
}

void LogReader::EndRank(const std::string& job, int rank) {
  MutexLock lock(&mu_);
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) found->second.ended.insert(rank);
}

void LogReader::EndJob(const std::string& job) {
  MutexLock lock(&mu_);
  jobs_.erase(job);
}

void LogReader::Read(const cluster::v1::ReadLog& order) {
  {
    MutexLock lock(&mu_);
    if (waiting_count_ < kMaxLogRequests) {
      ++waiting_count_;
      arrived_.push_back(
          Request{order, absl::Now() + (order.wait() ? kLogWait : absl::ZeroDuration())});
      changed_.Signal();
      return;
    }
  }
  cluster::v1::LogData refusal;
  refusal.set_request(order.request());
  refusal.set_next_offset(order.offset());
  refusal.set_error("too many logs are being read from this node; try again");
  answer_(std::move(refusal));
}

void LogReader::Run() {
  std::list<Request> requests;
  while (true) {
    {
      MutexLock lock(&mu_);
      if (requests.empty()) {
        while (arrived_.empty() && !stopping_) {
          if (logs_.empty()) {
            changed_.Wait(&mu_);
          } else if (changed_.WaitWithTimeout(&mu_, kIdleBeforeClose)) {
            logs_.clear();
          }
        }
      } else if (arrived_.empty() && !stopping_) {
        changed_.WaitWithTimeout(&mu_, kLogPollInterval);
      }
      if (stopping_) return;
      requests.splice(requests.end(), arrived_);
      for (const std::string& job : std::exchange(replaced_, {})) {
        std::erase_if(logs_, [&](const auto& each) { return each.first.first == job; });
      }
    }
    for (auto each = requests.begin(); each != requests.end();) {
      std::optional<cluster::v1::LogData> data = Serve(*each);
      if (!data.has_value()) {
        ++each;
        continue;
      }
      answer_(*std::move(data));
      each = requests.erase(each);
      MutexLock lock(&mu_);
      --waiting_count_;
    }
  }
}

std::optional<cluster::v1::LogData> LogReader::Serve(Request& request) {
  cluster::v1::ReadLog& order = request.order;
  cluster::v1::LogData data;
  data.set_request(order.request());
  data.set_next_offset(order.offset());
  // Before reading: what was written before the end is then read too.
  const bool ended = HasEnded(order.job(), order.rank());
  const bool overdue = absl::Now() >= request.deadline;
  const absl::StatusOr<RankLog*> log = OpenLog(order.job(), order.rank());
  if (!log.ok()) {
    if (absl::IsNotFound(log.status()) && !ended) {  // Not begun yet.
      if (overdue) return data;
      return std::nullopt;
    }
    data.set_error(std::string(log.status().message()));
    data.set_finished(true);
    return data;
  }
  if (order.tail_lines() > 0 && !request.tail_found) {
    const absl::StatusOr<uint64_t> tail = (*log)->FindTail(order.tail_lines());
    if (tail.ok()) order.set_offset(*tail);
    request.tail_found = true;
  }
  const uint64_t bytes =
      order.max_bytes() > 0 ? static_cast<uint64_t>(order.max_bytes()) : kDefaultLogBytes;
  absl::StatusOr<RankLog::Chunk> chunk =
      (*log)->Read(order.offset(), std::min(bytes, kMaxLogBytes));
  if (!chunk.ok()) {
    logs_.erase({order.job(), order.rank()});
    data.set_error(std::string(chunk.status().message()));
    data.set_finished(ended);
    return data;
  }
  if (chunk->pieces.empty() && !ended && !overdue) return std::nullopt;
  data.set_finished(ended && chunk->pieces.empty());
  data.set_next_offset(chunk->next_offset);
  for (cluster::v1::LogPiece& piece : chunk->pieces) *data.add_pieces() = std::move(piece);
  if (data.finished()) logs_.erase({order.job(), order.rank()});  // Nobody reads on from here.
  return data;
}

absl::StatusOr<RankLog*> LogReader::OpenLog(const std::string& job, int rank) {
  const RankKey key{job, rank};
  if (const auto found = logs_.find(key); found != logs_.end()) return &found->second;
  RINGD_ASSIGN_OR_RETURN(const Folder folder, FindFolder(job));
  RINGD_ASSIGN_OR_RETURN(
      RankLog log, RankLog::Open(absl::StrCat(folder.path, "/rank-", rank, ".log"), folder.uid));
  if (logs_.size() >= kMaxOpenLogs) logs_.erase(logs_.begin());
  return &logs_.emplace(key, std::move(log)).first->second;
}

absl::StatusOr<LogReader::Folder> LogReader::FindFolder(const std::string& job) {
  if (!IsPlainName(job)) return absl::NotFoundError(absl::StrCat("no job ", job));
  {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) return found->second.folder;
  }
  Folder folder;
  std::ifstream file(absl::StrCat(options_.folders_directory, "/", job));
  if (file >> folder.uid && file.get() == '\n' && std::getline(file, folder.path)) return folder;
  folder.path = absl::StrCat(options_.log_directory, "/", job);
  struct stat info;
  if (lstat(folder.path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::NotFoundError(
        absl::StrCat("no logs of job ", job, " in ", options_.log_directory));
  }
  folder.uid = info.st_uid;
  return folder;
}

bool LogReader::HasEnded(const std::string& job, int rank) {
  MutexLock lock(&mu_);
  const auto found = jobs_.find(job);
  return found == jobs_.end() || found->second.ended.count(rank) != 0;
}

}  // namespace ringd::daemon
