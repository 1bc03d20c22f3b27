// list, describe, wait, logs, cancel, signal.
#include <unistd.h>

#include <iostream>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/output/rank_output.h"
#include "client/cli/output/report.h"
#include "client/cli/run/foreground_job.h"
#include "client/cli/verbs.h"
#include "common/process/exit_text.h"
#include "common/status/macros.h"

namespace ringd::cli {

using namespace ringd::cluster::v1;  // NOLINT: one proto package's names, in a .cc.

namespace {

constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr int kExitBrokenPipe = 141;

struct Words {
  std::string job;
  std::string signal;
  std::string reason = "ringctl cancel";
  bool all = false;
  bool follow = false;
  int rank = -1;
  int tail = 0;
};

absl::StatusOr<int> List(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "list"));
  RINGD_ASSIGN_OR_RETURN(const auto jobs, client->List(words.all));
  std::cout << (invocation.settings.IsJson() ? JsonText(ListJson(jobs)) : ListTable(jobs));
  return 0;
}

absl::StatusOr<int> Describe(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "describe"));
  RINGD_ASSIGN_OR_RETURN(const auto job, client->Describe(words.job));
  std::cout << (invocation.settings.IsJson() ? JsonText(DescribeJson(job)) : DescribeText(job));
  return 0;
}

absl::StatusOr<int> Wait(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "wait"));
  ForegroundJob job(client.get(), nullptr,
                    {.verbose = invocation.settings.verbose,
                     .hold = false,
                     .show_output = false,
                     .patience = kPatience});
  return job.Run(words.job);
}

absl::StatusOr<int> Logs(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "logs"));
  RINGD_ASSIGN_OR_RETURN(const auto job, client->Describe(words.job));
  if (words.rank >= job.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", job.id(), " has no rank ", words.rank,
                                                   ": its ranks are 0 to ", job.ranks() - 1));
  }
  LogsRequest request;
  request.set_job(job.id());
  request.set_rank(words.rank);
  request.set_follow(words.follow);
  request.set_tail_lines(words.tail);
  RankOutput output(STDOUT_FILENO, STDERR_FILENO, words.rank < 0 && job.ranks() > 1);
  bool lost = false;
  CallGroup calls;
  RINGD_RETURN_IF_ERROR(client->Logs(request, &calls, [&](const LogChunk& chunk) {
    lost = !output.Write(chunk);
    return !lost;
  }));
  return lost || !output.Finish() ? kExitBrokenPipe : 0;
}

void PrintJob(const Invocation& invocation, const Job& job, const std::string& what) {
  if (invocation.settings.IsJson()) {
    std::cout << JsonText(DescribeJson(job));
  } else {
    const std::string state = StateName(job.state());
    std::cout << job.id() << " " << what << (what == state ? "" : " (" + state + ")") << "\n";
  }
}

absl::StatusOr<int> Cancel(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "cancel"));
  RINGD_ASSIGN_OR_RETURN(const auto job, client->Cancel(words.job, words.reason));
  const bool was_over = IsFinal(job.state()) && job.state() != JOB_STATE_CANCELLED;
  PrintJob(invocation, job, was_over ? "had ended already" : "cancelled");
  return 0;
}

absl::StatusOr<int> Signal(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const int signal, ParseSignal(words.signal));
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "signal"));
  RINGD_ASSIGN_OR_RETURN(const auto job, client->Signal(words.job, signal));
  PrintJob(invocation, job, absl::StrCat("got ", SignalName(signal)));
  return 0;
}

std::string CheckCount(const std::string& text) {
  int number = 0;
  return absl::SimpleAtoi(text, &number) && number >= 0
             ? ""
             : absl::StrCat("'", text, "' is no whole number of at least 0");
}

void AddJob(CLI::App* app, Words* words) {
  app->add_option("JOB", words->job, "id, or the name of one job that has not ended")->required();
}

void AddLogsOptions(CLI::App* app, Words* words) {
  AddJob(app, words);
  app->add_flag("-f,--follow", words->follow, "go on until all ranks have ended");
  app->add_option("-r,--rank", words->rank, "of this rank only")
      ->type_name("RANK")
      ->check(CheckCount);
  app->add_option("--tail", words->tail, "begin with the last N lines")
      ->type_name("N")
      ->check(CheckCount);
}

}  // namespace

std::vector<Verb> JobVerbs() {
  auto words = std::make_shared<Words>();
  const auto add_job = [words](CLI::App* app) { AddJob(app, words.get()); };
  const auto with = [words](absl::StatusOr<int> (*run)(const Invocation&, const Words&)) {
    return [words, run](const Invocation& invocation) { return run(invocation, *words); };
  };
  return {
      {.name = "list",
       .help = "List jobs",
       .examples = "  ringctl list --all --output json",
       .add_options =
           [words](CLI::App* app) { app->add_flag("--all", words->all, "finished ones too"); },
       .run = with(List)},
      {.name = "describe",
       .help = "Show a job and its ranks",
       .examples = "  ringctl describe j-1",
       .add_options = add_job,
       .run = with(Describe)},
      {.name = "wait",
       .help = "Wait for a job and exit with its code",
       .examples = "  ringctl wait j-1",
       .add_options = add_job,
       .run = with(Wait)},
      {.name = "logs",
       .help = "Show the output of a job's ranks",
       .examples = "  ringctl logs -f j-1\n  ringctl logs -r 0 --tail 20 j-1",
       .add_options = [words](CLI::App* app) { AddLogsOptions(app, words.get()); },
       .run = with(Logs)},
      {.name = "cancel",
       .help = "End a job: TERM to its ranks, then KILL after its grace",
       .examples = "  ringctl cancel j-1",
       .add_options =
           [words](CLI::App* app) {
             AddJob(app, words.get());
             app->add_option("--reason", words->reason, "shown by list and describe");
           },
       .run = with(Cancel)},
      {.name = "signal",
       .help = "Send a signal to a job's training processes",
       .examples = "  ringctl signal j-1 USR1",
       .add_options =
           [words](CLI::App* app) {
             AddJob(app, words.get());
             app->add_option("SIGNAL", words->signal, "USR1, SIGTERM, 15")->required();
           },
       .run = with(Signal)},
  };
}

}  // namespace ringd::cli
