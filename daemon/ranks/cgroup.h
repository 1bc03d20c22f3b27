// A control group for each rank, where the host lets us make one: what is left of a rank can then
// be killed whole.
#ifndef RINGD_DAEMON_RANKS_CGROUP_H_
#define RINGD_DAEMON_RANKS_CGROUP_H_

#include <string>

#include "absl/status/statusor.h"

namespace ringd::daemon {

// A directory below which this process may make groups: its own group in the v1 hierarchy of the
// memory controller (what a rank takes can then be told, and who was killed for it), else in the v2
// tree (delegated by systemd, or root), else in another v1 hierarchy.  FAILED_PRECONDITION says why
// there is none.
absl::StatusOr<std::string> FindCgroupParent();

// Makes the group (or takes it over).
absl::StatusOr<std::string> MakeCgroup(const std::string& parent, const std::string& name);

// Removes empty groups of ranks that daemons before us, of whatever run directory, had no time to
// remove.
void RemoveOldCgroups(const std::string& parent);

// SIGKILL to all members, and tries to remove it. Returns whether it is gone; call again until it
// is.
bool KillCgroup(const std::string& directory);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_RANKS_CGROUP_H_
