#include "client/cli/completion.h"

#include "absl/strings/str_cat.h"

namespace ringd::cli {
namespace {

std::string WordsOf(const CLI::App& app) {
  std::string words;
  for (const CLI::App* inner : app.get_subcommands(nullptr))
    absl::StrAppend(&words, inner->get_name(), " ");
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) absl::StrAppend(&words, "--", name, " ");
  }
  return words;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::string cases;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    absl::StrAppend(&cases, "    '", verb->get_name(), " ') words='", WordsOf(*verb), "' ;;\n");
    for (const CLI::App* inner : verb->get_subcommands(nullptr)) {
      absl::StrAppend(&cases, "    '", verb->get_name(), " ", inner->get_name(), " ') words='",
                      WordsOf(*inner), "' ;;\n");
    }
  }
  return absl::StrCat(
      "# source <(ringctl completion bash)\n"
      "_ringctl() {\n"
      "  local i verb= words= current=${COMP_WORDS[COMP_CWORD]}\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n"
      "      --) compopt -o bashdefault -o default; return ;;\n"
      "      -*) ;;\n"
      "      *) verb+=\"${COMP_WORDS[i]} \" ;;\n"
      "    esac\n"
      "  done\n"
      "  case $verb in\n"
      "    '') words='",
      WordsOf(app), "' ;;\n", cases,
      "    *) compopt -o bashdefault -o default; return ;;\n"
      "  esac\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
      "}\n"
      "complete -F _ringctl ringctl\n");
}

}  // namespace ringd::cli
