#include "client/cli/run/embedded_cluster.h"

#include <limits.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/unix_socket.h"
#include "common/base/version.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(10);
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr absl::Duration kGuestPollInterval = absl::Milliseconds(50);

std::vector<std::string> DaemonArguments(const std::string& run, int slots, const std::string& name,
                                         const std::string& scheduler) {
  return {"--embedded", "--scheduler",       scheduler,           "--run-directory",
          run + "/d",   "--state-directory", run + "/d-state",    "--log-directory",
          run + "/log", "--slots",           absl::StrCat(slots), "--name",
          name};
}

void Append(const std::vector<std::string>& more, std::vector<std::string>* words) {
  words->insert(words->end(), more.begin(), more.end());
}

// One that the kernel calls free now. 0: none.
int FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), generic, length) != 0 || getsockname(fd.get(), generic, &length) != 0)
    return 0;
  return ntohs(address.sin_port);
}

}  // namespace

std::string LocalNodeName() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof(name) - 1);
  const std::string text(name);
  const std::string node = text.substr(0, text.find('.'));
  return node.empty() ? "localhost" : node;
}

EmbeddedCluster::EmbeddedCluster(std::unique_ptr<RunDirectory> directory, Options options)
    : directory_(std::move(directory)), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::Start(
    std::unique_ptr<RunDirectory> directory, Options options) {
  std::unique_ptr<EmbeddedCluster> cluster(
      new EmbeddedCluster(std::move(directory), std::move(options)));
  RINGD_RETURN_IF_ERROR(cluster->StartAll());
  return cluster;
}

EmbeddedCluster::~EmbeddedCluster() {
  client_.reset();
  lifeline_ = {};
  daemon_.reset();
  scheduler_.reset();
}

absl::Status EmbeddedCluster::StartAll() {
  RINGD_ASSIGN_OR_RETURN(lifeline_, Lifeline::Create());
  RINGD_RETURN_IF_ERROR(options_.guests.empty() ? StartAlone() : StartWithGuests());
  lifeline_.end.reset();
  RINGD_RETURN_IF_ERROR(AwaitSocket());
  RINGD_ASSIGN_OR_RETURN(
      client_, ClusterClient::Connect({.address = "unix:" + directory_->path() + "/s.sock"}));
  RINGD_RETURN_IF_ERROR(AwaitNodes(1, kStartTimeout));
  return AwaitNodes(1 + options_.guests.size(), absl::InfiniteDuration());
}

absl::Status EmbeddedCluster::StartAlone() {
  const std::string& run = directory_->path();
  const std::string socket = absl::StrCat("unix:", run, "/s.sock");
  RINGD_ASSIGN_OR_RETURN(scheduler_, BoundProcess::Start("ringd-scheduler",
                                                         {"--embedded", "--listen", socket,
                                                          "--state-directory", run + "/state"},
                                                         lifeline_, directory_.get()));
  RINGD_ASSIGN_OR_RETURN(
      daemon_,
      BoundProcess::Start("ringd", DaemonArguments(run, options_.slots, options_.node_name, socket),
                          lifeline_, directory_.get()));
  return absl::OkStatus();
}

absl::Status EmbeddedCluster::StartWithGuests() {
  const std::string& run = directory_->path();
  const int port = FreePort();
  std::vector<int> slots = {options_.slots};
  slots.insert(slots.end(), options_.guests.begin(), options_.guests.end());
  RINGD_ASSIGN_OR_RETURN(std::vector<Invitation> invitations, Invite(options_.host, port, slots));
  RINGD_ASSIGN_OR_RETURN(const auto scheduler_tls, invitations.back().WriteTo(run));
  std::vector<std::string> arguments = {"--embedded",
                                        "--listen",
                                        absl::StrCat("unix:", run, "/s.sock"),
                                        "--listen",
                                        absl::StrCat("0.0.0.0:", port),
                                        "--state-directory",
                                        run + "/state"};
  Append(scheduler_tls, &arguments);
  RINGD_ASSIGN_OR_RETURN(
      scheduler_, BoundProcess::Start("ringd-scheduler", arguments, lifeline_, directory_.get()));
  const Invitation& own = invitations.front();
  RINGD_ASSIGN_OR_RETURN(const auto own_tls, own.WriteTo(run));
  arguments = DaemonArguments(run, own.slots, own.node, own.scheduler);
  Append(own_tls, &arguments);
  Append({"--data-address", "0.0.0.0:0", "--advertise-address", options_.host}, &arguments);
  RINGD_ASSIGN_OR_RETURN(daemon_,
                         BoundProcess::Start("ringd", arguments, lifeline_, directory_.get()));
  invitations.pop_back();
  invitations.erase(invitations.begin());
  options_.invite(invitations);
  return absl::OkStatus();
}

absl::Status EmbeddedCluster::CheckHealth() const {
  RINGD_RETURN_IF_ERROR(scheduler_->CheckHealth());
  return daemon_->CheckHealth();
}

absl::Status EmbeddedCluster::CheckStart() const {
  if (options_.interrupted()) return absl::CancelledError("interrupted");
  return CheckHealth();
}

absl::Status EmbeddedCluster::AwaitSocket() {
  const std::string path = directory_->path() + "/s.sock";
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (true) {
    RINGD_RETURN_IF_ERROR(CheckStart());
    UniqueFd probe;
    if (ConnectUnix(path, SOCK_STREAM, &probe) == 0) return absl::OkStatus();
    if (absl::Now() > deadline) {
      return scheduler_->Failure(
          absl::StrCat("did not listen within ", absl::FormatDuration(kStartTimeout)));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status EmbeddedCluster::AwaitNodes(size_t count, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    RINGD_RETURN_IF_ERROR(CheckStart());
    RINGD_ASSIGN_OR_RETURN(const auto nodes, client_->Nodes());
    size_t up = 0;
    for (const auto& node : nodes) {
      if (node.state() != "up") continue;
      ++up;
      if (node.version() == kVersion) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          SiblingProgram("ringd"), " of node ", node.name(), " is version ", node.version(),
          ", this is ringctl ", kVersion, ": install one version of both"));
    }
    if (up >= count) return absl::OkStatus();
    if (absl::Now() > deadline) {
      return daemon_->Failure(absl::StrCat("did not join within ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(count == 1 ? kPollInterval : kGuestPollInterval);
  }
}

absl::Status RunGuest(const Invitation& invitation, RunDirectory* directory,
                      const std::function<bool()>& interrupted) {
  const std::string& run = directory->path();
  RINGD_ASSIGN_OR_RETURN(Lifeline lifeline, Lifeline::Create());
  RINGD_ASSIGN_OR_RETURN(const auto tls, invitation.WriteTo(run));
  std::vector<std::string> arguments =
      DaemonArguments(run, invitation.slots, invitation.node, invitation.scheduler);
  Append(tls, &arguments);
  Append({"--data-address", "0.0.0.0:0"}, &arguments);
  RINGD_ASSIGN_OR_RETURN(const auto daemon,
                         BoundProcess::Start("ringd", arguments, lifeline, directory));
  lifeline.end.reset();
  while (!daemon->HasEnded() && !interrupted()) absl::SleepFor(kGuestPollInterval);
  const absl::Status status = interrupted() ? absl::OkStatus() : daemon->CheckHealth();
  lifeline = {};
  return status;
}

}  // namespace ringd::cli
