// certs init, certs add.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output/file_text.h"
#include "client/cli/run/embedded_cluster.h"
#include "client/cli/verbs.h"
#include "common/config/config.h"
#include "common/crypto/crypto.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

constexpr mode_t kKeyMode = 0600;
constexpr mode_t kCertificateMode = 0644;
constexpr char kSchedulerName[] = "scheduler";

struct CertsOptions {
  std::string directory;
  std::vector<std::string> scheduler_hosts;
  std::vector<std::string> nodes;
  bool force = false;
};

struct Wanted {
  std::string name;                // Of the files.
  std::vector<std::string> hosts;  // Names and addresses that the certificate is good for.
  std::string uri;
};

std::string DefaultDirectory() {
  return geteuid() == 0 ? "/var/lib/ringd/tls" : GetUserPaths().state_directory + "/tls";
}

std::string PathOf(const CertsOptions& options, const std::string& name) {
  return absl::StrCat(options.directory, "/", name);
}

// A name becomes a file's, and a daemon's.
absl::Status CheckNames(const std::vector<std::string>& nodes) {
  for (const std::string& node : nodes) {
    if (!node.empty() && node != kSchedulerName && node != "ca" && node.front() != '.' &&
        node.find_first_of("/ \t\n,") == std::string::npos) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes: '", node, "' can't be a node's name; write them as in --nodes a,b"));
  }
  return absl::OkStatus();
}

absl::Status CheckFree(const CertsOptions& options, const std::vector<std::string>& files) {
  std::error_code error;
  for (const std::string& file : files) {
    if (options.force || !std::filesystem::exists(PathOf(options, file), error)) continue;
    return absl::AlreadyExistsError(
        absl::StrCat(PathOf(options, file),
                     " is there already: choose another --dir, add nodes to this "
                     "authority by 'ringctl certs add --nodes NAME', or replace it by --force"));
  }
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error && chmod(directory.c_str(), 0755) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("can't make ", directory, ": ",
                                                    error ? error.message() : "no right to",
                                                    "; choose another --dir"));
}

absl::Status WritePair(const CertsOptions& options, const std::string& name, const KeyPair& pair) {
  RINGD_RETURN_IF_ERROR(WriteFileText(PathOf(options, name + ".key"), pair.key_pem, kKeyMode));
  return WriteFileText(PathOf(options, name + ".pem"), pair.certificate_pem, kCertificateMode);
}

std::vector<Wanted> NodeCertificates(const CertsOptions& options) {
  std::vector<Wanted> wanted;
  for (const std::string& node : options.nodes) {
    wanted.push_back({node, {node}, absl::StrCat("ringd://node/", node)});
  }
  return wanted;
}

absl::Status Issue(const CertsOptions& options, const KeyPair& authority,
                   const std::vector<Wanted>& wanted) {
  for (const Wanted& one : wanted) {
    RINGD_ASSIGN_OR_RETURN(const KeyPair pair,
                           CreateCertificate(authority, one.name, one.hosts, one.uri));
    RINGD_RETURN_IF_ERROR(WritePair(options, one.name, pair));
  }
  return absl::OkStatus();
}

void Explain(const CertsOptions& options, const std::vector<Wanted>& wanted) {
  std::cout << PathOf(options, "ca.pem")
            << "\n    on every machine: tls_authority of ringd, ringd-scheduler and ringctl\n";
  for (const Wanted& one : wanted) {
    std::cout << PathOf(options, one.name) << ".pem, .key\n    "
              << (one.name == kSchedulerName ? "on the scheduler's machine"
                                             : absl::StrCat("on node ", one.name))
              << ": tls_certificate, tls_key\n";
  }
  std::cout << PathOf(options, "ca.key")
            << "\n    nowhere else; 'ringctl certs add' needs it, and who has it can add nodes\n";
}

