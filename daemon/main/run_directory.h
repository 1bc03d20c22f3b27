// The daemon's folders: made, checked and locked before anything else.
#ifndef RINGD_DAEMON_MAIN_RUN_DIRECTORY_H_
#define RINGD_DAEMON_MAIN_RUN_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "daemon/main/options.h"

namespace ringd::daemon {

// Makes run, log and state folders with what is below them. Returns the lock on the run directory:
// hold it while the daemon lives.
//   ALREADY_EXISTS       another daemon holds it: the message has its pid, the path and what to do
//   FAILED_PRECONDITION  a folder is another user's or open to others: named
absl::StatusOr<UniqueFd> SetUpDirectories(const Options& options);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MAIN_RUN_DIRECTORY_H_
