#include "daemon/main/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status/macros.h"

namespace ringd::daemon {
namespace {

absl::Status MakeParents(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string parent = path.substr(0, slash);
    if (mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST) {
      return absl::FailedPreconditionError(
          absl::StrCat("can't make ", parent, ": ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// Ours alone to write.
absl::Status MakeOwn(const std::string& path, mode_t mode) {
  RINGD_RETURN_IF_ERROR(MakeParents(path));
  if (mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat("can't make ", path, ": ", strerror(errno)));
  }
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a folder; remove it or choose another"));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " belongs to uid ", info.st_uid,
                                                      ", not to us (", geteuid(),
                                                      "); choose another folder"));
  }
  if ((info.st_mode & 07777) != mode && chmod(path.c_str(), mode) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't set the mode of ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Lock(const std::string& run_directory) {
  const std::string path = absl::StrCat(run_directory, "/lock");
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid())
    return absl::FailedPreconditionError(absl::StrCat("can't open ", path, ": ", strerror(errno)));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    char holder[32] = {};
    const ssize_t bytes = pread(fd.get(), holder, sizeof(holder) - 1, 0);
    const std::string pid(absl::StripAsciiWhitespace(bytes > 0 ? holder : ""));
    return absl::AlreadyExistsError(absl::StrCat("another ringd", pid.empty() ? "" : " (pid ", pid,
                                                 pid.empty() ? "" : ")", " holds ", path,
                                                 "; stop it or choose another --run-directory"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
    return absl::FailedPreconditionError(absl::StrCat("can't write ", path, ": ", strerror(errno)));
  }
  return fd;
}

}  // namespace

absl::StatusOr<UniqueFd> SetUpDirectories(const Options& options) {
  const mode_t mode = options.shared ? 0755 : 0700;
  RINGD_RETURN_IF_ERROR(MakeOwn(options.run_directory, mode));
  RINGD_ASSIGN_OR_RETURN(UniqueFd lock, Lock(options.run_directory));
  RINGD_RETURN_IF_ERROR(MakeOwn(absl::StrCat(options.run_directory, "/jobs"), 0700));
  // Users pass through to the folders of their own jobs.
  RINGD_RETURN_IF_ERROR(
      MakeOwn(absl::StrCat(options.run_directory, "/w"), options.shared ? 0711 : 0700));
  RINGD_RETURN_IF_ERROR(MakeOwn(options.state_directory, mode));
  RINGD_RETURN_IF_ERROR(MakeOwn(absl::StrCat(options.state_directory, "/log-folders"), 0700));
  RINGD_RETURN_IF_ERROR(MakeOwn(options.log_directory, mode));
  return lock;
}

}  // namespace ringd::daemon
