#include "client/cli/bench/bench_rows.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ringd::cli {

using nlohmann::ordered_json;

namespace {

constexpr char kRowFormat[] = "%-13s  %12s  %-14s  %12s  %12s  %10s  %10s  %10s  %8s\n";

std::string Header() {
  return absl::StrFormat(kRowFormat, "OPERATION", "BYTES", "IMPLEMENTATION", "MEDIAN US", "P99 US",
                         "ALGBW GB/S", "BUSBW GB/S", "LIMIT GB/S", "OF LIMIT");
}

std::string Line(const ordered_json& row) {
  const auto number = [&](const char* key, int digits) {
    return absl::StrFormat("%.*f", digits, row.at(key).get<double>());
  };
  std::string limit = "-", share = "-";
  if (!row.at("limit_gbps").is_null()) {
    limit = number("limit_gbps", 3);
    const double whole = row.at("limit_gbps").get<double>();
    share = absl::StrFormat("%.0f %%", 100 * row.at("algbw_gbps").get<double>() / whole);
  }
  return absl::StrFormat(kRowFormat, row.at("operation").get<std::string>(),
                         absl::StrCat(row.at("bytes").get<int64_t>()),
                         row.at("implementation").get<std::string>(), number("median_us", 2),
                         number("p99_us", 2), number("algbw_gbps", 3), number("busbw_gbps", 3),
                         limit, share);
}

}  // namespace

BenchRows::Text BenchRows::Add(const std::string& data) {
  Text text;
  held_ += data;
  for (size_t end = held_.find('\n'); end != std::string::npos; end = held_.find('\n')) {
    AddLine(held_.substr(0, end), &text);
    held_.erase(0, end + 1);
  }
  return text;
}

void BenchRows::AddLine(const std::string& line, Text* text) {
  // Libraries that are measured print, too.
  const auto json = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  try {
    if (json.contains("note")) {
      absl::StrAppend(&text->notes, json.at("note").get<std::string>(), "\n");
    }
    if (json.contains("row")) {
      const std::string shown = Line(json.at("row"));
      absl::StrAppend(&text->out, rows_.empty() ? Header() : "", shown);
      rows_.push_back(json.at("row"));
    }
  } catch (const ordered_json::exception&) {
    absl::StrAppend(&text->notes, "not understood: ", line, "\n");
  }
}

}  // namespace ringd::cli
