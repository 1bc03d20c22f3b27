#include "worker/process/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"

namespace ringd::worker {
namespace {

absl::Status Denied(const char* step) {
  return absl::PermissionDeniedError(absl::StrCat(step, ": ", strerror(errno)));
}

absl::Status VerifyUser(uid_t uid, gid_t gid) {
  uid_t real_uid, effective_uid, saved_uid;
  gid_t real_gid, effective_gid, saved_gid;
  if (getresuid(&real_uid, &effective_uid, &saved_uid) < 0) return Denied("getresuid");
  if (getresgid(&real_gid, &effective_gid, &saved_gid) < 0) return Denied("getresgid");
  if (real_uid != uid || effective_uid != uid || saved_uid != uid || real_gid != gid ||
      effective_gid != gid || saved_gid != gid || setuid(0) == 0 || seteuid(0) == 0 ||
      setgid(0) == 0) {
    return absl::PermissionDeniedError("root could be regained after switching to the user");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status JoinCgroup(const std::string& cgroup) {
  if (cgroup.empty()) return absl::OkStatus();
  const std::string path = cgroup + "/cgroup.procs";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid() || write(file.get(), "0", 1) != 1) {
    return absl::PermissionDeniedError(
        absl::StrCat("joining the cgroup at ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status BecomeUser(const node::v1::WorkerSpec& spec) {
  const uid_t uid = spec.uid();
  const gid_t gid = spec.gid();
  if (uid == 0 || gid == 0)
    return absl::PermissionDeniedError("a shared daemon runs no ranks as root");
  if (spec.user().empty()) {
    if (setgroups(0, nullptr) < 0) return Denied("setgroups");
  } else if (initgroups(spec.user().c_str(), gid) < 0) {
    return Denied("initgroups");
  }
  if (setresgid(gid, gid, gid) < 0) return Denied("setgid");
  if (setresuid(uid, uid, uid) < 0) return Denied("setuid");
  return VerifyUser(uid, gid);
}

std::string HomeDirectory(uid_t uid) {
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> buffer(16384);
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    return "";
  return entry.pw_dir;
}

}  // namespace ringd::worker
