// A program beside ringctl that lives no longer than ringctl does.
#ifndef RINGD_CLIENT_CLI_RUN_BOUND_PROCESS_H_
#define RINGD_CLIENT_CLI_RUN_BOUND_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/run/run_directory.h"
#include "common/base/fd.h"
#include "common/process/process.h"

namespace ringd::cli {

// The write end of a pipe whose read end such programs hold (--lifeline-fd).
struct Lifeline {
  static absl::StatusOr<Lifeline> Create();

  UniqueFd held;
  UniqueFd end;  // For the children.
};

// The process, in a session of its own, with its log in the run directory.
//
// Life: Start; the destructor kills what has not ended within 10 s (close the lifeline before).
// Thread-compatible: external synchronisation.
class BoundProcess {
 public:
  // arguments: without --lifeline-fd. NOT_FOUND: the program is missing.
  static absl::StatusOr<std::unique_ptr<BoundProcess>> Start(const std::string& name,
                                                             std::vector<std::string> arguments,
                                                             const Lifeline& lifeline,
                                                             RunDirectory* directory);
  ~BoundProcess();

  const Child& child() const { return child_; }
  bool HasEnded() const;
  // INTERNAL: it has ended.
  absl::Status CheckHealth() const;
  // INTERNAL: "NAME WHAT; the end of its log: ...".
  absl::Status Failure(const std::string& what) const;

 private:
  BoundProcess(std::string name, std::string log, Child child)
      : name_(std::move(name)), log_(std::move(log)), child_(std::move(child)) {}

  const std::string name_;
  const std::string log_;
  const Child child_;
};

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_BOUND_PROCESS_H_
