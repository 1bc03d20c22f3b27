#include "common/log/log.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace ringd {
namespace {

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%eZ %-5l %-10n %v";

absl::StatusOr<spdlog::level::level_enum> ParseLevel(const std::string& word) {
  static constexpr std::pair<const char*, spdlog::level::level_enum> kLevels[] = {
      {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},   {"warning", spdlog::level::warn},
      {"error", spdlog::level::err},   {"off", spdlog::level::off}};
  for (const auto& [name, level] : kLevels) {
    if (word == name) return level;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("log level '", word, "' is none of trace, debug, info, warning, error, off"));
}

}  // namespace

std::shared_ptr<spdlog::logger> GetLogger(const std::string& room) {
  static const auto& sink = *new std::shared_ptr<spdlog::sinks::stderr_sink_mt>(
      std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (auto existing = spdlog::get(room)) return existing;
  auto logger = std::make_shared<spdlog::logger>(room, sink);
  logger->flush_on(spdlog::level::trace);
  try {
    spdlog::initialize_logger(logger);  // Applies the levels set so far.
  } catch (const spdlog::spdlog_ex&) {  // Another thread was first.
    if (auto existing = spdlog::get(room)) return existing;
  }
  // After initialize_logger, which sets a formatter of its own.
  logger->set_formatter(
      std::make_unique<spdlog::pattern_formatter>(kPattern, spdlog::pattern_time_type::utc));
  return logger;
}

absl::Status SetLogLevels(const std::string& levels) {
  auto global = spdlog::level::info;
  std::vector<std::pair<std::string, spdlog::level::level_enum>> rooms;
  for (const absl::string_view part : absl::StrSplit(levels, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> words = absl::StrSplit(part, absl::MaxSplits('=', 1));
    auto level = ParseLevel(words.back());
    if (!level.ok()) return level.status();
    if (words.size() == 1) {
      global = *level;
    } else {
      rooms.emplace_back(words[0], *level);
    }
  }
  spdlog::set_level(global);
  for (const auto& [room, level] : rooms) GetLogger(room)->set_level(level);
  return absl::OkStatus();
}

}  // namespace ringd
