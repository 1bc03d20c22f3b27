#include "client/cli/job/job_options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/job/hosts.h"
#include "common/config/config.h"
#include "common/status/macros.h"

namespace ringd::cli {

using ringd::cluster::v1::JobSpec;

namespace {

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

// A whole number of at least `min`.
void AddCount(CLI::App* app, const std::string& name, int* value, int min,
              const std::string& help) {
  app->add_option(name, *value, help)
      ->type_name("N")
      ->check([min](const std::string& text) -> std::string {
        int number = 0;
        if (absl::SimpleAtoi(text, &number) && number >= min) return "";
        return absl::StrCat("'", text, "' is no whole number of at least ", min);
      });
}

// As of an unset variable in --hosts "$NODES".
std::string NotEmpty(const std::string& text) { return text.empty() ? "is empty" : ""; }

absl::StatusOr<google::protobuf::Duration> Duration(const std::string& option,
                                                    const std::string& text) {
  const absl::StatusOr<absl::Duration> duration = ParseDuration(text);
  if (!duration.ok() || *duration < absl::ZeroDuration()) {
    return Invalid(
        absl::StrCat(option, " '", text, "' is no duration; write 30s, 5m, 250ms or 1h"));
  }
  google::protobuf::Duration result;
  result.set_seconds(absl::ToInt64Seconds(*duration));
  result.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(*duration - absl::Seconds(result.seconds()))));
  return result;
}

std::string Absolute(const std::string& path, const std::string& base) {
  return path.empty() || path[0] == '/' ? path : absl::StrCat(base, "/", path);
}

absl::Status SetHosts(const JobOptions& options, int ranks, JobSpec* spec) {
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    return Invalid("--hosts and --hostfile both name nodes: give one of them");
  }
  std::vector<Host> hosts;
  if (!options.hosts.empty()) {
    RINGD_ASSIGN_OR_RETURN(hosts, ParseHosts(options.hosts));
  } else if (!options.hostfile.empty()) {
    RINGD_ASSIGN_OR_RETURN(hosts, ReadHostFile(options.hostfile));
  }
  int64_t slots = 0;
  bool open_ended = hosts.empty();
  for (const Host& host : hosts) {
    auto* entry = spec->add_hosts();
    entry->set_node(host.node);
    entry->set_slots(host.slots);
    open_ended |= host.slots < 0;
    slots += std::max(host.slots, 0);
  }
  if (!open_ended && slots < ranks) {
    return Invalid(absl::StrCat(options.hosts.empty() ? "--hostfile" : "--hosts", " gives ", slots,
                                " slots and -n is ", ranks, ": name more slots or fewer ranks"));
  }
  return absl::OkStatus();
}

absl::Status SetElasticity(const JobOptions& options, int ranks, JobSpec* spec) {
  const int min = options.min_ranks == 0 ? ranks : options.min_ranks;
  const int max = options.max_ranks == 0 ? ranks : options.max_ranks;
  if (min > ranks || max < ranks) {
    return Invalid(absl::StrCat("--min ", min, ", -n ", ranks, ", --max ", max,
                                ": they must not decrease in this order"));
  }
  spec->set_min_ranks(options.min_ranks);
  spec->set_max_ranks(options.max_ranks);
  if (options.on_failure == "stop") spec->set_on_failure(ringd::cluster::v1::ON_FAILURE_STOP);
  if (options.on_failure == "replay") spec->set_on_failure(ringd::cluster::v1::ON_FAILURE_REPLAY);
  if (options.on_failure == "interrupt") {
    spec->set_on_failure(ringd::cluster::v1::ON_FAILURE_INTERRUPT);
  }
  return absl::OkStatus();
}

absl::Status SetDevices(const JobOptions& options, JobSpec* spec) {
  if (options.gpu_bind == "rank" && options.gpus_per_rank == 0) {
    return Invalid("--gpu-bind rank needs --gpus-per-rank G");
  }
  spec->set_gpus_per_rank(options.gpus_per_rank);
  spec->set_cpus_per_rank(options.cpus_per_rank);
  return absl::OkStatus();
}

