#include "client/cli/local/local_cluster.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/local/network.h"
#include "client/cli/local/processes.h"
#include "client/cli/output/file_text.h"
#include "client/cli/run/cluster_client.h"
#include "common/base/unix_socket.h"
#include "common/base/version.h"
#include "common/crypto/crypto.h"
#include "common/process/process.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kUpTimeout = absl::Seconds(20);
constexpr absl::Duration kStopPatience = absl::Seconds(10);
constexpr absl::Duration kRankPatience = absl::Seconds(3);
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
constexpr int kLogLines = 10;
constexpr int kIdBytes = 2;
// Ports outside the range that the kernel gives to outgoing connections: a restarted process finds
// its own free.
constexpr int kFirstPort = 20000;
constexpr int kPorts = 12000;
constexpr mode_t kKeyMode = 0600;

bool IsFreePort(int port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

absl::StatusOr<int> FindFreePort(std::set<int>* taken) {
  for (int attempt = 0; attempt < kPorts; ++attempt) {
    const std::string random = RandomBytes(2);
    const int port =
        kFirstPort +
        (static_cast<uint8_t>(random[0]) * 256 + static_cast<uint8_t>(random[1])) % kPorts;
    if (IsFreePort(port) && taken->insert(port).second) return port;
  }
  return absl::ResourceExhaustedError("no TCP port between 20000 and 31999 is free");
}

absl::Status PlanLoopback(LocalCluster* cluster) {
  std::set<int> taken;
  RINGD_ASSIGN_OR_RETURN(const int scheduler, FindFreePort(&taken));
  cluster->scheduler_tcp = absl::StrCat("127.0.0.1:", scheduler);
  for (LocalNode& node : cluster->nodes) {
    RINGD_ASSIGN_OR_RETURN(const int port, FindFreePort(&taken));
    node.address = "127.0.0.1";
    node.data_address = absl::StrCat("127.0.0.1:", port);
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalCluster> Plan(const UpOptions& options) {
  LocalCluster cluster;
  cluster.directory = options.directory;
  cluster.id = HexEncode(RandomBytes(kIdBytes));
  cluster.slots = options.slots;
  cluster.rate = options.rate;
  for (int i = 0; i < options.nodes; ++i) cluster.nodes.push_back({.name = LocalNodeNameOf(i)});
  RINGD_RETURN_IF_ERROR(options.netns ? PlanNetwork(&cluster) : PlanLoopback(&cluster));
  return cluster;
}

// 0700, new or empty.
absl::Status MakeDirectory(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::exists(directory + "/cluster.json", error)) {
    return absl::AlreadyExistsError(absl::StrCat("there is a cluster in ", directory,
                                                 ": use it, end it by 'ringctl local down --dir ",
                                                 directory, "', or choose another --dir"));
  }
  std::filesystem::create_directories(std::filesystem::path(directory).parent_path(), error);
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't make ", directory, ": ", strerror(errno)));
  }
  if (!std::filesystem::is_directory(directory, error) ||
      !std::filesystem::is_empty(directory, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(directory, " is no empty directory; choose another --dir"));
  }
  if (chmod(directory.c_str(), 0700) != 0 || mkdir((directory + "/tls").c_str(), 0700) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't write ", directory, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status WriteCertificate(const LocalCluster& cluster, const KeyPair& authority,
                              const std::string& name, const std::vector<std::string>& names,
                              const std::string& uri) {
  RINGD_ASSIGN_OR_RETURN(const KeyPair pair, CreateCertificate(authority, name, names, uri));
  RINGD_RETURN_IF_ERROR(WriteFileText(cluster.TlsFile(name + ".key"), pair.key_pem, kKeyMode));
  return WriteFileText(cluster.TlsFile(name + ".pem"), pair.certificate_pem, kKeyMode);
}

// The authority's key is not kept: nobody can add a node later.
absl::Status WriteCertificates(const LocalCluster& cluster) {
  RINGD_ASSIGN_OR_RETURN(const KeyPair authority, CreateAuthority("ringd local " + cluster.id));
  RINGD_RETURN_IF_ERROR(
      WriteFileText(cluster.TlsFile("ca.pem"), authority.certificate_pem, kKeyMode));
  const std::string host = cluster.scheduler_tcp.substr(0, cluster.scheduler_tcp.rfind(':'));
  RINGD_RETURN_IF_ERROR(WriteCertificate(cluster, authority, kSchedulerName, {host, "localhost"},
                                         "ringd://scheduler"));
  for (const LocalNode& node : cluster.nodes) {
    RINGD_RETURN_IF_ERROR(WriteCertificate(cluster, authority, node.name, {node.address, node.name},
                                           "ringd://node/" + node.name));
  }
  return absl::OkStatus();
}

std::vector<std::string> TlsArguments(const LocalCluster& cluster, const std::string& name) {
  return {"--tls-certificate", cluster.TlsFile(name + ".pem"),
          "--tls-key",         cluster.TlsFile(name + ".key"),
          "--tls-authority",   cluster.TlsFile("ca.pem")};
}

absl::Status StartScheduler(const LocalCluster& cluster) {
  DetachedOptions options;
  options.argv = {SiblingProgram("ringd-scheduler"),
                  "--listen",
                  "unix:" + cluster.SchedulerSocket(),
                  "--listen",
                  cluster.scheduler_tcp,
                  "--state-directory",
                  cluster.directory + "/scheduler"};
  const auto tls = TlsArguments(cluster, kSchedulerName);
  options.argv.insert(options.argv.end(), tls.begin(), tls.end());
  options.log = cluster.LogFile(kSchedulerName);
  options.pid_file = cluster.PidFile(kSchedulerName);
  return StartDetached(options);
}

absl::Status StartDaemon(const LocalCluster& cluster, const LocalNode& node) {
  const std::string directory = cluster.NodeDirectory(node.name);
  DetachedOptions options;
  options.argv = {SiblingProgram("ringd"),
                  "--name",
                  node.name,
                  "--slots",
                  absl::StrCat(cluster.slots),
                  "--scheduler",
                  cluster.scheduler_tcp,
                  "--data-address",
                  node.data_address,
                  "--run-directory",
                  cluster.RunDirectory(node.name),
                  "--state-directory",
                  directory + "/state",
                  "--log-directory",
                  directory + "/log"};
  const auto tls = TlsArguments(cluster, node.name);
  options.argv.insert(options.argv.end(), tls.begin(), tls.end());
  options.log = cluster.LogFile(node.name);
  options.pid_file = cluster.PidFile(node.name);
  options.netns = node.netns;
  return StartDetached(options);
}

absl::Status StartProcess(const LocalCluster& cluster, const std::string& name) {
  if (name == kSchedulerName) return StartScheduler(cluster);
  RINGD_ASSIGN_OR_RETURN(const LocalNode node, cluster.FindNode(name));
  return StartDaemon(cluster, node);
}

absl::Status NotUp(const LocalCluster& cluster, const std::string& name, const std::string& what) {
  const std::string log = cluster.LogFile(name);
  return absl::InternalError(absl::StrCat(name, " ", what, "; the end of ", log, ":\n",
                                          LastLines(ReadFileText(log), kLogLines, "  ")));
}

absl::Status CheckRuns(const LocalCluster& cluster, const std::string& name,
                       const std::function<bool()>& interrupted) {
  if (interrupted()) return absl::CancelledError("interrupted");
  if (RunningPid(cluster.PidFile(name)) == 0) return NotUp(cluster, name, "has ended");
  return absl::OkStatus();
}

absl::Status AwaitScheduler(const LocalCluster& cluster, const std::function<bool()>& interrupted) {
  const absl::Time deadline = absl::Now() + kUpTimeout;
  while (true) {
    RINGD_RETURN_IF_ERROR(CheckRuns(cluster, kSchedulerName, interrupted));
    UniqueFd probe;
    if (ConnectUnix(cluster.SchedulerSocket(), SOCK_STREAM, &probe) == 0) return absl::OkStatus();
    if (absl::Now() > deadline) return NotUp(cluster, kSchedulerName, "does not listen");
    absl::SleepFor(kPollInterval);
  }
}

// What the scheduler knows. The socket may still be that of one that was just killed.
absl::StatusOr<std::vector<ringd::cluster::v1::NodeState>> NodesBefore(
    absl::Time deadline, const LocalCluster& cluster) {
  while (true) {
    const auto client = ClusterClient::Connect({.address = "unix:" + cluster.SchedulerSocket()});
    auto nodes = client.ok() ? (*client)->Nodes() : client.status();
    if (!absl::IsUnavailable(nodes.status()) || absl::Now() > deadline) return nodes;
    absl::SleepFor(kPollInterval);
  }
}

// Until all of `names` are up as the scheduler sees it.
absl::Status AwaitNodes(const LocalCluster& cluster, std::set<std::string> names,
                        const std::function<bool()>& interrupted) {
  const absl::Time deadline = absl::Now() + kUpTimeout;
  while (!names.empty()) {
    for (const std::string& name : names)
      RINGD_RETURN_IF_ERROR(CheckRuns(cluster, name, interrupted));
    RINGD_ASSIGN_OR_RETURN(const auto nodes, NodesBefore(deadline, cluster));
    for (const auto& node : nodes) {
      // After a restart the scheduler may still show the process before.
      const bool is_current = node.daemon_pid() == RunningPid(cluster.PidFile(node.name()));
      if (node.state() != "up" || !is_current || names.erase(node.name()) == 0) continue;
      if (node.version() == kVersion) continue;
      return absl::FailedPreconditionError(absl::StrCat(SiblingProgram("ringd"), " is version ",
                                                        node.version(), ", this is ringctl ",
                                                        kVersion, ": install one version of both"));
    }
    if (names.empty()) break;
    if (absl::Now() > deadline) return NotUp(cluster, *names.begin(), "has not joined");
    absl::SleepFor(kPollInterval);
  }
  return absl::OkStatus();
}

absl::Status BringUpSteps(const LocalCluster& cluster,
                          const std::function<void(const std::string&)>& say,
                          const std::function<bool()>& interrupted) {
  RINGD_RETURN_IF_ERROR(WriteCertificates(cluster));
  if (cluster.has_netns()) {
    say(absl::StrCat("network namespaces ringd-", cluster.id, "-*, bridge ", cluster.bridge, ", ",
                     cluster.bridge_address, "/24",
                     cluster.rate.empty() ? "" : ", " + cluster.rate));
    RINGD_RETURN_IF_ERROR(CreateNetwork(cluster));
  }
  say(absl::StrCat("scheduler at unix:", cluster.SchedulerSocket(), " and ",
                   cluster.scheduler_tcp));
  RINGD_RETURN_IF_ERROR(StartScheduler(cluster));
  RINGD_RETURN_IF_ERROR(AwaitScheduler(cluster, interrupted));
  std::set<std::string> names;
  for (const LocalNode& node : cluster.nodes) {
    if (interrupted()) return absl::CancelledError("interrupted");
    RINGD_RETURN_IF_ERROR(StartDaemon(cluster, node));
    names.insert(node.name);
  }
  RINGD_RETURN_IF_ERROR(AwaitNodes(cluster, names, interrupted));
  say(absl::StrCat("nodes up: ", absl::StrJoin(names, ", "), "; ", cluster.slots, " slots each"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LocalCluster> BringUp(const UpOptions& options,
                                     const std::function<void(const std::string&)>& say,
                                     const std::function<bool()>& interrupted) {
  RINGD_RETURN_IF_ERROR(CheckDirectoryLength(options.directory));
  if (!options.rate.empty()) RINGD_RETURN_IF_ERROR(TokenBucketArguments(options.rate).status());
  RINGD_ASSIGN_OR_RETURN(const LocalCluster cluster, Plan(options));
  RINGD_RETURN_IF_ERROR(MakeDirectory(options.directory));
  absl::Status status = WriteLocalCluster(cluster);
  if (status.ok()) status = BringUpSteps(cluster, say, interrupted);
  if (status.ok()) return cluster;
  (void)TearDown(cluster);
  return status;
}

absl::Status TearDown(const LocalCluster& cluster) {
  std::vector<std::string> pid_files = {cluster.PidFile(kSchedulerName)};
  std::vector<pid_t> workers;
  for (const LocalNode& node : cluster.nodes) {
    pid_files.push_back(cluster.PidFile(node.name));
    const std::vector<pid_t> found = WorkersOf(cluster.RunDirectory(node.name));
    workers.insert(workers.end(), found.begin(), found.end());
  }
  StopProcesses(pid_files, kStopPatience);
  StopWorkers(workers, kRankPatience);
  for (const LocalNode& node : cluster.nodes) {
    if (!node.netns.empty()) KillAllInNamespace(node.netns);
  }
  RemoveNetwork(cluster);
  std::error_code error;
  std::filesystem::remove_all(cluster.directory, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("can't remove ", cluster.directory, ": ", error.message()));
}

absl::Status StartMember(const LocalCluster& cluster, const std::string& name) {
  const auto never = [] { return false; };
  if (name != kSchedulerName) RINGD_RETURN_IF_ERROR(cluster.FindNode(name).status());
  if (RunningPid(cluster.PidFile(name)) == 0) RINGD_RETURN_IF_ERROR(StartProcess(cluster, name));
  if (name == kSchedulerName) {
    RINGD_RETURN_IF_ERROR(AwaitScheduler(cluster, never));
    std::set<std::string> running;  // Come back by themselves.
    for (const LocalNode& node : cluster.nodes) {
      if (RunningPid(cluster.PidFile(node.name)) != 0) running.insert(node.name);
    }
    return AwaitNodes(cluster, running, never);
  }
  // Without a scheduler nobody can say that it has joined.
  if (RunningPid(cluster.PidFile(kSchedulerName)) == 0) return CheckRuns(cluster, name, never);
  return AwaitNodes(cluster, {name}, never);
}

absl::Status StopMember(const LocalCluster& cluster, const std::string& name) {
  if (name != kSchedulerName) RINGD_RETURN_IF_ERROR(cluster.FindNode(name).status());
  StopProcesses({cluster.PidFile(name)}, kStopPatience);
  return absl::OkStatus();
}

}  // namespace ringd::cli
