#include "client/cli/local/local_verbs.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/local/local_cluster.h"
#include "client/cli/local/processes.h"
#include "client/cli/output/report.h"
#include "client/cli/run/interrupts.h"
#include "common/config/config.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr int kMaxSlots = 4096;
constexpr int kExitNoProgram = 127;
constexpr int kSignalBase = 128;

struct Words {
  std::string directory;
  UpOptions up;
  std::string member;
};

std::string Directory(const Words& words) {
  if (words.directory.empty()) return GetUserPaths().state_directory + "/local";
  std::error_code error;
  std::string path = std::filesystem::absolute(words.directory, error).lexically_normal();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

absl::StatusOr<int> Up(const Invocation&, const Words& words) {
  UpOptions options = words.up;
  options.directory = Directory(words);
  if (!options.rate.empty() && !options.netns) {
    return absl::InvalidArgumentError("--rate limits the links of --netns; give both or neither");
  }
  Interrupts interrupts;
  const auto cluster = BringUp(
      options, [](const std::string& line) { std::cerr << "ringctl: " << line << std::endl; },
      [&] { return interrupts.first_signal() != 0; });
  if (absl::IsCancelled(cluster.status())) return kSignalBase + interrupts.first_signal();
  RINGD_RETURN_IF_ERROR(cluster.status());
  std::cout << "export RINGD_SCHEDULER=unix:" << cluster->SchedulerSocket() << std::endl;
  return 0;
}

absl::StatusOr<int> Nodes(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const LocalCluster cluster, ReadLocalCluster(Directory(words)));
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows;
  for (const LocalNode& node : cluster.nodes) {
    const pid_t pid = RunningPid(cluster.PidFile(node.name));
    const std::vector<pid_t> workers = WorkersOf(cluster.RunDirectory(node.name));
    const std::string log = cluster.LogFile(node.name);
    nlohmann::ordered_json row = {{"name", node.name}, {"netns", node.netns}};
    // No number rather than 0: kill(0) would reach the reader's own process group.
    row["daemon_pid"] = pid != 0 ? nlohmann::ordered_json(pid) : nlohmann::ordered_json(nullptr);
    row["worker_pids"] = workers;
    row["address"] = node.address;
    row["log"] = log;
    row["data_address"] = node.data_address;
    json.push_back(std::move(row));
    rows.push_back({node.name, node.netns.empty() ? "-" : node.netns,
                    pid == 0 ? "-" : absl::StrCat(pid),
                    workers.empty() ? "-" : absl::StrJoin(workers, ","), node.address, log});
  }
  std::cout << (invocation.settings.IsJson()
                    ? JsonText(json)
                    : Table({"NAME", "NETNS", "DAEMON", "WORKERS", "ADDRESS", "LOG"}, rows));
  return 0;
}

absl::StatusOr<int> Exec(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const LocalCluster cluster, ReadLocalCluster(Directory(words)));
  RINGD_ASSIGN_OR_RETURN(const LocalNode node, cluster.FindNode(words.member));
  if (invocation.command.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no COMMAND; write it after --, as in: ringctl local exec ", node.name, " -- ip address"));
  }
  if (!node.netns.empty()) RINGD_RETURN_IF_ERROR(EnterNamespace(node.netns));
  signal(SIGPIPE, SIG_DFL);
  std::vector<char*> argv;
  for (const std::string& word : invocation.command)
    argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::cerr << "ringctl: " << argv[0] << ": " << strerror(errno) << "\n";
  return kExitNoProgram;
}

absl::StatusOr<int> Start(const Invocation&, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const LocalCluster cluster, ReadLocalCluster(Directory(words)));
  RINGD_RETURN_IF_ERROR(StartMember(cluster, words.member));
  std::cout << words.member << " runs, pid " << RunningPid(cluster.PidFile(words.member)) << "\n";
  return 0;
}

absl::StatusOr<int> Stop(const Invocation&, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const LocalCluster cluster, ReadLocalCluster(Directory(words)));
  RINGD_RETURN_IF_ERROR(StopMember(cluster, words.member));
  std::cout << words.member << " is stopped\n";
  return 0;
}

absl::StatusOr<int> Restart(const Invocation& invocation, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const LocalCluster cluster, ReadLocalCluster(Directory(words)));
  RINGD_RETURN_IF_ERROR(StopMember(cluster, words.member));
  return Start(invocation, words);
}

