#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/output/report.h"
#include "common/process/exit_text.h"

namespace ringd::cli {

using namespace ringd::cluster::v1;  // NOLINT: one proto package's names, in a .cc.
using nlohmann::ordered_json;

namespace {

constexpr int kJsonIndent = 2;

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ",
                          absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos()),
                          absl::UTCTimeZone());
}

ordered_json TimeJson(bool present, const google::protobuf::Timestamp& time) {
  return present ? ordered_json(TimeText(time)) : ordered_json(nullptr);
}

// Width on a terminal, near enough: characters, not bytes.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string HowRankEnded(const Rank& rank) {
  if (rank.signal() != 0) return SignalName(rank.signal());
  if (rank.state() == "pending" || rank.state() == "running") return "-";
  return absl::StrCat(rank.exit_code());
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

}  // namespace

std::string Table(const std::vector<std::string>& headers,
                  const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::string& header : headers) widths.push_back(Width(header));
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&text, row[i]);
      if (i + 1 < row.size()) text.append(widths[i] - Width(row[i]) + 2, ' ');
    }
    absl::StrAppend(&text, "\n");
  };
  append(headers);
  for (const auto& row : rows) append(row);
  return text;
}

ordered_json ListJson(const std::vector<Job>& jobs) {
  ordered_json rows = ordered_json::array();
  for (const Job& job : jobs) {
    rows.push_back({{"id", job.id()},
                    {"name", job.name()},
                    {"state", StateName(job.state())},
                    {"reason", job.reason()},
                    {"ranks", job.ranks()},
                    {"user", job.user()}});
  }
  return rows;
}

ordered_json DescribeJson(const Job& job) {
  ordered_json ranks = ordered_json::array();
  for (const Rank& rank : job.rank()) {
    ranks.push_back({{"rank", rank.rank()},
                     {"local_rank", rank.local_rank()},
                     {"node", rank.node()},
                     {"pid", rank.pid()},
                     {"state", rank.state()},
                     {"exit_code", rank.exit_code()},
                     {"signal", rank.signal()},
                     {"reason", rank.reason()},
                     {"worker_pid", rank.worker_pid()},
                     {"log", rank.log_path()}});
  }
  ordered_json json = {
      {"id", job.id()},
      {"name", job.name()},
      {"state", StateName(job.state())},
      {"reason", job.reason()},
      {"generation", job.generation()},
      {"ranks", std::move(ranks)},
      {"created", TimeJson(job.has_created(), job.created())},
      {"started", TimeJson(job.has_started(), job.started())},
      {"finished", TimeJson(job.has_finished(), job.finished())},
      {"restarts", job.restarts()},
      {"user", job.user()},
      {"command", std::vector<std::string>(job.command().begin(), job.command().end())}};
  json["exit_code"] = IsFinal(job.state()) ? ordered_json(ExitCodeOf(job)) : ordered_json(nullptr);
  return json;
}

ordered_json NodesJson(const std::vector<NodeState>& nodes) {
  ordered_json rows = ordered_json::array();
  for (const NodeState& node : nodes) {
    rows.push_back({{"name", node.name()},
                    {"state", node.state()},
                    {"slots", node.slots()},
                    {"used", node.used()},
                    {"reason", node.reason()},
                    {"until", TimeJson(node.has_until(), node.until())},
                    {"address", node.data_address()},
                    {"version", node.version()}});
  }
  return rows;
}

std::string JsonText(const ordered_json& json) {
  return json.dump(kJsonIndent, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string ListTable(const std::vector<Job>& jobs) {
  std::vector<std::vector<std::string>> rows;
  for (const Job& job : jobs) {
    rows.push_back({job.id(), OrDash(job.name()), StateName(job.state()), absl::StrCat(job.ranks()),
                    OrDash(job.user()), OrDash(job.reason())});
  }
  return Table({"ID", "NAME", "STATE", "RANKS", "USER", "REASON"}, rows);
}

std::string DescribeText(const Job& job) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"job", job.id()},
      {"name", OrDash(job.name())},
      {"state", StateName(job.state())},
      {"reason", OrDash(job.reason())},
      {"command", absl::StrJoin(job.command(), " ")},
      {"user", OrDash(job.user())},
      {"generation", absl::StrCat(job.generation())},
      {"restarts", absl::StrCat(job.restarts())},
      {"created", job.has_created() ? TimeText(job.created()) : "-"},
      {"started", job.has_started() ? TimeText(job.started()) : "-"},
      {"finished", job.has_finished() ? TimeText(job.finished()) : "-"}};
  if (IsFinal(job.state())) fields.emplace_back("exit code", absl::StrCat(ExitCodeOf(job)));
  std::string text;
  constexpr size_t kLabelWidth = 12;
  for (const auto& [label, value] : fields) {
    absl::StrAppend(&text, label, std::string(kLabelWidth - label.size(), ' '), value, "\n");
  }
  if (job.rank().empty()) return text;
  std::vector<std::vector<std::string>> rows;
  for (const Rank& rank : job.rank()) {
    rows.push_back({absl::StrCat(rank.rank()), absl::StrCat(rank.local_rank()), OrDash(rank.node()),
                    rank.pid() == 0 ? "-" : absl::StrCat(rank.pid()), rank.state(),
                    HowRankEnded(rank), OrDash(rank.reason()), OrDash(rank.log_path())});
  }
  return absl::StrCat(
      text, "\n", Table({"RANK", "LOCAL", "NODE", "PID", "STATE", "EXIT", "REASON", "LOG"}, rows));
}

std::string NodesTable(const std::vector<NodeState>& nodes) {
  std::vector<std::vector<std::string>> rows;
  for (const NodeState& node : nodes) {
    rows.push_back({node.name(), node.state(), absl::StrCat(node.slots()),
                    absl::StrCat(node.used()), OrDash(node.data_address()), OrDash(node.version()),
                    OrDash(node.reason()), node.has_until() ? TimeText(node.until()) : "-"});
  }
  return Table({"NAME", "STATE", "SLOTS", "USED", "ADDRESS", "VERSION", "REASON", "UNTIL"}, rows);
}

}  // namespace ringd::cli