absl::Status SetTimes(const JobOptions& options, JobSpec* spec) {
  RINGD_ASSIGN_OR_RETURN(*spec->mutable_grace(), Duration("--grace", options.grace));
  if (!options.deadline.empty() && options.deadline != "none") {
    RINGD_ASSIGN_OR_RETURN(*spec->mutable_deadline(), Duration("--deadline", options.deadline));
    if (spec->deadline().seconds() == 0 && spec->deadline().nanos() == 0) {
      return Invalid("--deadline 0 would end the job before it starts; leave it out for none");
    }
  }
  if (options.stall_timeout != "none") {
    RINGD_ASSIGN_OR_RETURN(*spec->mutable_stall_timeout(),
                           Duration("--stall-timeout", options.stall_timeout));
    if (spec->stall_timeout().seconds() == 0 && spec->stall_timeout().nanos() == 0) {
      return Invalid(
          "--stall-timeout 0 would end the job at its first wait; leave it out for none");
    }
  }
  return absl::OkStatus();
}

absl::Status SetCommand(const std::vector<std::string>& command, JobSpec* spec) {
  if (command.empty() || command[0].empty()) {
    return Invalid("no COMMAND; write it after --, as in: ringctl run -n 2 -- python train.py");
  }
  for (const std::string& word : command) {
    if (!IsUtf8(word))
      return Invalid("COMMAND has a word that is not UTF-8 text; rename that file");
    spec->add_command(word);
  }
  return absl::OkStatus();
}

absl::Status CheckDirectory(const std::string& option, const std::string& path) {
  if (IsUtf8(path)) return absl::OkStatus();
  return Invalid(absl::StrCat(option, ": the directory's name is not UTF-8 text"));
}

}  // namespace

void AddJobOptions(CLI::App* app, JobOptions* options) {
  AddCount(app, "-n", &options->ranks, 1, "number of ranks (default 1)");
  app->add_option("--name", options->name, "name of the job (default: the program's or script's)");
  AddCount(app, "--nodes", &options->nodes, 1, "spread the ranks over this many nodes");
  AddCount(app, "--ranks-per-node", &options->ranks_per_node, 1, "ranks on each node");
  app->add_option("--hosts", options->hosts, "nodes and slots to use: A:2,B:2")->check(NotEmpty);
  app->add_option("--hostfile", options->hostfile, "the same from a file, a node a line")
      ->check(NotEmpty);
  AddCount(app, "--min", &options->min_ranks, 1,
           "go on with as few ranks as this (not in this version)");
  AddCount(app, "--max", &options->max_ranks, 1,
           "grow to as many ranks as this (not in this version)");
  app->add_option("--on-failure", options->on_failure,
                  "what a rank's death does: stop ends the job (this version has no other)")
      ->check(CLI::IsMember({"stop", "replay", "interrupt"}));
  AddCount(app, "--max-restarts", &options->max_restarts, 0, "restarts for each slot (default 3)");
  app->add_option("--env", options->environment.env,
                  "pass NAME, or set NAME=VALUE, in the ranks (repeatable)")
      ->allow_extra_args(false);
  app->add_flag("--env-all", options->environment.all, "pass the whole environment");
  app->add_option("--cwd", options->cwd, "working directory of the ranks (default: this one)");
  app->add_option("--output-dir", options->output_directory, "keep rank-N.log of each rank here");
  AddCount(app, "--gpus-per-rank", &options->gpus_per_rank, 0, "GPUs for each rank");
  app->add_option("--gpu-bind", options->gpu_bind,
                  "none: a rank sees its job's GPUs; rank: its own only")
      ->check(CLI::IsMember({"none", "rank"}));
  AddCount(app, "--cpus-per-rank", &options->cpus_per_rank, 0,
           "threads of each rank: OMP_NUM_THREADS (default: its share of the cores)");
  app->add_flag("--reproducible", options->reproducible, "the same bits in every run");
  app->add_option("--deadline", options->deadline, "end the job after this time (exit code 124)");
  app->add_option("--stall-timeout", options->stall_timeout,
                  "end a job whose ranks wait this long for one of them (exit code 124)");
  app->add_option("--grace", options->grace, "time between TERM and KILL (default 30s)");
  app->add_flag("--queue", options->queue, "wait rather than fail when it can't start now");
}

