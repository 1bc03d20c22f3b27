#include "scheduler/main/options.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ringd::scheduler {
namespace {

constexpr char kSharedRunDirectory[] = "/run/ringd";
constexpr char kSharedStateDirectory[] = "/var/lib/ringd";
constexpr char kDefaultPort[] = "0.0.0.0:7470";

}  // namespace

Machine::Options Options::MachineOptions() const {
  Machine::Options machine;
  machine.embedded = embedded;
  machine.node_timeout = node_timeout;
  machine.reattach_timeout = reattach_timeout;
  machine.heartbeat_interval = heartbeat_interval;
  return machine;
}

void AddOptions(Options* options, Config* config) {
  config->Add("listen", &options->listen,
              "address to serve, unix:/PATH or HOST:PORT (port 0: a free one); repeatable "
              "(default: scheduler.sock in /run/ringd if shared, else in $XDG_RUNTIME_DIR/ringd; "
              "with TLS also 0.0.0.0:7470)");
  config->Add("state_directory", &options->state_directory,
              "where jobs outlive the scheduler (default: /var/lib/ringd if shared, else "
              "~/.local/state/ringd)");
  config->Add("tls_certificate", &options->tls_certificate,
              "PEM file: certificate of this scheduler");
  config->Add("tls_key", &options->tls_key, "PEM file: its key");
  config->Add("tls_authority", &options->tls_authority,
              "PEM file: authority of nodes and identities");
  config->Add("insecure", &options->insecure,
              "allow TCP without TLS, and believe who calls over it");
  config->Add("shared", &options->shared, "serve all users who can open the socket");
  config->Add("embedded", &options->embedded, "private scheduler of one `ringctl run`");
  config->Add("lifeline_fd", &options->lifeline_fd, "exit when this inherited pipe closes");
  config->Add("node_timeout", &options->node_timeout, "silence after which a node is lost");
  config->Add("reattach_timeout", &options->reattach_timeout,
              "time for a restarted daemon to come back");
  config->Add("heartbeat_interval", &options->heartbeat_interval,
              "between two heartbeats of a node");
  config->Add("log_level", &options->log_level,
              "trace, debug, info, warning, error, off; also info,ROOM=debug");
}

absl::Status CompleteOptions(Options* options) {
  const UserPaths paths = GetUserPaths();
  if (options->state_directory.empty()) {
    options->state_directory = options->shared ? kSharedStateDirectory : paths.state_directory;
  }
  const int files = !options->tls_certificate.empty() + !options->tls_key.empty() +
                    !options->tls_authority.empty();
  if (files != 0 && files != 3) {
    return absl::InvalidArgumentError(
        "tls_certificate, tls_key and tls_authority go together: give all three");
  }
  if (options->listen.empty()) {
    const std::string directory = options->shared ? kSharedRunDirectory : paths.run_directory;
    std::error_code error;
    if (std::filesystem::create_directories(directory, error) && !options->shared)
      chmod(directory.c_str(), 0700);
    options->listen.push_back(absl::StrCat("unix:", directory, "/scheduler.sock"));
    if (files == 3) options->listen.push_back(kDefaultPort);
  }
  for (const std::string& address : options->listen) {
    const bool is_unix = absl::StartsWith(address, "unix:");
    if (is_unix ? address.size() <= 5 : address.rfind(':') == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("listen '", address, "' is no address: write unix:/PATH or HOST:PORT"));
    }
  }
  if (options->heartbeat_interval <= absl::ZeroDuration() ||
      options->node_timeout < 2 * options->heartbeat_interval) {
    return absl::InvalidArgumentError(
        "node_timeout is under twice heartbeat_interval: nodes would be lost for nothing");
  }
  if (options->reattach_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("reattach_timeout is negative");
  }
  return absl::OkStatus();
}

}  // namespace ringd::scheduler
