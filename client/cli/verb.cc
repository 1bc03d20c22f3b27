#include "client/cli/verb.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/Config.hpp"  // App needs its definitions.
#include "CLI/Formatter.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/output/report.h"
#include "common/base/version.h"
#include "common/config/config.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

using Words = std::vector<std::string>;

constexpr int kExitBadInput = 2;
constexpr char kFooter[] =
    "Examples:\n"
    "  ringctl run -n 4 -- python train.py       on this machine, nothing set up\n"
    "  ringctl local up --nodes 2 --slots 2      a cluster on this machine\n"
    "  ringctl submit --name resnet -n 64 -- python train.py\n"
    "  ringctl COMMAND --help";

// Null: no such one.
const CLI::App* FindApp(const CLI::App* app, const std::string& name) {
  for (const CLI::App* candidate : app->get_subcommands(nullptr)) {
    if (candidate->get_name() == name) return candidate;
  }
  return nullptr;
}

// Matches words to verbs without parsing options: CLI11 then gets words that it understands.
class Finder {
 public:
  Finder(const CLI::App* root, const std::vector<Verb>& verbs) : root_(root), verbs_(verbs) {}

  struct Found {
    const Verb* verb = nullptr;  // Null: no verb among the words (--help, --version).
    Words words;                 // Without COMMAND.
    Words command;
  };
  // INVALID_ARGUMENT: unknown word.
  absl::StatusOr<Found> Find(const Words& words) const {
    Found found;
    size_t i = NextPositional(root_, words, 0);
    found.words = words;
    if (i >= words.size()) return found;
    const CLI::App* app = FindApp(root_, words[i]);
    if (app == nullptr) return Unknown("ringctl", root_, words[i]);
    std::string group;
    if (!app->get_subcommands(nullptr).empty()) {
      group = app->get_name();
      i = NextPositional(app, words, i + 1);
      if (i >= words.size()) return found;
      const CLI::App* inner = FindApp(app, words[i]);
      if (inner == nullptr) return Unknown("ringctl " + group, app, words[i]);
      app = inner;
    }
    found.verb = &*std::find_if(verbs_.begin(), verbs_.end(), [&](const Verb& verb) {
      return verb.group == group && verb.name == app->get_name();
    });
    if (found.verb->takes_command) SplitCommand(app, words, i + 1, &found);
    return found;
  }

 private:
  // Index of the next word that is no option nor an option's value.
  size_t NextPositional(const CLI::App* app, const Words& words, size_t i) const {
    for (; i < words.size(); ++i) {
      const std::string& word = words[i];
      if (word == "--" || word.size() < 2 || word[0] != '-') return i;
      if (TakesNextWord(app, word)) ++i;
    }
    return i;
  }

  bool TakesNextWord(const CLI::App* app, const std::string& word) const {
    const bool is_long = absl::StartsWith(word, "--");
    if (is_long && absl::StrContains(word, '=')) return false;
    const std::string name = is_long ? word : word.substr(0, 2);
    const CLI::Option* option = app->get_option_no_throw(name);
    if (option == nullptr) option = root_->get_option_no_throw(name);
    return option != nullptr && option->get_items_expected_min() > 0 &&
           (is_long || word.size() == 2);
  }

  void SplitCommand(const CLI::App* app, const Words& words, size_t i, Found* found) const {
    for (int skipped = 0;; ++i, ++skipped) {
      i = NextPositional(app, words, i);
      if (i >= words.size()) return;
      if (words[i] == "--" || skipped == found->verb->positionals) break;
    }
    const auto split = words.begin() + static_cast<ptrdiff_t>(i);
    found->words.assign(words.begin(), split);
    found->command.assign(split + (*split == "--" ? 1 : 0), words.end());
  }

  static absl::Status Unknown(const std::string& where, const CLI::App* app,
                              const std::string& word) {
    Words names;
    for (const CLI::App* candidate : app->get_subcommands(nullptr))
      names.push_back(candidate->get_name());
    const std::string nearest = NearestWord(word, names);
    return absl::InvalidArgumentError(
        absl::StrCat("unknown command '", word, "' (",
                     nearest.empty() ? absl::StrCat("'", where, " --help' lists the commands")
                                     : absl::StrCat("did you mean '", nearest, "'?"),
                     ")"));
  }

  const CLI::App* const root_;
  const std::vector<Verb>& verbs_;
};

void CollectNames(const CLI::App* app, Words* names) {
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) names->push_back("--" + name);
    for (const std::string& name : option->get_snames()) names->push_back("-" + name);
  }
}

