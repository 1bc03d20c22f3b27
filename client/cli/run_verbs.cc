// run and submit.
#include <iostream>
#include <memory>

#include "absl/strings/match.h"
#include "client/cli/job/job_options.h"
#include "client/cli/output/report.h"
#include "client/cli/run_job.h"
#include "client/cli/verbs.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

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

struct LauncherOptions {
  std::vector<int> guests;
  std::string guest_host;
  JobPart part;
};

// What ringd-worker says where another launcher started the ranks.
void AddLauncherOptions(CLI::App* app, LauncherOptions* options) {
  app->add_option("--part", options->part.ranks,
                  "(for ringd's init() under torchrun, mpirun, srun) FIRST:COUNT, the ranks that "
                  "are on this node; the job is formed when those of all nodes have come");
  app->add_option("--part-of", options->part.of, "the launcher's job, by one name on all nodes");
  app->add_option("--part-timeout", options->part.timeout, "for the other nodes to come");
  app->add_option("--guests", options->guests,
                  "(for ringd's init()) slots of each further machine; invitations "
                  "for `ringctl join` go to standard output")
      ->delimiter(',');
  app->add_option("--guest-host", options->guest_host,
                  "this machine's name or address, for its guests");
}

std::vector<Verb> RunVerbs() {
  auto run = std::make_shared<JobOptions>();
  auto launcher = std::make_shared<LauncherOptions>();
  auto submit = std::make_shared<JobOptions>();
  return {
      {.name = "run",
       .help = "Run COMMAND in N ranks and wait: on this machine, or on the scheduler's cluster",
       .examples = kRunExamples,
       .takes_command = true,
       .add_options =
           [run, launcher](CLI::App* app) {
             AddJobOptions(app, run.get());
             AddLauncherOptions(app, launcher.get());
           },
       .run =
           [run, launcher](const Invocation& invocation) {
             return RunJob(invocation.settings, {.options = *run,
                                                 .command = invocation.command,
                                                 .guests = launcher->guests,
                                                 .guest_host = launcher->guest_host,
                                                 .part = launcher->part});
           }},
      {.name = "join",
       .help =
           "Be a guest of another machine's `run --guests`: its invitation is on standard input",
       .run = [](const Invocation&) { return JoinAsGuest(); }},
      {.name = "submit",
       .help = "Queue COMMAND on the cluster and print the job's id",
       .examples = kSubmitExamples,
       .takes_command = true,
       .add_options = [submit](CLI::App* app) { AddJobOptions(app, submit.get()); },
       .run = [submit](const Invocation& invocation) { return Submit(invocation, *submit); }},
  };
}

}  // namespace ringd::cli
