// The embedded store: one SQLite file (WAL, synchronous=FULL) in the state directory.
#ifndef RINGD_SCHEDULER_STORE_SQLITE_STORE_H_
#define RINGD_SCHEDULER_STORE_SQLITE_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/store/store.h"

namespace ringd::scheduler {

// Opens DIRECTORY/scheduler.db, made where missing (directory 0700, files 0600: specs hold users'
// environments).
//   INVALID_ARGUMENT  the directory can't be made or used, is another user's, or the file is no
//   store of this version ALREADY_EXISTS    another scheduler uses the directory; the message says
//   which pid
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& directory);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STORE_SQLITE_STORE_H_
