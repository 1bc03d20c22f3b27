#include "daemon/logs/rank_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/macros.h"

namespace ringd::daemon {
namespace {

constexpr uint32_t kStderrBit = uint32_t{1} << 31;
constexpr uint64_t kMaxTailBytes = 16 << 20;
constexpr uint64_t kBlockBytes = 64 << 10;

absl::StatusOr<UniqueFd> OpenOwn(const std::string& path, uid_t uid) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) {
    if (errno == ENOENT || errno == ENOTDIR)
      return absl::NotFoundError(absl::StrCat(path, ": no such log"));
    return absl::PermissionDeniedError(absl::StrCat(path, ": ", strerror(errno)));
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != uid) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": not a regular file of the job's user"));
  }
  return fd;
}

// Up to `bytes` from `offset`; fewer at the end of the file.
absl::StatusOr<std::string> ReadAt(int fd, uint64_t offset, uint64_t bytes) {
  std::string data(bytes, '\0');
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(fd, data.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::DataLossError(strerror(errno));
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  data.resize(done);
  return data;
}

uint32_t LittleEndian(const char* bytes) {
  const auto* b = reinterpret_cast<const unsigned char*>(bytes);
  return uint32_t{b[0]} | uint32_t{b[1]} << 8 | uint32_t{b[2]} << 16 | uint32_t{b[3]} << 24;
}

}  // namespace

RankLog::RankLog(std::string path, UniqueFd log, UniqueFd index)
    : path_(std::move(path)), log_(std::move(log)), index_(std::move(index)) {}

absl::StatusOr<RankLog> RankLog::Open(const std::string& path, uid_t uid) {
  RINGD_ASSIGN_OR_RETURN(UniqueFd log, OpenOwn(path, uid));
  RINGD_ASSIGN_OR_RETURN(UniqueFd index, OpenOwn(absl::StrCat(path, ".index"), uid));
  return RankLog(path, std::move(log), std::move(index));
}

absl::Status RankLog::ReadIndex() {
  while (true) {
    RINGD_ASSIGN_OR_RETURN(std::string block, ReadAt(index_.get(), index_bytes_, kBlockBytes));
    block.resize(block.size() / 4 * 4);  // A record that is being written is not there yet.
    for (size_t at = 0; at < block.size(); at += 4) {
      const uint32_t word = LittleEndian(block.data() + at);
      const bool is_stderr = (word & kStderrBit) != 0;
      const uint64_t begin = records_.empty() ? 0 : records_.back().end;
      const uint64_t end = begin + (word & ~kStderrBit);
      if (!records_.empty() && records_.back().is_stderr == is_stderr) {
        records_.back().end = end;
      } else {
        records_.push_back(Record{end, is_stderr});
      }
    }
    index_bytes_ += block.size();
    if (block.size() < kBlockBytes) return absl::OkStatus();
  }
}

absl::StatusOr<uint64_t> RankLog::Size() {
  RINGD_RETURN_IF_ERROR(ReadIndex());
  return records_.empty() ? 0 : records_.back().end;
}

absl::StatusOr<uint64_t> RankLog::FindTail(int lines) {
  RINGD_ASSIGN_OR_RETURN(const uint64_t size, Size());
  const uint64_t least = size > kMaxTailBytes ? size - kMaxTailBytes : 0;
  uint64_t begin = size;
  int newlines = 0;
  while (begin > least) {
    const uint64_t bytes = std::min(kBlockBytes, begin - least);
    RINGD_ASSIGN_OR_RETURN(const std::string block, ReadAt(log_.get(), begin - bytes, bytes));
    for (uint64_t i = block.size(); i > 0; --i) {
      // The newline that ends the last line doesn't begin another.
      if (block[i - 1] != '\n' || begin - bytes + i == size) continue;
      if (++newlines == lines) return begin - bytes + i;
    }
    begin -= bytes;
  }
  return least;
}

absl::StatusOr<RankLog::Chunk> RankLog::Read(uint64_t offset, uint64_t max_bytes) {
  RINGD_ASSIGN_OR_RETURN(const uint64_t size, Size());
  if (offset > size) {
    return absl::OutOfRangeError(
        absl::StrCat(path_, ": offset ", offset, " is behind the end, ", size));
  }
  Chunk chunk;
  chunk.next_offset = offset;
  const uint64_t bytes = std::min(max_bytes, size - offset);
  RINGD_ASSIGN_OR_RETURN(const std::string data, ReadAt(log_.get(), offset, bytes));
  if (data.size() < bytes)
    return absl::DataLossError(absl::StrCat(path_, ": shorter than its index says"));
  auto record =
      std::upper_bound(records_.begin(), records_.end(), offset,
                       [](uint64_t value, const Record& each) { return value < each.end; });
  while (chunk.next_offset < offset + bytes) {
    const uint64_t end = std::min(record->end, offset + bytes);
    cluster::v1::LogPiece& piece = chunk.pieces.emplace_back();
    piece.set_standard_error(record->is_stderr);
    piece.set_data(data.substr(chunk.next_offset - offset, end - chunk.next_offset));
    chunk.next_offset = end;
    ++record;
  }
  return chunk;
}

}  // namespace ringd::daemon
