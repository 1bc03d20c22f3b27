#include "daemon/main/options.h"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/cpus.h"
#include "common/base/fd.h"
#include "common/config/config.h"
#include "common/process/process.h"
#include "common/status/macros.h"
#include "daemon/membership/node_machine.h"

namespace ringd::daemon {
namespace {

constexpr char kSharedConfig[] = "/etc/ringd/ringd.toml";
constexpr int kMaxReduceThreads = 1024;
constexpr int kMaxGatherBytes = 256 << 10;  // One piece.

absl::Status Bad(const std::string& key, const std::string& value, const std::string& should) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": '", value, "' ", should));
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof(name) - 1);
  return std::string(name).substr(0, std::string(name).find('.'));
}

int CountGpus() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/driver/nvidia/gpus"), closedir);
  if (folder == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = readdir(folder.get())) count += entry->d_name[0] != '.';
  return count;
}

void AddOptions(Config& config, Options& o) {
  config.Add("name", &o.name, "name of this node (default: the host's name)");
  config.Add("slots", &o.slots,
             "ranks that this node takes at once (default: its GPUs, else its CPUs)");
  config.Add("scheduler", &o.scheduler, "address of the scheduler, host:port or unix:/path");
  config.Add("run_directory", &o.run_directory,
             "folder of sockets and of the state of running jobs (default: /run/ringd if shared, "
             "else $XDG_RUNTIME_DIR/ringd)");
  config.Add("log_directory", &o.log_directory,
             "folder of the ranks' logs (default: /var/log/ringd if shared, else logs in the state "
             "directory)");
  config.Add("state_directory", &o.state_directory,
             "folder of what outlives a reboot (default: /var/lib/ringd if shared, else "
             "~/.local/state/ringd)");
  config.Add("data_address", &o.data_address,
             "host:port to listen on for other daemons; port 0: any (default: 0.0.0.0:7472 if "
             "shared, else 127.0.0.1:0)");
  config.Add("advertise_address", &o.advertise_address,
             "host that other daemons dial (default: from data_address)");
  config.Add("shared", &o.shared, "serve all users of this host; needs root");
  config.Add("min_uid", &o.min_uid, "a shared daemon refuses users below this");
  config.Add("tls_certificate", &o.tls.certificate, "this node's certificate, PEM file");
  config.Add("tls_key", &o.tls.key, "its key, PEM file");
  config.Add("tls_authority", &o.tls.authority, "certificate of the authority, PEM file");
  config.Add("reattach_timeout", &o.reattach_timeout, "how long ranks wait for a restarted daemon");
  config.Add("embedded", &o.embedded, "live and die with the scheduler (ringctl run)");
  config.Add("lifeline_fd", &o.lifeline_fd,
             "inherited pipe: when its other end closes, the daemon and its ranks end");
  config.Add("arena_bytes", &o.arena_bytes, "first arena of a client (0: 256 MB)");
  config.Add("arena_max", &o.arena_max, "all arena of a client (0: half of the memory limit)");
  config.Add("log_level", &o.log_level,
             "trace, debug, info, warning, error, off; also info,engine=debug");
  config.Add("reduce_threads", &o.reduce_threads, "threads that reduce (0: one for each CPU)");
  config.Add(
      "gather_bytes", &o.gather_bytes,
      "allreduces up to there go whole around a ring that begins at this node (-1: as measured "
      "when it forms; 0: none)");
  config.Add("worker_program", &o.worker_program,
             "path of ringd-worker (default: beside this program)");
}

void FillDefaults(Options& o) {
  const UserPaths user = GetUserPaths();
  const auto fill = [&o](std::string& value, const std::string& shared, const std::string& own) {
    if (value.empty()) value = o.shared ? shared : own;
  };
  if (o.name.empty()) o.name = HostName();
  fill(o.run_directory, "/run/ringd", user.run_directory);
  fill(o.state_directory, "/var/lib/ringd", user.state_directory);
  fill(o.log_directory, "/var/log/ringd", absl::StrCat(o.state_directory, "/logs"));
  fill(o.data_address, "0.0.0.0:7472", "127.0.0.1:0");
  if (o.worker_program.empty()) o.worker_program = SiblingProgram("ringd-worker");
}

