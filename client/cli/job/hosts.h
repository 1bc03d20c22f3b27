// The lists of nodes that --hosts and --hostfile take.
#ifndef RINGD_CLIENT_CLI_JOB_HOSTS_H_
#define RINGD_CLIENT_CLI_JOB_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ringd::cli {

struct Host {
  std::string node;
  int slots = -1;  // -1: all that the node has.

  friend bool operator==(const Host&, const Host&) = default;
};

// "A:2,B:2"; "A" alone: all its slots. INVALID_ARGUMENT names the word and says what is right: no
// name, no count, a node named twice, an empty list.
absl::StatusOr<std::vector<Host>> ParseHosts(const std::string& text);

// A host file's content: a node a line as "A", "A:2" or "A slots=2"; "#" begins a comment. `path`
// is for messages.
absl::StatusOr<std::vector<Host>> ParseHostFile(const std::string& content,
                                                const std::string& path);

// INVALID_ARGUMENT: missing, unreadable or empty.
absl::StatusOr<std::vector<Host>> ReadHostFile(const std::string& path);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_JOB_HOSTS_H_
