#include "client/cli/run_job.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/run/embedded_cluster.h"
#include "client/cli/run/foreground_job.h"
#include "client/cli/run/interrupts.h"
#include "client/cli/run/invitation.h"
#include "client/cli/run/run_directory.h"
#include "common/base/cpus.h"
#include "common/base/fd.h"
#include "common/config/config.h"
#include "common/status/macros.h"

namespace ringd::cli {

using ringd::cluster::v1::JobSpec;

namespace {

// How long `run` looks for a scheduler that went away: a restart by systemd or by hand is well
// within.
constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr int kSignalBase = 128;
constexpr int kMaxEmbeddedRanks = 4096;  // The most slots of a daemon.
constexpr int kMinRanksOfAll = 2;

// An embedded run has one node, by the host's name; "localhost" means it too.
absl::Status FitEmbedded(const JobOptions& options, JobSpec* spec) {
  if (options.nodes > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes ", options.nodes,
                     " needs a cluster and no scheduler is named (--scheduler, "
                     "RINGD_SCHEDULER): name one, or start one by 'ringctl local up --nodes ",
                     options.nodes, "'"));
  }
  if (spec->ranks() > kMaxEmbeddedRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("-n ", spec->ranks(), ": one machine takes at most ", kMaxEmbeddedRanks,
                     " ranks; ask for fewer, or name a cluster by --scheduler or RINGD_SCHEDULER"));
  }
  const std::string here = LocalNodeName();
  for (auto& host : *spec->mutable_hosts()) {
    if (host.node() == "localhost" || host.node() == "127.0.0.1") host.set_node(here);
    if (host.node() != here && host.slots() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown node ", host.node(),
                       ": without a scheduler (--scheduler, RINGD_SCHEDULER) the only "
                       "node is this machine, ",
                       here));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Follow(ClusterClient* client, Interrupts* interrupts, const JobRequest& request,
                           ForegroundJob::Options options) {
  RINGD_ASSIGN_OR_RETURN(const auto submitted, client->Submit(request.spec));
  TellLeftOut(request.left_out);
  if (options.verbose) std::cerr << "ringctl: job " << submitted.job() << "\n";
  return ForegroundJob(client, interrupts, std::move(options)).Run(submitted.job());
}

// The ranks fill this node first, then its guests in order.
absl::StatusOr<int> PlaceWithGuests(const ForegroundRun& run, JobSpec* spec) {
  const int own = spec->ranks() - std::accumulate(run.guests.begin(), run.guests.end(), 0);
  if (own < 1 || spec->hosts_size() > 0 || run.guest_host.empty()) {
    return absl::InvalidArgumentError(
        "--guests needs --guest-host, no --hosts, and -n above the sum of the guests' slots");
  }
  for (size_t i = 0; i <= run.guests.size(); ++i) {
    auto* const host = spec->add_hosts();
    host->set_node(InvitedNodeName(i));
    host->set_slots(i == 0 ? own : run.guests[i - 1]);
  }
  return own;
}

void WriteInvitations(const std::vector<Invitation>& invitations) {
  for (const Invitation& invitation : invitations) {
    WriteFully(STDOUT_FILENO, invitation.ToLine() + "\n");
  }
  const UniqueFd null(open("/dev/null", O_WRONLY | O_CLOEXEC));
  dup2(null.get(), STDOUT_FILENO);
}

absl::StatusOr<int> RunEmbedded(const ForegroundRun& run, JobRequest request, bool verbose) {
  JobSpec& spec = request.spec;
  int slots = spec.ranks();
  if (run.guests.empty()) {
    RINGD_RETURN_IF_ERROR(FitEmbedded(run.options, &spec));
  } else {
    RINGD_ASSIGN_OR_RETURN(slots, PlaceWithGuests(run, &spec));
  }
  if (const int cores = UsableCpus(); spec.ranks() > cores) {
    std::cerr << "ringctl: warning: " << spec.ranks() << " ranks share " << cores
              << (cores == 1 ? " core" : " cores") << "; they will wait for each other\n";
  }
  RINGD_ASSIGN_OR_RETURN(auto directory, RunDirectory::Create());  // Forks: before any thread.
  Interrupts interrupts;
  auto cluster = EmbeddedCluster::Start(
      std::move(directory), {.slots = slots,
                             .node_name = LocalNodeName(),
                             .interrupted = [&] { return interrupts.first_signal() != 0; },
                             .guests = run.guests,
                             .host = run.guest_host,
                             .invite = WriteInvitations});
  if (absl::IsCancelled(cluster.status())) return kSignalBase + interrupts.first_signal();
  RINGD_RETURN_IF_ERROR(cluster.status());
  auto code = Follow((*cluster)->client(), &interrupts, request,
                     {.ranks = spec.ranks(),
                      .verbose = verbose,
                      .take_output = run.take_output,
                      .patience = absl::Seconds(2),
                      .check_health = [&] { return (*cluster)->CheckHealth(); }});
  // What was wrong with a program of ours says more than that it doesn't answer.
  if (!code.ok()) RINGD_RETURN_IF_ERROR((*cluster)->CheckHealth());
  return code;
}

