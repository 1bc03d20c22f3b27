// bench.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iostream>
#include <memory>

#include "absl/time/time.h"
#include "client/cli/bench/bench_options.h"
#include "client/cli/bench/bench_rows.h"
#include "client/cli/output/rank_output.h"
#include "client/cli/output/report.h"
#include "client/cli/run_job.h"
#include "client/cli/verbs.h"
#include "common/base/fd.h"
#include "common/process/process.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr absl::Duration kPlotTimeout = absl::Minutes(2);
constexpr int kSignalBase = 128;

// Runs `PYTHON -m ringd.bench.plot WORDS...` with a text as standard input. Its exit code; if not
// 0, it has said why on standard error.
absl::StatusOr<int> RunPlot(const std::string& python, std::vector<std::string> words,
                            const std::string& input) {
  const UniqueFd in(memfd_create("rows", MFD_CLOEXEC));
  if (!in.valid() || !WriteFully(in.get(), input) || lseek(in.get(), 0, SEEK_SET) != 0) {
    return absl::ResourceExhaustedError("no memory for the rows to plot");
  }
  SpawnOptions spawn;
  spawn.argv = {"/usr/bin/env", python, "-m", "ringd.bench.plot"};
  spawn.argv.insert(spawn.argv.end(), words.begin(), words.end());
  spawn.environment = OwnEnvironment();
  spawn.fds = {
      {STDIN_FILENO, in.get()}, {STDOUT_FILENO, STDERR_FILENO}, {STDERR_FILENO, STDERR_FILENO}};
  RINGD_ASSIGN_OR_RETURN(const Child child, Spawn(spawn));
  RINGD_ASSIGN_OR_RETURN(const ExitStatus status, WaitForExit(child, kPlotTimeout));
  return status.signal == 0 ? status.exit_code : kSignalBase + status.signal;
}

absl::StatusOr<int> Bench(const Invocation& invocation, const BenchOptions& options) {
  const std::string python = BenchPython(options, SiblingProgram("ringctl"));
  ForegroundRun run = {.options = options.job, .all_slots = TakesAllSlots(options)};
  RINGD_ASSIGN_OR_RETURN(run.command, BenchCommand(options));
  run.command.insert(run.command.begin(), python);
  if (run.options.name.empty()) run.options.name = "bench";
  if (!options.plot.empty()) {
    RINGD_ASSIGN_OR_RETURN(const int code, RunPlot(python, {"--check", options.plot}, ""));
    if (code != 0) return code;
  }
  const bool json = invocation.settings.IsJson();
  BenchRows rows;
  run.take_output = [&](int rank, const std::string& data) {
    if (rank != 0) return true;
    const BenchRows::Text text = rows.Add(data);
    (void)WriteFully(STDERR_FILENO, text.notes);
    return json || WriteFully(STDOUT_FILENO, text.out);
  };
  RINGD_ASSIGN_OR_RETURN(const int code, RunJob(invocation.settings, std::move(run)));
  if (json) std::cout << JsonText(rows.rows());
  if (!options.plot.empty() && !rows.rows().empty()) {
    RINGD_ASSIGN_OR_RETURN(const int drawn, RunPlot(python, {options.plot}, rows.rows().dump()));
    if (code == 0) return drawn;
  }
  return code;
}

constexpr char kExamples[] =
    "  ringctl bench                                  all operations, on all slots\n"
    "  ringctl bench allreduce --sizes 1KB,16MB -n 4 --peers\n"
    "  ringctl bench latency --output json            rows for a program";

}  // namespace

std::vector<Verb> BenchVerbs() {
  auto options = std::make_shared<BenchOptions>();
  return {{.name = "bench",
           .help = "Measure collectives on this machine or cluster, against its own limits",
           .examples = kExamples,
           .add_options = [options](CLI::App* app) { AddBenchOptions(app, options.get()); },
           .run = [options](const Invocation& invocation) { return Bench(invocation, *options); }}};
}

}  // namespace ringd::cli
