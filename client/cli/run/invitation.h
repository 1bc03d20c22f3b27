// How daemons on other machines join the private scheduler of one `ringctl run`.
#ifndef RINGD_CLIENT_CLI_RUN_INVITATION_H_
#define RINGD_CLIENT_CLI_RUN_INVITATION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ringd::cli {

// What one daemon needs, its secret key included: hand it to that machine alone.
struct Invitation {
  std::string scheduler;  // HOST:PORT
  std::string node;       // The name that its certificate says.
  int slots = 0;
  std::string authority;  // PEM, as the next two.
  std::string certificate;
  std::string key;

  // One line.
  std::string ToLine() const;
  // INVALID_ARGUMENT: not such a line.
  static absl::StatusOr<Invitation> Parse(const std::string& line);
  // Writes the PEM files into a folder. Flags of ringd and ringd-scheduler that name them.
  absl::StatusOr<std::vector<std::string>> WriteTo(const std::string& folder) const;
};

// For nodes "node-0", "node-1", ... with that many slots, by a new authority whose key nobody
// keeps. The last one is the scheduler's own. `host`: the scheduler's host, as the nodes reach it.
absl::StatusOr<std::vector<Invitation>> Invite(const std::string& host, int port,
                                               const std::vector<int>& slots);

std::string InvitedNodeName(size_t index);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_INVITATION_H_
