// Operations with a root, by way of those without.
#ifndef RINGD_DAEMON_COLLECTIVES_ROOTED_H_
#define RINGD_DAEMON_COLLECTIVES_ROOTED_H_

#include <memory>

#include "daemon/collectives/communicator.h"

namespace ringd::daemon {

// The same operation on the same buffers, in a group of `size` ranks: reduce is a reducescatter
// whose root gets everything, gather and scatter are alltoalls where only the root receives or
// sends. Others are returned as they are.
std::shared_ptr<const Collective> WithoutRoot(std::shared_ptr<const Collective> collective,
                                              int size);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_ROOTED_H_
