// What ringd-scheduler can be told by flags, environment and configuration file.
#ifndef RINGD_SCHEDULER_MAIN_OPTIONS_H_
#define RINGD_SCHEDULER_MAIN_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config/config.h"
#include "common/rpc/rpc.h"
#include "scheduler/state/machine.h"

namespace ringd::scheduler {

struct Options {
  std::vector<std::string>
      listen;  // "unix:/path" or "host:port"; empty: RUN/scheduler.sock, and :7470 with TLS.
  std::string state_directory;  // Empty: ~/.local/state/ringd, shared: /var/lib/ringd.
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_authority;
  bool insecure = false;  // TCP without TLS: listens, and takes callers' and nodes' word.
  bool shared = false;  // Unix sockets are open to the group (0660) and any uid that gets through.
  bool embedded = false;
  int lifeline_fd = -1;  // Exit when the other end of this inherited pipe closes.
  absl::Duration node_timeout = absl::Seconds(5);
  absl::Duration reattach_timeout = absl::Seconds(60);
  absl::Duration heartbeat_interval = absl::Seconds(1);
  std::string log_level = "info";

  TlsFiles Tls() const { return {tls_certificate, tls_key, tls_authority}; }
  Machine::Options MachineOptions() const;
};

// Binds all keys to *options.
void AddOptions(Options* options, Config* config);

// Fills what is empty in. INVALID_ARGUMENT names the option.
absl::Status CompleteOptions(Options* options);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_MAIN_OPTIONS_H_