absl::StatusOr<int> Down(const Invocation&, const Words& words) {
  RINGD_ASSIGN_OR_RETURN(const LocalCluster cluster, ReadLocalCluster(Directory(words)));
  RINGD_RETURN_IF_ERROR(TearDown(cluster));
  std::cerr << "ringctl: the cluster in " << cluster.directory << " is gone\n";
  return 0;
}

std::function<std::string(const std::string&)> Between(int min, int max) {
  return [min, max](const std::string& text) -> std::string {
    int number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= min && number <= max) return "";
    return absl::StrCat("'", text, "' is no whole number of ", min, " to ", max);
  };
}

void AddDirectory(CLI::App* app, Words* words) {
  app->add_option("--dir", words->directory,
                  "the cluster's directory (default: ~/.local/state/ringd/local)");
}

void AddMember(CLI::App* app, Words* words, const std::string& name) {
  AddDirectory(app, words);
  app->add_option(name, words->member, name == "NODE" ? "a, b, ..." : "a, b, ..., or scheduler")
      ->required();
}

void AddUpOptions(CLI::App* app, Words* words) {
  AddDirectory(app, words);
  app->add_option("--nodes", words->up.nodes, "number of nodes, named a, b, ... (default 2)")
      ->type_name("N")
      ->check(Between(1, kMaxLocalNodes));
  app->add_option("--slots", words->up.slots, "slots of each node (default 1)")
      ->type_name("S")
      ->check(Between(1, kMaxSlots));
  app->add_flag("--netns", words->up.netns, "a network namespace for each node (root only)");
  app->add_option("--rate", words->up.rate,
                  "rate of each link: 1gbit, 100mbit (default: unlimited)");
}

constexpr char kUpExamples[] =
    "  eval \"$(ringctl local up --nodes 2 --slots 2)\" && ringctl run -n 4 -- hostname\n"
    "  ringctl local up --nodes 3 --slots 1 --netns --rate 1gbit --dir /tmp/c";
constexpr char kExecExamples[] = "  ringctl local exec a -- ip address";

}  // namespace

std::vector<Verb> LocalVerbs() {
  auto words = std::make_shared<Words>();
  const auto with = [words](absl::StatusOr<int> (*run)(const Invocation&, const Words&)) {
    return [words, run](const Invocation& invocation) { return run(invocation, *words); };
  };
  const auto add_directory = [words](CLI::App* app) { AddDirectory(app, words.get()); };
  const auto add_member = [words](CLI::App* app) { AddMember(app, words.get(), "NAME"); };
  return {
      {.group = "local",
       .name = "up",
       .help = "Start a cluster on this machine and print the line to export",
       .examples = kUpExamples,
       .add_options = [words](CLI::App* app) { AddUpOptions(app, words.get()); },
       .run = with(Up)},
      {.group = "local",
       .name = "nodes",
       .help = "List its nodes and their processes",
       .examples = "  ringctl local nodes --output json",
       .add_options = add_directory,
       .run = with(Nodes)},
      {.group = "local",
       .name = "exec",
       .help = "Run COMMAND in a node's network namespace",
       .examples = kExecExamples,
       .takes_command = true,
       .positionals = 1,
       .add_options = [words](CLI::App* app) { AddMember(app, words.get(), "NODE"); },
       .run = with(Exec)},
      {.group = "local",
       .name = "start",
       .help = "Start a node's daemon or the scheduler",
       .examples = "  ringctl local start a",
       .add_options = add_member,
       .run = with(Start)},
      {.group = "local",
       .name = "stop",
       .help = "Stop a node's daemon or the scheduler",
       .examples = "  ringctl local stop scheduler",
       .add_options = add_member,
       .run = with(Stop)},
      {.group = "local",
       .name = "restart",
       .help = "Stop it, then start it",
       .examples = "  ringctl local restart b",
       .add_options = add_member,
       .run = with(Restart)},
      {.group = "local",
       .name = "down",
       .help = "End the cluster; nothing is left of it",
       .examples = "  ringctl local down --dir /tmp/c",
       .add_options = add_directory,
       .run = with(Down)},
  };
}

}  // namespace ringd::cli
