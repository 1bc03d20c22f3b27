#include "common/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/version.h"
#include "common/status/macros.h"
#define TOML_EXCEPTIONS 0
#include "toml++/toml.h"

namespace ringd {
namespace {

// Sections of ringd.toml: each program reads its own and leaves the others alone.
constexpr const char* kPrograms[] = {"ringd", "ringd-scheduler", "ringctl"};

std::string Quote(const std::string& text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
}

std::string FlagName(const std::string& key) {
  return absl::StrCat("--", absl::StrReplaceAll(key, {{"_", "-"}}));
}

std::string EnvironmentName(const std::string& key) {
  return absl::StrCat("RINGD_", absl::AsciiStrToUpper(key));
}

absl::Status WithContext(absl::string_view context, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

// The text that a TOML value stands for; arrays are handled by the caller.
absl::StatusOr<std::string> ScalarText(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return absl::StrCat(number->get());
  if (const auto* number = node.as_floating_point()) return absl::StrCat(number->get());
  if (const auto* flag = node.as_boolean()) return std::string(flag->get() ? "true" : "false");
  return absl::InvalidArgumentError("must be a string, a number or true/false");
}

bool IsEmptyLiteral(const std::string& toml) { return toml == "\"\"" || toml == "[]"; }

bool IsProgram(const std::string& key) {
  return std::find(std::begin(kPrograms), std::end(kPrograms), key) != std::end(kPrograms);
}

}  // namespace

Config::Config(std::string program) : program_(std::move(program)) {}

void Config::Add(const std::string& key, std::string* value, const std::string& help) {
  options_.push_back({key, help, false, false,
                      [value](const std::string& text, bool) {
                        *value = text;
                        return absl::OkStatus();
                      },
                      [value] { return Quote(*value); }});
}

void Config::Add(const std::string& key, int* value, const std::string& help) {
  options_.push_back({key, help, false, false,
                      [value](const std::string& text, bool) {
                        if (absl::SimpleAtoi(text, value)) return absl::OkStatus();
                        return absl::InvalidArgumentError(
                            absl::StrCat("'", text, "' is not a whole number"));
                      },
                      [value] { return absl::StrCat(*value); }});
}

void Config::Add(const std::string& key, int64_t* value, const std::string& help) {
  options_.push_back({key, help, false, false,
                      [value](const std::string& text, bool) {
                        RINGD_ASSIGN_OR_RETURN(*value, ParseBytes(text));
                        return absl::OkStatus();
                      },
                      [value] { return absl::StrCat(*value); }});
}

void Config::Add(const std::string& key, bool* value, const std::string& help) {
  options_.push_back({key, help, true, false,
                      [value](const std::string& text, bool) {
                        if (absl::SimpleAtob(text, value)) return absl::OkStatus();
                        return absl::InvalidArgumentError(
                            absl::StrCat("'", text, "' is not true or false"));
                      },
                      [value] { return std::string(*value ? "true" : "false"); }});
}

void Config::Add(const std::string& key, absl::Duration* value, const std::string& help) {
  options_.push_back({key, help, false, false,
                      [value](const std::string& text, bool) {
                        RINGD_ASSIGN_OR_RETURN(*value, ParseDuration(text));
                        return absl::OkStatus();
                      },
                      [value] { return Quote(absl::FormatDuration(*value)); }});
}

void Config::Add(const std::string& key, std::vector<std::string>* value, const std::string& help) {
  options_.push_back({key, help, false, true,
                      [value](const std::string& text, bool append) {
                        if (!append) value->clear();
                        value->push_back(text);
                        return absl::OkStatus();
                      },
                      [value] {
                        return absl::StrCat(
                            "[",
                            absl::StrJoin(*value, ", ",
                                          [](std::string* out, const std::string& item) {
                                            absl::StrAppend(out, Quote(item));
                                          }),
                            "]");
                      }});
}

Config::Option* Config::Find(const std::string& key) {
  for (Option& option : options_) {
    if (option.key == key) return &option;
  }
  return nullptr;
}

absl::Status Config::SetFromToml(Option* option, const std::string& path,
                                 const void* node_pointer) {
  const auto& node = *static_cast<const toml::node*>(node_pointer);
  const std::string context = absl::StrCat(path, ": key '", option->key, "'");
  option->source = path;
  const auto* array = node.as_array();
  if (array == nullptr) {
    auto text = ScalarText(node);
    if (!text.ok()) return WithContext(context, text.status());
    const absl::Status status = option->set(*text, false);
    return status.ok() ? status : WithContext(context, status);
  }
  if (!option->repeatable)
    return absl::InvalidArgumentError(absl::StrCat(context, ": takes one value, not a list"));
  bool append = false;
  for (const toml::node& item : *array) {
    auto text = ScalarText(item);
    if (!text.ok()) return WithContext(context, text.status());
    const absl::Status status = option->set(*text, append);
    if (!status.ok()) return WithContext(context, status);
    append = true;
  }
  return absl::OkStatus();
}

absl::Status Config::UnknownKey(const std::string& where, const std::string& what,
                                const std::string& key) const {
  std::vector<std::string> keys;
  for (const Option& option : options_) keys.push_back(option.key);
  const std::string nearest = NearestWord(key, keys);
  const bool is_flag = absl::StartsWith(what, "option");
  const std::string hint =
      nearest.empty()
          ? (is_flag ? "see --help" : absl::StrCat("'", program_, " --help' lists the keys"))
          : absl::StrCat("did you mean '", is_flag ? FlagName(nearest) : nearest, "'?");
  return absl::InvalidArgumentError(absl::StrCat(where, where.empty() ? "" : ": ", "unknown ", what,
                                                 " '", is_flag ? FlagName(key) : key, "' (", hint,
                                                 ")"));
}

absl::Status Config::ReadFile(const std::string& path) {
  const toml::parse_result result = toml::parse_file(path);
  if (!result) {
    std::ostringstream text;
    text << path << ":" << result.error().source().begin.line << ": "
         << result.error().description();
    return absl::InvalidArgumentError(text.str());
  }
  const toml::table& file = result.table();
  const auto read_table = [&](const toml::table& table, bool top) -> absl::Status {
    for (const auto& [toml_key, node] : table) {
      const std::string key(toml_key.str());
      if (top && IsProgram(key) && node.is_table()) continue;
      Option* option = Find(key);
      if (option == nullptr) return UnknownKey(path, "key", key);
      RINGD_RETURN_IF_ERROR(SetFromToml(option, path, &node));
    }
    return absl::OkStatus();
  };
  RINGD_RETURN_IF_ERROR(read_table(file, true));
  if (const toml::table* section = file[program_].as_table()) return read_table(*section, false);
  return absl::OkStatus();
}

absl::Status Config::ReadEnvironment() {
  for (Option& option : options_) {
    const std::string name = EnvironmentName(option.key);
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) continue;
    option.source = name;
    const absl::Status status = option.set(value, false);
    if (!status.ok()) return WithContext(name, status);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Config::ReadFlags(const std::vector<std::string>& words) {
  size_t i = 0;
  for (; i < words.size() && absl::StartsWith(words[i], "-"); ++i) {
    if (words[i] == "--") {
      ++i;
      break;
    }
    const size_t equals = words[i].find('=');
    const std::string flag = words[i].substr(0, equals);
    const std::string key =
        absl::StrReplaceAll(flag.substr(std::min<size_t>(2, flag.size())), {{"-", "_"}});
    Option* option = absl::StartsWith(flag, "--") ? Find(key) : nullptr;
    if (option == nullptr) return UnknownKey("", "option", key.empty() ? flag : key);
    std::string value = "true";
    if (equals != std::string::npos) {
      value = words[i].substr(equals + 1);
    } else if (!option->is_flag) {
      if (i + 1 == words.size()) {
        return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value"));
      }
      value = words[++i];
    }
    const bool append = option->source == "flag";
    option->source = "flag";
    const absl::Status status = option->set(value, append);
    if (!status.ok()) return WithContext(flag, status);
  }
  return std::vector<std::string>(words.begin() + static_cast<ptrdiff_t>(i), words.end());
}

absl::StatusOr<std::vector<std::string>> Config::Parse(int argc, const char* const* argv,
                                                       const std::string& default_file,
                                                       std::string* output) {
  std::vector<std::string> words;
  const char* from_environment = std::getenv("RINGD_CONFIG");
  std::string file = from_environment != nullptr ? from_environment : "";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      words.insert(words.end(), argv + i, argv + argc);
      break;
    }
    if (word == "--help" || word == "-h") {
      *output = Help();
      return absl::CancelledError("help");
    }
    if (word == "--version") {
      *output = absl::StrCat(program_, " ", kVersion, "\n");
      return absl::CancelledError("version");
    }
    if (word == "--config") {
      if (++i == argc) return absl::InvalidArgumentError("--config needs a file");
      file = argv[i];
    } else if (absl::StartsWith(word, "--config=")) {
      file = word.substr(std::string("--config=").size());
    } else {
      words.push_back(word);
    }
  }
  if (!file.empty() && access(file.c_str(), R_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": can't read this configuration file"));
  }
  if (file.empty() && access(default_file.c_str(), R_OK) == 0) file = default_file;
  if (!file.empty()) RINGD_RETURN_IF_ERROR(ReadFile(file));
  RINGD_RETURN_IF_ERROR(ReadEnvironment());
  return ReadFlags(words);
}

std::string Config::Dump() const {
  std::string text = absl::StrCat("[", program_, "]\n");
  for (const Option& option : options_) {
    absl::StrAppend(&text, option.key, " = ", option.get(), "  # ", option.source, "\n");
  }
  return text;
}

std::string Config::Help() const {
  std::string text = absl::StrCat("Usage: ", program_,
                                  " [options]\n\nOptions (also keys of the configuration file, "
                                  "with _ for -, and RINGD_KEY in the environment):\n");
  for (const Option& option : options_) {
    const std::string value = option.get();
    absl::StrAppend(&text, "  ", FlagName(option.key), option.is_flag ? "" : " VALUE",
                    option.repeatable ? " ..." : "", "\n        ", option.help,
                    IsEmptyLiteral(value) ? "" : absl::StrCat(" [", value, "]"), "\n");
  }
  absl::StrAppend(
      &text,
      "  --config FILE\n        configuration file (or RINGD_CONFIG)\n  --version, --help\n");
  return text;
}

}  // namespace ringd
