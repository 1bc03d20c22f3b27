// Texts about jobs: tables, JSON, the report of a failure, and the exit code that follows from it.
#ifndef RINGD_CLIENT_CLI_OUTPUT_REPORT_H_
#define RINGD_CLIENT_CLI_OUTPUT_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "proto/cluster.pb.h"

namespace ringd::cli {

// 2: the user can put it right (bad input, no such job, no scheduler); 1: anything else.
int ExitCodeOf(const absl::Status& status);

// Of a job that has ended: 0, the first failing rank's (128 + signal), 143 cancelled or preempted,
// 124 deadline, 2 refused before it started.
int ExitCodeOf(const ringd::cluster::v1::Job& job);

// "succeeded", "failed", "cancelled", "preempted" are final.
bool IsFinal(ringd::cluster::v1::JobState state);
// "queued", "placing", ...
std::string StateName(ringd::cluster::v1::JobState state);

// "queued: needs 5 slots, cluster has 4": the state, and the reason if there is one.
std::string StateSentence(const ringd::cluster::v1::Job& job);

// "KILL", "SIGKILL", "kill" and "9" are 9. INVALID_ARGUMENT says what is right.
absl::StatusOr<int> ParseSignal(const std::string& text);

// What ringctl says on standard error about a job that ended otherwise than well; "" for one that
// succeeded. First line: rank, node, exit code or signal, and last stderr line of the first
// failure; then that rank's last lines, then which ranks followed.
std::string FailureReport(const ringd::cluster::v1::Job& job);

// Rows under headers, in columns; one line each.
std::string Table(const std::vector<std::string>& headers,
                  const std::vector<std::vector<std::string>>& rows);

// Field names are a contract (`--output json`).
nlohmann::ordered_json ListJson(const std::vector<ringd::cluster::v1::Job>& jobs);
nlohmann::ordered_json DescribeJson(const ringd::cluster::v1::Job& job);
nlohmann::ordered_json NodesJson(const std::vector<ringd::cluster::v1::NodeState>& nodes);
// Indented, with a line's end; bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json);

std::string ListTable(const std::vector<ringd::cluster::v1::Job>& jobs);
std::string DescribeText(const ringd::cluster::v1::Job& job);
std::string NodesTable(const std::vector<ringd::cluster::v1::NodeState>& nodes);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_OUTPUT_REPORT_H_