// What CLI11 found wrong, in our words.
std::string Explain(const CLI::ParseError& error, const CLI::App* root, const CLI::App* app,
                    const std::string& title) {
  const std::string help = absl::StrCat("'", title, " --help' lists the options");
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError))
    return absl::StrCat(error.what(), " (", help, ")");
  const Words extras = root->remaining(true);
  const auto option = std::find_if(extras.begin(), extras.end(), [](const std::string& word) {
    return absl::StartsWith(word, "-");
  });
  if (option == extras.end()) {
    return absl::StrCat("'", extras.empty() ? "" : extras[0], "' is not expected here (", help,
                        ")");
  }
  const std::string name = option->substr(0, option->find('='));
  Words names;
  CollectNames(app, &names);
  CollectNames(root, &names);
  const std::string nearest = NearestWord(name, names);
  return absl::StrCat("unknown option '", name, "' (",
                      nearest.empty() ? help : absl::StrCat("did you mean '", nearest, "'?"), ")");
}

void AddGlobalOptions(CLI::App* app, GlobalFlags* flags) {
  app->add_option("--scheduler", flags->scheduler, "HOST:PORT or unix:/PATH (or RINGD_SCHEDULER)");
  app->add_option("--output", flags->output, "table or json");
  app->add_option("--config", flags->config, "configuration file (or RINGD_CONFIG)");
  app->add_flag("-v,--verbose", flags->verbose, "say more");
  app->set_version_flag("--version", absl::StrCat("ringctl ", kVersion));
}

std::unique_ptr<CLI::App> BuildApp(const std::vector<Group>& groups, const std::vector<Verb>& verbs,
                                   GlobalFlags* flags) {
  auto root = std::make_unique<CLI::App>("ringctl: run and watch distributed training", "ringctl");
  root->footer(kFooter);
  AddGlobalOptions(root.get(), flags);
  for (const Group& group : groups) root->add_subcommand(group.name, group.help)->fallthrough();
  for (const Verb& verb : verbs) {
    CLI::App* parent = verb.group.empty() ? root.get() : root->get_subcommand(verb.group);
    CLI::App* app = parent->add_subcommand(verb.name, verb.help)->fallthrough();
    if (!verb.examples.empty()) app->footer("Examples:\n" + verb.examples);
    if (verb.add_options) verb.add_options(app);
  }
  return root;
}

std::string Title(const Verb* verb) {
  if (verb == nullptr) return "ringctl";
  return absl::StrCat("ringctl ", verb->group, verb->group.empty() ? "" : " ", verb->name);
}

// The exit code if the command line is dealt with (help, errors); nullopt: go on.
std::optional<int> Parse(CLI::App* root, const Finder::Found& found) {
  const CLI::App* app = root;
  if (found.verb != nullptr) {
    if (!found.verb->group.empty()) app = FindApp(app, found.verb->group);
    app = FindApp(app, found.verb->name);
  }
  try {
    Words reversed(found.words.rbegin(), found.words.rend());
    root->parse(reversed);
  } catch (const CLI::Success& asked) {
    return root->exit(asked);
  } catch (const CLI::ParseError& error) {
    std::cerr << Title(found.verb) << ": " << Explain(error, root, app, Title(found.verb)) << "\n";
    return kExitBadInput;
  }
  if (found.verb != nullptr) return std::nullopt;
  const std::vector<CLI::App*> chosen = root->get_subcommands();
  std::cerr << (chosen.empty() ? root : chosen[0])->help();
  return kExitBadInput;
}

absl::StatusOr<int> Invoke(const Verb& verb, const GlobalFlags& flags, Words command,
                           const CLI::App* root) {
  Invocation invocation;
  RINGD_ASSIGN_OR_RETURN(invocation.settings, LoadSettings(flags));
  invocation.command = std::move(command);
  invocation.app = root;
  return verb.run(invocation);
}

}  // namespace

int RunCommandLine(const std::vector<Group>& groups, const std::vector<Verb>& verbs,
                   const Words& words) {
  GlobalFlags flags;
  const std::unique_ptr<CLI::App> root = BuildApp(groups, verbs, &flags);
  const absl::StatusOr<Finder::Found> found = Finder(root.get(), verbs).Find(words);
  if (!found.ok()) {
    std::cerr << "ringctl: " << found.status().message() << "\n";
    return kExitBadInput;
  }
  if (const std::optional<int> code = Parse(root.get(), *found)) return *code;
  const absl::StatusOr<int> code = Invoke(*found->verb, flags, found->command, root.get());
  std::cout.flush();
  if (code.ok()) return *code;
  std::cerr << "ringctl: " << code.status().message() << "\n";
  return ExitCodeOf(code.status());
}

}  // namespace ringd::cli