absl::StatusOr<int> Init(CertsOptions options) {
  RINGD_RETURN_IF_ERROR(CheckNames(options.nodes));
  if (options.scheduler_hosts.empty()) options.scheduler_hosts = {LocalNodeName()};
  options.scheduler_hosts.push_back("localhost");
  if (options.nodes.empty()) options.nodes = {LocalNodeName()};
  std::vector<Wanted> wanted = {{kSchedulerName, options.scheduler_hosts, "ringd://scheduler"}};
  for (Wanted& node : NodeCertificates(options)) wanted.push_back(std::move(node));
  std::vector<std::string> files = {"ca.pem", "ca.key"};
  for (const Wanted& one : wanted)
    files.insert(files.end(), {one.name + ".pem", one.name + ".key"});
  RINGD_RETURN_IF_ERROR(CheckFree(options, files));
  RINGD_RETURN_IF_ERROR(MakeDirectory(options.directory));
  RINGD_ASSIGN_OR_RETURN(const KeyPair authority, CreateAuthority("ringd"));
  RINGD_RETURN_IF_ERROR(WritePair(options, "ca", authority));
  RINGD_RETURN_IF_ERROR(Issue(options, authority, wanted));
  Explain(options, wanted);
  return 0;
}

absl::StatusOr<int> Add(const CertsOptions& options) {
  RINGD_RETURN_IF_ERROR(CheckNames(options.nodes));
  const KeyPair authority{.key_pem = ReadFileText(PathOf(options, "ca.key")),
                          .certificate_pem = ReadFileText(PathOf(options, "ca.pem"))};
  if (authority.key_pem.empty() || authority.certificate_pem.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no authority's ca.pem and ca.key can be read in ", options.directory,
                     ": name its folder by --dir, or make one by 'ringctl certs init'"));
  }
  const std::vector<Wanted> wanted = NodeCertificates(options);
  std::vector<std::string> files;
  for (const Wanted& one : wanted)
    files.insert(files.end(), {one.name + ".pem", one.name + ".key"});
  RINGD_RETURN_IF_ERROR(CheckFree(options, files));
  RINGD_RETURN_IF_ERROR(Issue(options, authority, wanted));
  Explain(options, wanted);
  return 0;
}

void AddCommonOptions(CLI::App* app, CertsOptions* options) {
  app->add_option("--dir", options->directory,
                  "the files' folder (default: /var/lib/ringd/tls for root, else "
                  "~/.local/state/ringd/tls)");
  app->add_flag("--force", options->force, "replace files that are there");
}

constexpr char kInitExamples[] =
    "  ringctl certs init --scheduler-host head.example.org --nodes a,b,c";
constexpr char kAddExamples[] = "  ringctl certs add --nodes d";

}  // namespace

std::vector<Verb> CertsVerbs() {
  auto init = std::make_shared<CertsOptions>();
  auto add = std::make_shared<CertsOptions>();
  init->directory = add->directory = DefaultDirectory();
  return {
      {.group = "certs",
       .name = "init",
       .help = "Make a certificate authority, and certificates for scheduler and nodes",
       .examples = kInitExamples,
       .add_options =
           [init](CLI::App* app) {
             AddCommonOptions(app, init.get());
             app->add_option("--scheduler-host", init->scheduler_hosts,
                             "name or address by which others reach the scheduler (repeatable; "
                             "default: this host's)")
                 ->delimiter(',');
             app->add_option("--nodes", init->nodes, "names of the nodes (default: this host's)")
                 ->delimiter(',');
           },
       .run = [init](const Invocation&) { return Init(*init); }},
      {.group = "certs",
       .name = "add",
       .help = "Make certificates for further nodes, of an authority that 'certs init' has made",
       .examples = kAddExamples,
       .add_options =
           [add](CLI::App* app) {
             AddCommonOptions(app, add.get());
             app->add_option("--nodes", add->nodes, "names of the nodes")
                 ->delimiter(',')
                 ->required();
           },
       .run = [add](const Invocation&) { return Add(*add); }},
  };
}

}  // namespace ringd::cli
