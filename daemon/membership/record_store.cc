#include "daemon/membership/record_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/log/log.h"
#include "common/status/macros.h"
#include "daemon/membership/node_machine.h"

namespace ringd::daemon {
namespace {

// Larger than any environment that execve takes.
constexpr off_t kMaxRecordBytes = 64 << 20;

absl::Status Failure(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat(path, ": can't ", what, ": ", strerror(errno)));
}

absl::Status WriteFile(const std::string& path, const std::string& content, bool durable) {
  const std::string temporary = absl::StrCat(path, "~");
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return Failure(temporary, "create");
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t bytes = write(fd.get(), content.data() + done, content.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return Failure(temporary, "write");
    done += static_cast<size_t>(bytes);
  }
  if (durable && fsync(fd.get()) != 0) return Failure(temporary, "write");
  if (rename(temporary.c_str(), path.c_str()) != 0) return Failure(path, "replace");
  if (durable) {
    const UniqueFd folder(
        open(path.substr(0, path.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.valid()) fsync(folder.get());
  }
  return absl::OkStatus();
}

// Only what this very user wrote, for nobody else to see or change, is believed.
absl::StatusOr<std::string> ReadOwnFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return errno == ENOENT ? absl::NotFoundError(path) : Failure(path, "read");
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & 077) != 0 || info.st_size > kMaxRecordBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": not a private file of this user; remove it"));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t bytes = read(fd.get(), content.data() + done, content.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return absl::DataLossError(absl::StrCat(path, ": can't be read whole"));
    done += static_cast<size_t>(bytes);
  }
  return content;
}

}  // namespace

RecordStore::RecordStore(std::string jobs_directory, std::string term_file)
    : jobs_directory_(std::move(jobs_directory)), term_file_(std::move(term_file)) {}

absl::Status RecordStore::Write(const v1::JobRecord& record) const {
  return WriteFile(absl::StrCat(jobs_directory_, "/", record.order().job()),
                   record.SerializeAsString(), false);
}

void RecordStore::Remove(const std::string& job) const {
  unlink(absl::StrCat(jobs_directory_, "/", job).c_str());
}

std::vector<v1::JobRecord> RecordStore::LoadAll() const {
  std::vector<v1::JobRecord> records;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(jobs_directory_.c_str()), closedir);
  if (folder == nullptr) return records;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (!IsSafeName(name)) continue;  // ".", "..", temporary files.
    const absl::StatusOr<std::string> content =
        ReadOwnFile(absl::StrCat(jobs_directory_, "/", name));
    v1::JobRecord record;
    if (content.ok() && record.ParseFromString(*content) && record.order().job() == name) {
      records.push_back(std::move(record));
      continue;
    }
    GetLogger("membership")
        ->warn("job record ignored job={} reason={}", name,
               content.ok() ? "damaged" : std::string(content.status().message()));
  }
  return records;
}

absl::Status RecordStore::WriteTerm(uint64_t term) const {
  return WriteFile(term_file_, absl::StrCat(term, "\n"), true);
}

absl::StatusOr<uint64_t> RecordStore::ReadTerm() const {
  const absl::StatusOr<std::string> content = ReadOwnFile(term_file_);
  if (absl::IsNotFound(content.status())) return 0;
  RINGD_RETURN_IF_ERROR(content.status());
  uint64_t term = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(*content), &term)) {
    return absl::DataLossError(
        absl::StrCat(term_file_,
                     ": should hold the scheduler's last term, a number; remove the "
                     "file if this node was never in another cluster"));
  }
  return term;
}

}  // namespace ringd::daemon
