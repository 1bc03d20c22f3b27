#include "client/cli/job/hosts.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

// More slots than any machine has cores.
constexpr int kMaxSlots = 65536;

absl::StatusOr<int> ParseCount(absl::string_view text, const std::string& context) {
  int slots = 0;
  if (!absl::SimpleAtoi(text, &slots) || slots < 0 || slots > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrCat(
        context, ": '", text, "' is no count of slots; write NODE:COUNT, as in A:2,B:2"));
  }
  return slots;
}

absl::StatusOr<Host> ParseHost(absl::string_view word, const std::string& context) {
  const size_t colon = word.find(':');
  Host host{.node = std::string(word.substr(0, colon))};
  if (host.node.empty() || host.node.find_first_of(" \t=") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(context, ": '", word, "' names no node; write NODE:COUNT, as in A:2,B:2"));
  }
  if (colon != absl::string_view::npos) {
    RINGD_ASSIGN_OR_RETURN(host.slots, ParseCount(word.substr(colon + 1), context));
  }
  return host;
}

absl::Status CheckDistinct(const std::vector<Host>& hosts, const std::string& context) {
  std::set<std::string> seen;
  for (const Host& host : hosts) {
    if (!seen.insert(host.node).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          context, ": node ", host.node, " is there twice; name it once with all its slots"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Host>> ParseHosts(const std::string& text) {
  const std::string context = absl::StrCat("--hosts ", text);
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError("--hosts is empty; write NODE:COUNT, as in A:2,B:2");
  }
  std::vector<Host> hosts;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    RINGD_ASSIGN_OR_RETURN(Host host, ParseHost(absl::StripAsciiWhitespace(word), context));
    hosts.push_back(std::move(host));
  }
  RINGD_RETURN_IF_ERROR(CheckDistinct(hosts, context));
  return hosts;
}

absl::StatusOr<std::vector<Host>> ParseHostFile(const std::string& content,
                                                const std::string& path) {
  std::vector<Host> hosts;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    const std::string context = absl::StrCat("--hostfile ", path, ":", ++number);
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    RINGD_ASSIGN_OR_RETURN(Host host, ParseHost(words[0], context));
    for (size_t i = 1; i < words.size(); ++i) {
      absl::string_view count = words[i];
      if (!absl::ConsumePrefix(&count, "slots=")) {
        return absl::InvalidArgumentError(
            absl::StrCat(context, ": '", words[i],
                         "' is not understood; a line is NODE, NODE:2 or NODE slots=2"));
      }
      RINGD_ASSIGN_OR_RETURN(host.slots, ParseCount(count, context));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hostfile ", path, ": names no node; write a line for each, as NODE:2"));
  }
  RINGD_RETURN_IF_ERROR(CheckDistinct(hosts, absl::StrCat("--hostfile ", path)));
  return hosts;
}

absl::StatusOr<std::vector<Host>> ReadHostFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  if (!file || (file.peek() != std::ifstream::traits_type::eof() && !(content << file.rdbuf()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hostfile ", path, ": can't read: ", strerror(errno)));
  }
  return ParseHostFile(content.str(), path);
}

}  // namespace ringd::cli
