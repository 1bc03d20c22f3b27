// nodes, here, version, config, completion.
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/completion.h"
#include "client/cli/output/report.h"
#include "client/cli/run/identity.h"
#include "client/cli/verbs.h"
#include "common/base/version.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

absl::StatusOr<int> Nodes(const Invocation& invocation) {
  RINGD_ASSIGN_OR_RETURN(const auto client, ConnectToCluster(invocation.settings, "nodes"));
  RINGD_ASSIGN_OR_RETURN(const auto nodes, client->Nodes());
  std::cout << (invocation.settings.IsJson() ? JsonText(NodesJson(nodes)) : NodesTable(nodes));
  return 0;
}

absl::StatusOr<int> Here(const Invocation& invocation) {
  const Settings& settings = invocation.settings;
  RINGD_RETURN_IF_ERROR(CheckHasScheduler(settings, "here"));
  RINGD_ASSIGN_OR_RETURN(const std::string node, FindNode(settings.daemon_socket));
  if (settings.IsJson()) {
    std::cout << JsonText({{"node", node},
                           {"daemon_socket", settings.daemon_socket},
                           {"scheduler", settings.scheduler}});
    return 0;
  }
  std::cout << "node " << node << ", by its daemon at " << settings.daemon_socket << "; scheduler "
            << settings.scheduler << "\n";
  return 0;
}

// Of ringctl, and of the scheduler if one is named and answers.
absl::StatusOr<int> Version(const Invocation& invocation) {
  nlohmann::ordered_json json = {{"ringctl", kVersion}};
  std::string text = absl::StrCat("ringctl ", kVersion, "\n");
  if (!invocation.settings.scheduler.empty()) {
    const auto client = ConnectToCluster(invocation.settings, "version");
    const auto version = client.ok() ? (*client)->Version() : client.status();
    if (version.ok()) {
      json["scheduler"] = version->version();
      absl::StrAppend(&text, "scheduler ", version->version(), " at ",
                      invocation.settings.scheduler, "\n");
    } else {
      json["scheduler"] = nullptr;
      absl::StrAppend(&text, "scheduler: ", std::string(version.status().message()), "\n");
    }
  }
  std::cout << (invocation.settings.IsJson() ? JsonText(json) : text);
  return 0;
}

absl::StatusOr<int> Completion(const Invocation& invocation, const std::string& shell) {
  if (shell != "bash") {
    return absl::InvalidArgumentError(
        absl::StrCat("no completion for '", shell, "': the shell that has one is bash"));
  }
  std::cout << BashCompletion(*invocation.app);
  return 0;
}

}  // namespace

std::vector<Verb> ClusterVerbs() {
  auto shell = std::make_shared<std::string>();
  return {
      {.name = "nodes",
       .help = "List the cluster's nodes",
       .examples = "  ringctl nodes",
       .run = Nodes},
      {.name = "here",
       .help = "Show the node and scheduler that init() uses under torchrun, mpirun and srun",
       .examples = "  ringctl here",
       .run = Here},
      {.name = "version", .help = "Show versions", .run = Version},
      {.group = "config",
       .name = "dump",
       .help = "Show ringctl's effective settings and where each came from",
       .run = [](const Invocation& invocation) -> absl::StatusOr<int> {
         std::cout << invocation.settings.dump;
         return 0;
       }},
      {.name = "completion",
       .help = "Print a completion script for a shell",
       .examples = "  source <(ringctl completion bash)",
       .add_options =
           [shell](CLI::App* app) { app->add_option("SHELL", *shell, "bash")->required(); },
       .run = [shell](const Invocation& invocation) { return Completion(invocation, *shell); }},
  };
}

}  // namespace ringd::cli
