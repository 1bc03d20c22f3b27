#include "worker/logs/log_file.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/status/macros.h"

namespace ringd::worker {
namespace {

constexpr uint32_t kMaxRecordBytes = kLogStderrBit - 1;

absl::StatusOr<UniqueFd> OpenAppend(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.valid()) return fd;
  return absl::PermissionDeniedError(
      absl::StrCat("opening the rank's log ", path, ": ", strerror(errno)));
}

uint64_t FileBytes(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

// Bytes of the log that the index accounts for.
uint64_t IndexedBytes(int index) {
  uint64_t total = 0;
  off_t offset = 0;
  uint32_t records[4096];
  while (true) {
    const ssize_t got = pread(index, records, sizeof(records), offset);
    if (got <= 0) return total;
    for (size_t i = 0; i < got / sizeof(uint32_t); ++i)
      total += le32toh(records[i]) & ~kLogStderrBit;
    offset += got;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogFile>> LogFile::Open(const std::string& path) {
  std::error_code ignored;  // Opening the file says what is wrong.
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  RINGD_ASSIGN_OR_RETURN(UniqueFd log, OpenAppend(path));
  RINGD_ASSIGN_OR_RETURN(UniqueFd index, OpenAppend(path + ".index"));
  auto file = absl::WrapUnique(new LogFile(path, std::move(log), std::move(index)));
  RINGD_RETURN_IF_ERROR(file->MendIndex());
  return file;
}

LogFile::LogFile(std::string path, UniqueFd log, UniqueFd index)
    : path_(std::move(path)), log_(std::move(log)), index_(std::move(index)) {}

absl::Status LogFile::MendIndex() {
  const uint64_t index_bytes = FileBytes(index_.get());
  const uint64_t log_bytes = FileBytes(log_.get());
  uint64_t indexed = IndexedBytes(index_.get());
  uint64_t keep_bytes = index_bytes - index_bytes % sizeof(uint32_t);
  if (indexed > log_bytes) indexed = keep_bytes = 0;
  if (keep_bytes != index_bytes && ftruncate(index_.get(), static_cast<off_t>(keep_bytes)) < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("mending ", path_, ".index: ", strerror(errno)));
  }
  while (indexed < log_bytes) {
    record_bytes_ = static_cast<uint32_t>(std::min<uint64_t>(log_bytes - indexed, kMaxRecordBytes));
    indexed += record_bytes_;
    if (!FlushRecord())
      return absl::ResourceExhaustedError(absl::StrCat("writing ", path_, ".index"));
  }
  return absl::OkStatus();
}

void LogFile::Write(bool is_stderr, absl::string_view piece) {
  if (piece.empty()) return;
  if (lost_bytes_ > 0) {
    const std::string notice =
        absl::StrCat("ringd-worker: ", lost_bytes_, " bytes of output were lost here\n");
    if (WriteIndexed(true, notice) > 0) {
      lost_bytes_ += piece.size();
      return;
    }
    lost_bytes_ = 0;
  }
  const size_t left = WriteIndexed(is_stderr, piece);
  if (left == 0) return;
  GetLogger("worker")->error("log not written path={} error={}", path_, strerror(errno));
  lost_bytes_ = left;
}

size_t LogFile::WriteIndexed(bool is_stderr, absl::string_view piece) {
  while (!piece.empty() && FlushRecord()) {
    const ssize_t written =
        write(log_.get(), piece.data(), std::min<size_t>(piece.size(), kMaxRecordBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    record_is_stderr_ = is_stderr;
    record_bytes_ = static_cast<uint32_t>(written);
    piece.remove_prefix(written);
  }
  if (piece.empty())
    FlushRecord();  // If this fails, the next piece tries again before it is written.
  return piece.size();
}

bool LogFile::FlushRecord() {
  if (record_bytes_ == 0) return true;
  const uint32_t record = htole32(record_bytes_ | (record_is_stderr_ ? kLogStderrBit : 0));
  const uint64_t before = FileBytes(index_.get());
  const ssize_t written = write(index_.get(), &record, sizeof(record));
  if (written == sizeof(record)) {
    record_bytes_ = 0;
    return true;
  }
  if (written > 0) {
    [[maybe_unused]] const int rc = ftruncate(index_.get(), static_cast<off_t>(before));
  }
  return false;
}

}  // namespace ringd::worker
