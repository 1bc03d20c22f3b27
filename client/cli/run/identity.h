// Who the user is, for a scheduler that can't ask the kernel.
#ifndef RINGD_CLIENT_CLI_RUN_IDENTITY_H_
#define RINGD_CLIENT_CLI_RUN_IDENTITY_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"

namespace ringd::cli {

// This node, as its daemon at `daemon_socket` (a path) says that it serves the caller. UNAVAILABLE:
// no daemon answers there; PERMISSION_DENIED: it doesn't serve this user; FAILED_PRECONDITION: it
// is of another version.
absl::StatusOr<std::string> FindNode(const std::string& daemon_socket);

// Has the daemon at `daemon_socket` (a path) sign the caller's identity with a fresh nonce.
// UNAVAILABLE: no daemon answers there; FAILED_PRECONDITION: it is of another version, or has no
// key.
absl::StatusOr<ringd::cluster::v1::Identity> SignIdentity(const std::string& daemon_socket);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_RUN_IDENTITY_H_
