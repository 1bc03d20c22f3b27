#include "client/cli/job/environment.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ringd::cli {
namespace {

constexpr const char* kNames[] = {"PATH",   "HOME",        "USER",       "LANG",           "TZ",
                                  "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH"};
constexpr const char* kPrefixes[] = {"LC_",   "CONDA_", "OMP_", "MKL_", "CUDA_",
                                     "NCCL_", "TORCH_", "XLA_", "HF_",  "WANDB_"};
// Of the shell or of ringctl itself: nobody misses them in a rank.
constexpr const char* kUninteresting[] = {"_",     "SHLVL", "PWD",    "OLDPWD",
                                          "SHELL", "TERM",  "LOGNAME"};

template <size_t n>
bool IsAmong(const char* const (&names)[n], const std::string& name) {
  return std::any_of(std::begin(names), std::end(names),
                     [&](const char* candidate) { return name == candidate; });
}

bool IsUninteresting(const std::string& name) {
  return IsAmong(kUninteresting, name) || absl::StartsWith(name, "RINGD_");
}

// Length of the well-formed UTF-8 sequence at text[i], 0 if there is none.
size_t Utf8Length(const std::string& text, size_t i) {
  const auto byte = [&](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
  };
  const auto is_tail = [&](size_t at) { return (byte(at) & 0xC0u) == 0x80u; };
  const unsigned first = byte(i);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return is_tail(i + 1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(i + 1) < 0xA0;
    const bool surrogate = first == 0xED && byte(i + 1) > 0x9F;
    return is_tail(i + 1) && is_tail(i + 2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(i + 1) < 0x90;
    const bool too_high = first == 0xF4 && byte(i + 1) > 0x8F;
    return is_tail(i + 1) && is_tail(i + 2) && is_tail(i + 3) && !overlong && !too_high ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool IsUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

Variables CurrentEnvironment() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

bool IsPassedUnasked(const std::string& name) {
  return IsAmong(kNames, name) || absl::EndsWith(name, "_proxy") ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](const char* prefix) { return absl::StartsWith(name, prefix); });
}

absl::StatusOr<EnvironmentChoice> ChooseEnvironment(const Variables& environment,
                                                    const EnvironmentRequest& request) {
  EnvironmentChoice choice;
  for (const auto& [name, value] : environment) {
    const bool carried = IsUtf8(name) && IsUtf8(value);
    if (carried && (request.all || IsPassedUnasked(name))) choice.passed[name] = value;
  }
  for (const std::string& word : request.env) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env '", word, "' has no name; write NAME or NAME=VALUE"));
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (const auto it = environment.find(name); it != environment.end()) {
      value = it->second;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "--env ", name, ": no such variable in this environment; export it or write --env ", name,
          "=VALUE"));
    }
    if (!IsUtf8(name) || !IsUtf8(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env ", name, ": the value is not UTF-8 text"));
    }
    choice.passed[name] = value;
  }
  for (const auto& [name, value] : environment) {
    if (choice.passed.count(name) == 0 && !IsUninteresting(name) && IsUtf8(name)) {
      choice.left_out.push_back(name);
    }
  }
  return choice;
}

}  // namespace ringd::cli