// What a job of all slots gets.
absl::StatusOr<int> CountFreeSlots(ClusterClient* client) {
  RINGD_ASSIGN_OR_RETURN(const auto nodes, client->Nodes());
  int free = 0;
  for (const auto& node : nodes) {
    if (node.state() == "up") free += std::max(node.slots() - node.used(), 0);
  }
  if (free >= kMinRanksOfAll) return free;
  return absl::FailedPreconditionError(
      absl::StrCat("the cluster has ", free, free == 1 ? " free slot" : " free slots", " and ",
                   kMinRanksOfAll, " are needed: 'ringctl list' shows who has the others"));
}

absl::StatusOr<cluster::v1::GatherRequest> MakePart(const JobPart& part, const JobSpec& spec) {
  cluster::v1::GatherRequest request;
  const std::pair<std::string, std::string> words = absl::StrSplit(part.ranks, ':');
  int32_t first = 0, count = 0;
  const auto timeout = ParseDuration(part.timeout);
  if (!absl::SimpleAtoi(words.first, &first) || !absl::SimpleAtoi(words.second, &count) ||
      !timeout.ok() || part.of.empty()) {
    return absl::InvalidArgumentError("--part FIRST:COUNT needs --part-of and --part-timeout");
  }
  request.set_name(part.of);
  request.set_first_rank(first);
  request.set_rank_count(count);
  request.mutable_timeout()->set_seconds(absl::ToInt64Seconds(*timeout));
  *request.mutable_spec() = spec;
  return request;
}

// The job is this node's as long as its ringctl lives; its ranks write to the launcher's output.
absl::StatusOr<int> RunPart(const Settings& settings, const JobPart& part, const JobSpec& spec) {
  RINGD_ASSIGN_OR_RETURN(const auto request, MakePart(part, spec));
  Interrupts interrupts;
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(settings, "run --part"));
  CallGroup calls;
  interrupts.SetHandler([&](int) { calls.Cancel(); });
  const auto job = client->Gather(request, &calls);
  interrupts.SetHandler(nullptr);
  if (interrupts.first_signal() != 0) {
    if (job.ok()) (void)client->Cancel(job->job(), "its launcher has ended it");
    return kSignalBase + interrupts.first_signal();
  }
  RINGD_RETURN_IF_ERROR(job.status());
  return ForegroundJob(client.get(), &interrupts,
                       {.ranks = spec.ranks(), .show_output = false, .patience = kPatience})
      .Run(job->job());
}

}  // namespace

absl::StatusOr<int> JoinAsGuest() {
  std::string line;
  std::getline(std::cin, line);
  RINGD_ASSIGN_OR_RETURN(const Invitation invitation, Invitation::Parse(line));
  RINGD_ASSIGN_OR_RETURN(const auto directory, RunDirectory::Create());  // As above.
  const Interrupts interrupts;
  RINGD_RETURN_IF_ERROR(
      RunGuest(invitation, directory.get(), [&] { return interrupts.first_signal() != 0; }));
  return 0;
}

void TellLeftOut(const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::cerr << "ringctl: not passed to the ranks (--env NAME or --env-all does): "
            << absl::StrJoin(names, " ") << "\n";
}

absl::StatusOr<int> RunJob(const Settings& settings, ForegroundRun run) {
  const bool embedded = settings.scheduler.empty();
  run.options.environment.all |= embedded;
  if (run.all_slots) run.options.ranks = std::max(UsableCpus(), kMinRanksOfAll);
  RINGD_ASSIGN_OR_RETURN(JobRequest request,
                         BuildJob(run.options, run.command, CurrentSurroundings()));
  request.spec.set_foreground(true);
  if (!run.part.ranks.empty()) return RunPart(settings, run.part, request.spec);
  if (embedded) return RunEmbedded(run, std::move(request), settings.verbose);
  Interrupts interrupts;
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(settings, "run"));
  if (run.all_slots) {
    RINGD_ASSIGN_OR_RETURN(const int free, CountFreeSlots(client.get()));
    request.spec.set_ranks(free);
  }
  return Follow(client.get(), &interrupts, request,
                {.ranks = request.spec.ranks(),
                 .verbose = settings.verbose,
                 .take_output = run.take_output,
                 .patience = kPatience});
}

}  // namespace ringd::cli
