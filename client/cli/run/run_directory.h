// The private directory of one embedded run, and the process that removes it if ringctl can't.
#ifndef RINGD_CLIENT_CLI_RUN_RUN_DIRECTORY_H_
#define RINGD_CLIENT_CLI_RUN_RUN_DIRECTORY_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace ringd::cli {

// A new 0700 directory in $XDG_RUNTIME_DIR or TMPDIR with a path short enough for the sockets in
// it. A forked caretaker waits for the end of this process; if that comes without the destructor
// (kill -9), it lets the processes that it was told of end, kills those that don't, and removes the
// directory.
//
// Life: Create while the process has one thread (it forks); the destructor removes the directory.
// Thread-compatible: external synchronisation.
class RunDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Create();
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Tells the caretaker of a process whose end it should see to.
  void Watch(pid_t pid);

 private:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  UniqueFd caretaker_line_;
  pid_t caretaker_ = 0;
};

// The directory that Create would make one in, for a given environment ("" where not set): the
// first that is a writable directory and short enough.
std::string RunDirectoryBase(const std::string& xdg_runtime_dir, const std::string& tmpdir);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_RUN_DIRECTORY_H_
