// spdlog, one named logger a room. Lower-case event, then key=value ids:  log->info("job started
// job={} ranks={}", ...).
#ifndef RINGD_COMMON_LOG_LOG_H_
#define RINGD_COMMON_LOG_LOG_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace ringd {

// The logger of a room ("engine", "session", "scheduler", ...): made on first use, writes to
// stderr, one line a message:
//   2026-01-31T12:00:00.123Z info  engine  ring formed job=j-1 generation=1
// Thread-safe.
std::shared_ptr<spdlog::logger> GetLogger(const std::string& room);

// "trace", "debug", "info", "warning", "error", "off"; also "info,engine=debug". For existing and
// later loggers. INVALID_ARGUMENT names the word that is none of these.
absl::Status SetLogLevels(const std::string& levels);

}  // namespace ringd

#endif  // RINGD_COMMON_LOG_LOG_H_
