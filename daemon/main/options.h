// ringd's options: one table, checked once.
#ifndef RINGD_DAEMON_MAIN_OPTIONS_H_
#define RINGD_DAEMON_MAIN_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"

namespace ringd::daemon {

// After Parse all fields hold their effective values.
struct Options {
  std::string name;   // Default: the host's name.
  std::string slots;  // As given; slot_count is what it says. Default: GPUs, else CPUs.
  int slot_count = 0;
  std::string scheduler;  // host:port or unix:/path.
  std::string run_directory;
  std::string log_directory;
  std::string state_directory;
  std::string data_address;       // host:port to listen on for other daemons.
  std::string advertise_address;  // Host that others dial; empty: that of data_address, or of the
                                  // way to the scheduler.
  bool shared = false;
  int min_uid = 1000;
  TlsFiles tls;
  absl::Duration reattach_timeout = absl::Seconds(60);
  bool embedded = false;
  int lifeline_fd = -1;
  int64_t arena_bytes = 0;
  int64_t arena_max = 0;
  std::string log_level = "info";
  int reduce_threads = 0;
  int gather_bytes = -1;
  std::string worker_program;  // Default: ringd-worker beside this program.
};

struct ParsedOptions {
  Options options;
  std::string effective;  // Options as TOML, with where each came from.
  std::string output;     // For --help and --version: this is all that was asked for.
};

// Default < config file < environment < flag.  INVALID_ARGUMENT: names the key, its value and what
// would be right.
absl::StatusOr<ParsedOptions> ParseOptions(int argc, const char* const* argv);

// "8" and the like; empty: this host's GPUs, or CPUs where it has none.
absl::StatusOr<int> ParseSlots(const std::string& slots);

// Host and port of "host:port" or "[v6]:port".  INVALID_ARGUMENT: names the key and the form.
struct HostPort {
  std::string host;  // With its brackets, if any.
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(const std::string& key, const std::string& address);

// What other daemons dial: `advertise` or, where it is empty, the host of `listening`; if that is a
// wildcard, this host's own address on the way to the scheduler. The port is `listening`'s, unless
// `advertise` has one.
std::string AdvertisedAddress(const std::string& advertise, const std::string& listening,
                              const std::string& scheduler);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MAIN_OPTIONS_H_