absl::StatusOr<int> CountRanks(const JobOptions& options) {
  const int64_t product = int64_t{std::max(options.nodes, 1)} * std::max(options.ranks_per_node, 1);
  if (options.ranks == 0) {
    if (product > INT_MAX) return Invalid("--nodes x --ranks-per-node is too large");
    return static_cast<int>(product);
  }
  if (options.nodes > 0 && options.ranks_per_node > 0 && product != options.ranks) {
    return Invalid(absl::StrCat("-n ", options.ranks, " is not --nodes ", options.nodes,
                                " x --ranks-per-node ", options.ranks_per_node, " = ", product,
                                ": leave one of them out"));
  }
  if (options.nodes > options.ranks) {
    return Invalid(absl::StrCat("-n ", options.ranks, " is too few for --nodes ", options.nodes,
                                ": each node gets a rank at least"));
  }
  return options.ranks;
}

Surroundings CurrentSurroundings() {
  Surroundings surroundings;
  surroundings.environment = CurrentEnvironment();
  // As the shell names it, if that is where we are: the nodes may not know what a link leads to
  // here.
  const char* pwd = std::getenv("PWD");
  struct stat by_name, here;
  if (pwd != nullptr && pwd[0] == '/' && stat(pwd, &by_name) == 0 && stat(".", &here) == 0 &&
      by_name.st_ino == here.st_ino && by_name.st_dev == here.st_dev) {
    surroundings.working_directory = pwd;
  } else if (char* path = get_current_dir_name(); path != nullptr) {
    surroundings.working_directory = path;
    free(path);
  }
  surroundings.umask = umask(0);
  umask(surroundings.umask);
  return surroundings;
}

absl::StatusOr<JobRequest> BuildJob(const JobOptions& options,
                                    const std::vector<std::string>& command,
                                    const Surroundings& surroundings) {
  JobRequest request;
  JobSpec& spec = request.spec;
  RINGD_RETURN_IF_ERROR(SetCommand(command, &spec));
  RINGD_ASSIGN_OR_RETURN(const int ranks, CountRanks(options));
  spec.set_ranks(ranks);
  spec.set_nodes(options.nodes);
  spec.set_ranks_per_node(options.ranks_per_node);
  if (!IsUtf8(options.name)) return Invalid("--name is not UTF-8 text");
  spec.set_name(options.name);
  RINGD_RETURN_IF_ERROR(SetHosts(options, ranks, &spec));
  RINGD_RETURN_IF_ERROR(SetElasticity(options, ranks, &spec));
  spec.set_max_restarts(options.max_restarts);
  RINGD_RETURN_IF_ERROR(SetDevices(options, &spec));
  RINGD_RETURN_IF_ERROR(SetTimes(options, &spec));
  spec.set_reproducible(options.reproducible);
  spec.set_queue(options.queue);
  spec.set_umask(surroundings.umask);
  const std::string& here = surroundings.working_directory;
  if (here.empty()) return Invalid("the working directory is gone; change to another");
  spec.set_working_directory(options.cwd.empty() ? here : Absolute(options.cwd, here));
  spec.set_output_directory(Absolute(options.output_directory, here));
  RINGD_RETURN_IF_ERROR(CheckDirectory("--cwd", spec.working_directory()));
  RINGD_RETURN_IF_ERROR(CheckDirectory("--output-dir", spec.output_directory()));
  RINGD_ASSIGN_OR_RETURN(EnvironmentChoice environment,
                         ChooseEnvironment(surroundings.environment, options.environment));
  spec.mutable_environment()->insert(environment.passed.begin(), environment.passed.end());
  request.left_out = std::move(environment.left_out);
  return request;
}

}  // namespace ringd::cli
