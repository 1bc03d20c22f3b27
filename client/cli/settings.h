// ringctl's own options: file, environment and global flags.
#ifndef RINGD_CLIENT_CLI_SETTINGS_H_
#define RINGD_CLIENT_CLI_SETTINGS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/run/cluster_client.h"
#include "common/config/config.h"

namespace ringd::cli {

// As typed; "" where not given.
struct GlobalFlags {
  std::string config;
  std::string scheduler;
  std::string output;
  bool verbose = false;
};

// Effective values. Keys are the members' names.
struct Settings {
  std::string scheduler;  // Empty: embedded.
  std::string output = "table";
  bool verbose = false;
  std::string daemon_socket = "/run/ringd/ringd.sock";
  std::string tls_authority;
  std::string tls_server_name;
  std::string dump;  // All of these as TOML, with where each came from.

  bool IsJson() const { return output == "json"; }
  SchedulerAddress Address() const;
};

// INVALID_ARGUMENT: names file and key, or the flag.
absl::StatusOr<Settings> LoadSettings(const GlobalFlags& flags);

// FAILED_PRECONDITION: none is named; the message says how `verb` gets one.
absl::Status CheckHasScheduler(const Settings& settings, const std::string& verb);

// The scheduler's answer to come. FAILED_PRECONDITION: as above.
absl::StatusOr<std::unique_ptr<ClusterClient>> ConnectToCluster(const Settings& settings,
                                                                const std::string& verb);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_SETTINGS_H_
