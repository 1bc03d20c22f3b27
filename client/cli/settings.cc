#include "client/cli/settings.h"

#include <unistd.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr size_t kMaxUnixAddress = 5 + 107;  // "unix:" and what fits into sun_path.
constexpr char kSharedConfig[] = "/etc/ringd/ringd.toml";

std::string DefaultConfig() {
  const std::string own = GetUserPaths().config_file;
  return access(own.c_str(), R_OK) == 0 ? own : kSharedConfig;
}

std::vector<std::string> Words(const GlobalFlags& flags) {
  std::vector<std::string> words = {"ringctl"};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  add("--config", flags.config);
  add("--scheduler", flags.scheduler);
  add("--output", flags.output);
  if (flags.verbose) words.push_back("--verbose");
  return words;
}

absl::Status Check(const Settings& settings) {
  if (settings.output != "table" && settings.output != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("output '", settings.output, "' is neither table nor json"));
  }
  const std::string& scheduler = settings.scheduler;
  if (absl::StartsWith(scheduler, "unix:") && scheduler.size() > kMaxUnixAddress) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler '", scheduler, "': the path of a socket has 107 bytes at most"));
  }
  const bool is_address = absl::StartsWith(scheduler, "unix:") ? scheduler.size() > 5
                                                               : absl::StrContains(scheduler, ':');
  if (!scheduler.empty() && !is_address) {
    return absl::InvalidArgumentError(
        absl::StrCat("scheduler '", scheduler, "' is no address; write HOST:PORT or unix:/PATH"));
  }
  return absl::OkStatus();
}

}  // namespace

SchedulerAddress Settings::Address() const {
  return {.address = scheduler,
          .authority = tls_authority,
          .server_name = tls_server_name,
          .daemon_socket = daemon_socket};
}

absl::StatusOr<Settings> LoadSettings(const GlobalFlags& flags) {
  Settings settings;
  Config config("ringctl");
  config.Add("scheduler", &settings.scheduler, "HOST:PORT or unix:/PATH; none: run is embedded");
  config.Add("output", &settings.output, "table or json");
  config.Add("verbose", &settings.verbose, "say more");
  config.Add("daemon_socket", &settings.daemon_socket,
             "this node's daemon, which signs who we are");
  config.Add("tls_authority", &settings.tls_authority, "certificate to check a TCP scheduler by");
  config.Add("tls_server_name", &settings.tls_server_name,
             "name in its certificate, if not the host");
  std::vector<const char*> argv;
  const std::vector<std::string> words = Words(flags);
  for (const std::string& word : words) argv.push_back(word.c_str());
  std::string output;
  RINGD_RETURN_IF_ERROR(
      config.Parse(static_cast<int>(argv.size()), argv.data(), DefaultConfig(), &output).status());
  RINGD_RETURN_IF_ERROR(Check(settings));
  settings.dump = config.Dump();
  return settings;
}

absl::Status CheckHasScheduler(const Settings& settings, const std::string& verb) {
  if (!settings.scheduler.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "'", verb,
      "' needs a scheduler: name one by --scheduler ADDRESS, RINGD_SCHEDULER or "
      "scheduler in ringd.toml, or start a cluster on this machine by 'ringctl local up'"));
}

absl::StatusOr<std::unique_ptr<ClusterClient>> ConnectToCluster(const Settings& settings,
                                                                const std::string& verb) {
  RINGD_RETURN_IF_ERROR(CheckHasScheduler(settings, verb));
  return ClusterClient::Connect(settings.Address());
}

}  // namespace ringd::cli
