// Who may connect to a socket of a shared daemon that users' workers need.
#ifndef RINGD_DAEMON_MAIN_SOCKET_ACCESS_H_
#define RINGD_DAEMON_MAIN_SOCKET_ACCESS_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"

namespace ringd::daemon {

// Opens the socket for its owner and these users, and for nobody else: by its access control list,
// so that its mode reads 0660 (0600 without users). UNAVAILABLE: the file system has no such lists,
// or this one would be too long; NOT_FOUND: there is no socket.
absl::Status GrantSocket(const std::string& path, const std::set<uint32_t>& users);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MAIN_SOCKET_ACCESS_H_
