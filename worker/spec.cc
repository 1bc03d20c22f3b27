#include "worker/spec.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/macros.h"
#include "proto/attach.h"

namespace ringd::worker {
namespace {

// An environment is at most a few MB (the kernel's ARG_MAX is 6 MB at most).
constexpr size_t kMaxSpecBytes = 64u << 20;
constexpr size_t kMaxSocketPath = 107;
constexpr size_t kMaxTokenBytes = sizeof(attach::TokenGrant::token);

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("worker spec: ", what));
}

bool Absolute(const std::string& path) { return !path.empty() && path[0] == '/'; }

bool HasZero(const std::string& text) { return text.find('\0') != std::string::npos; }

absl::Status ValidateLayout(const node::v1::RankLayout& layout) {
  const bool sound = layout.size() > 0 && layout.rank() >= 0 && layout.rank() < layout.size() &&
                     layout.local_rank() >= 0 && layout.local_rank() < layout.local_size() &&
                     layout.node_rank() >= 0 && layout.node_rank() < layout.node_count();
  return sound ? absl::OkStatus() : Bad("rank layout out of range");
}

absl::Status ValidateCommand(const node::v1::WorkerSpec& spec) {
  if (spec.command().empty() || spec.command(0).empty()) return Bad("no command");
  for (const std::string& word : spec.command()) {
    if (HasZero(word)) return Bad("a zero byte in the command");
  }
  for (const auto& [name, value] : spec.environment()) {
    if (name.empty() || name.find('=') != std::string::npos || HasZero(name) || HasZero(value)) {
      return Bad("an environment variable without a proper name");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<node::v1::WorkerSpec> ReadSpec(int fd) {
  std::string data;
  char buffer[16384];
  while (true) {
    const ssize_t got = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(data.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return absl::InvalidArgumentError(absl::StrCat("reading the worker spec: ", strerror(errno)));
    if (got == 0) break;
    data.append(buffer, got);
    if (data.size() > kMaxSpecBytes) return Bad("too long");
  }
  node::v1::WorkerSpec spec;
  if (!spec.ParseFromString(data)) return Bad("not a WorkerSpec");
  RINGD_RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

absl::Status ValidateSpec(const node::v1::WorkerSpec& spec) {
  if (spec.job().empty() || spec.job().size() >= attach::kNameBytes)
    return Bad("no job, or its name is too long");
  if (spec.node().size() >= attach::kNameBytes) return Bad("the node's name is too long");
  if (spec.token().size() > kMaxTokenBytes) return Bad("the token is too long");
  RINGD_RETURN_IF_ERROR(ValidateLayout(spec.layout()));
  RINGD_RETURN_IF_ERROR(ValidateCommand(spec));
  if (spec.daemon_socket().rfind("unix:/", 0) != 0) return Bad("daemon_socket is no unix:/path");
  if (!Absolute(spec.worker_socket()) || spec.worker_socket().size() > kMaxSocketPath) {
    return Bad("worker_socket is no path that fits a socket address");
  }
  if (!Absolute(spec.working_directory())) return Bad("working_directory is not absolute");
  if (!Absolute(spec.log_path())) return Bad("log_path is not absolute");
  if (!spec.cgroup().empty() && !Absolute(spec.cgroup())) return Bad("cgroup is not absolute");
  if (spec.umask() > 0777) return Bad("umask out of range");
  return absl::OkStatus();
}

}  // namespace ringd::worker