absl::Status CheckDirectories(const Options& o) {
  for (const auto& [key, value] :
       {std::pair("run_directory", &o.run_directory), std::pair("log_directory", &o.log_directory),
        std::pair("state_directory", &o.state_directory)}) {
    if (!absl::StartsWith(*value, "/")) return Bad(key, *value, "must be an absolute path");
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(Options& o) {
  if (!IsSafeName(o.name)) {
    return Bad("name", o.name,
               "must be 1 to 64 letters, digits, '.', '_' or '-', not beginning with '.'");
  }
  RINGD_ASSIGN_OR_RETURN(o.slot_count, ParseSlots(o.slots));
  o.slots = absl::StrCat(o.slot_count);
  if (o.scheduler.empty()) {
    return absl::InvalidArgumentError(
        "scheduler: none is given; use --scheduler ADDRESS, RINGD_SCHEDULER or the config file");
  }
  if (!absl::StartsWith(o.scheduler, "unix:/")) {
    RINGD_RETURN_IF_ERROR(ParseHostPort("scheduler", o.scheduler).status());
  }
  RINGD_RETURN_IF_ERROR(ParseHostPort("data_address", o.data_address).status());
  RINGD_RETURN_IF_ERROR(CheckDirectories(o));
  if (o.shared && geteuid() != 0) {
    return absl::InvalidArgumentError(
        "shared: a shared daemon starts ranks as other users and must run as root");
  }
  if (o.shared && o.embedded)
    return absl::InvalidArgumentError("embedded: a shared daemon can't be embedded");
  if (o.min_uid < 1) return Bad("min_uid", absl::StrCat(o.min_uid), "must be at least 1");
  const int tls_given = !o.tls.certificate.empty() + !o.tls.key.empty() + !o.tls.authority.empty();
  if (tls_given != 0 && tls_given != 3) {
    return absl::InvalidArgumentError(
        "tls_certificate, tls_key and tls_authority go together: give all three");
  }
  if (o.reattach_timeout < absl::ZeroDuration() || o.reattach_timeout > absl::Hours(24)) {
    return Bad("reattach_timeout", absl::FormatDuration(o.reattach_timeout),
               "must be between 0 and 24 hours");
  }
  if (o.arena_bytes < 0)
    return Bad("arena_bytes", absl::StrCat(o.arena_bytes), "must not be negative");
  if (o.arena_max < 0) return Bad("arena_max", absl::StrCat(o.arena_max), "must not be negative");
  if (o.arena_max != 0 && o.arena_bytes > o.arena_max) {
    return Bad("arena_bytes", absl::StrCat(o.arena_bytes),
               absl::StrCat("is above arena_max, ", o.arena_max));
  }
  if (o.reduce_threads < 0 || o.reduce_threads > kMaxReduceThreads) {
    return Bad("reduce_threads", absl::StrCat(o.reduce_threads), "must be between 0 and 1024");
  }
  if (o.gather_bytes < -1 || o.gather_bytes > kMaxGatherBytes) {
    return Bad("gather_bytes", absl::StrCat(o.gather_bytes), "must be between -1 and 262144");
  }
  return absl::OkStatus();
}

bool IsWildcard(absl::string_view host) {
  return host.empty() || host == "0.0.0.0" || host == "[::]";
}

// This host's address on the way to another; empty if there is none.
std::string LocalAddressTowards(const HostPort& peer) {
  const std::string host(absl::StripSuffix(absl::StripPrefix(peer.host, "["), "]"));
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(peer.port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  const UniqueFd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  char text[NI_MAXHOST];
  if (!fd.valid() || connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  return strchr(text, ':') == nullptr ? text : absl::StrCat("[", text, "]");
}

}  // namespace

absl::StatusOr<int> ParseSlots(const std::string& slots) {
  if (slots.empty()) {
    const int gpus = CountGpus();
    return gpus > 0 ? gpus : UsableCpus();
  }
  int count = 0;
  if (!absl::SimpleAtoi(slots, &count) || count < 1 || count > kMaxRanksOfNode) {
    return Bad("slots", slots, absl::StrCat("is no number of slots: give 1 to ", kMaxRanksOfNode));
  }
  return count;
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& key, const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort result;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &result.port) || result.port < 0 ||
      result.port > 65535) {
    return Bad(
        key, address,
        key == "scheduler" ? "is not an address: host:port or unix:/path" : "must be host:port");
  }
  result.host = address.substr(0, colon);
  if (absl::StrContains(result.host, ':') && result.host[0] != '[') {
    return Bad(key, address, "must be host:port, an IPv6 host in brackets: [::1]:7472");
  }
  return result;
}

std::string AdvertisedAddress(const std::string& advertise, const std::string& listening,
                              const std::string& scheduler) {
  const absl::StatusOr<HostPort> own = ParseHostPort("data_address", listening);
  if (!own.ok()) return listening;
  if (!advertise.empty()) {
    const absl::StatusOr<HostPort> whole = ParseHostPort("advertise_address", advertise);
    return whole.ok() ? advertise : absl::StrCat(advertise, ":", own->port);
  }
  std::string host = own->host;
  if (IsWildcard(host)) {
    const absl::StatusOr<HostPort> peer = ParseHostPort("scheduler", scheduler);
    host = peer.ok() && !absl::StartsWith(scheduler, "unix:") ? LocalAddressTowards(*peer) : "";
    if (host.empty()) host = HostName();
  }
  return absl::StrCat(host, ":", own->port);
}

absl::StatusOr<ParsedOptions> ParseOptions(int argc, const char* const* argv) {
  ParsedOptions parsed;
  Options& options = parsed.options;
  Config config("ringd");
  AddOptions(config, options);
  bool shared = false;
  for (int i = 1; i < argc; ++i) shared = shared || strcmp(argv[i], "--shared") == 0;
  const std::string default_file = shared ? kSharedConfig : GetUserPaths().config_file;
  const absl::StatusOr<std::vector<std::string>> rest =
      config.Parse(argc, argv, default_file, &parsed.output);
  if (absl::IsCancelled(rest.status())) return parsed;
  RINGD_RETURN_IF_ERROR(rest.status());
  if (!rest->empty())
    return Bad("argument", rest->front(), "is not understood; ringd takes options only (--help)");
  FillDefaults(options);
  RINGD_RETURN_IF_ERROR(CheckOptions(options));
  parsed.effective = config.Dump();
  return parsed;
}

}  // namespace ringd::daemon
