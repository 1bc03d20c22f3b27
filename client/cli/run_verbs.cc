// run and submit.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/job/job_options.h"
#include "client/cli/output/report.h"
#include "client/cli/run/embedded_cluster.h"
#include "client/cli/run/foreground_job.h"
#include "client/cli/run/interrupts.h"
#include "client/cli/run/run_directory.h"
#include "client/cli/verbs.h"
#include "common/status/macros.h"

namespace ringd::cli {

using ringd::cluster::v1::JobSpec;

namespace {

// How long `run` looks for a scheduler that went away: a restart by systemd or by hand is well
// within.
constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr int kSignalBase = 128;
constexpr int kMaxEmbeddedRanks = 4096;  // The most slots of a daemon.

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

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

void TellLeftOut(const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::cerr << "ringctl: not passed to the ranks (--env NAME or --env-all does): "
            << absl::StrJoin(names, " ") << "\n";
}

absl::StatusOr<int> Follow(ClusterClient* client, Interrupts* interrupts, const JobRequest& request,
                           ForegroundJob::Options options) {
  RINGD_ASSIGN_OR_RETURN(const auto submitted, client->Submit(request.spec));
  TellLeftOut(request.left_out);
  if (options.verbose) std::cerr << "ringctl: job " << submitted.job() << "\n";
  return ForegroundJob(client, interrupts, std::move(options)).Run(submitted.job());
}

absl::StatusOr<int> RunEmbedded(const JobOptions& options, JobRequest request, bool verbose) {
  JobSpec& spec = request.spec;
  RINGD_RETURN_IF_ERROR(FitEmbedded(options, &spec));
  if (const int cores = UsableCores(); spec.ranks() > cores) {
    std::cerr << "ringctl: warning: " << spec.ranks() << " ranks share " << cores
              << (cores == 1 ? " core" : " cores") << "; they will wait for each other\n";
  }
  RINGD_ASSIGN_OR_RETURN(auto directory, RunDirectory::Create());  // Forks: before any thread.
  Interrupts interrupts;
  auto cluster = EmbeddedCluster::Start(
      std::move(directory), {.slots = spec.ranks(),
                             .node_name = LocalNodeName(),
                             .interrupted = [&] { return interrupts.first_signal() != 0; }});
  if (absl::IsCancelled(cluster.status())) return kSignalBase + interrupts.first_signal();
  RINGD_RETURN_IF_ERROR(cluster.status());
  auto code = Follow((*cluster)->client(), &interrupts, request,
                     {.ranks = spec.ranks(),
                      .verbose = verbose,
                      .patience = absl::Seconds(2),
                      .check_health = [&] { return (*cluster)->CheckHealth(); }});
  // What was wrong with a program of ours says more than that it doesn't answer.
  if (!code.ok()) RINGD_RETURN_IF_ERROR((*cluster)->CheckHealth());
  return code;
}

absl::StatusOr<int> Run(const Invocation& invocation, JobOptions options) {
  const bool embedded = invocation.settings.scheduler.empty();
  options.environment.all |= embedded;
  RINGD_ASSIGN_OR_RETURN(JobRequest request,
                         BuildJob(options, invocation.command, CurrentSurroundings()));
  request.spec.set_foreground(true);
  const bool verbose = invocation.settings.verbose;
  if (embedded) return RunEmbedded(options, std::move(request), verbose);
  Interrupts interrupts;
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "run"));
  return Follow(client.get(), &interrupts, request,
                {.ranks = request.spec.ranks(), .verbose = verbose, .patience = kPatience});
}

absl::StatusOr<int> Submit(const Invocation& invocation, const JobOptions& options) {
  RINGD_ASSIGN_OR_RETURN(JobRequest request,
                         BuildJob(options, invocation.command, CurrentSurroundings()));
  request.spec.set_queue(true);
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "submit"));
  RINGD_ASSIGN_OR_RETURN(const auto submitted, client->Submit(request.spec));
  TellLeftOut(request.left_out);
  if (invocation.settings.IsJson()) {
    std::cout << JsonText({{"id", submitted.job()}, {"reason", submitted.reason()}});
    return 0;
  }
  std::cout << submitted.job() << std::endl;
  if (absl::StartsWith(submitted.reason(), "queued")) {
    std::cerr << "ringctl: " << submitted.job() << " " << submitted.reason() << "\n";
  }
  return 0;
}

constexpr char kRunExamples[] =
    "  ringctl run -n 4 -- python train.py            4 ranks on this machine\n"
    "  ringctl run --hosts a:2,b:2 -n 4 -- ./train    on nodes of the cluster that RINGD_SCHEDULER "
    "names\n"
    "Exit code: the first failing rank's (128 + signal), 2 for bad input, 130 after Ctrl-C.";
constexpr char kSubmitExamples[] =
    "  job=$(ringctl submit -n 64 --name resnet -- python train.py) && ringctl logs -f $job";

}  // namespace

std::vector<Verb> RunVerbs() {
  auto run = std::make_shared<JobOptions>();
  auto submit = std::make_shared<JobOptions>();
  return {
      {.name = "run",
       .help = "Run COMMAND in N ranks and wait: on this machine, or on the scheduler's cluster",
       .examples = kRunExamples,
       .takes_command = true,
       .add_options = [run](CLI::App* app) { AddJobOptions(app, run.get()); },
       .run = [run](const Invocation& invocation) { return Run(invocation, *run); }},
      {.name = "submit",
       .help = "Queue COMMAND on the cluster and print the job's id",
       .examples = kSubmitExamples,
       .takes_command = true,
       .add_options = [submit](CLI::App* app) { AddJobOptions(app, submit.get()); },
       .run = [submit](const Invocation& invocation) { return Submit(invocation, *submit); }},
  };
}

}  // namespace ringd::cli
