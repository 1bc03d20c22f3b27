// A job of one rank without a daemon: this process carries out its own descriptors.
#ifndef RINGD_CLIENT_C_STANDALONE_H_
#define RINGD_CLIENT_C_STANDALONE_H_

#include <cstdint>

#include "client/c/arena_memory.h"
#include "client/c/ringd.h"
#include "common/base/fd.h"
#include "proto/arena.h"

namespace ringd::client {

// Makes an arena's segment as a worker would: the first one with its header.
int CreateStandaloneSegment(uint64_t bytes, bool first, UniqueFd* fd);

// Copies and scales, then completes the descriptor's slot, as a daemon does for a group of one
// rank. REQUIRES: a descriptor that this library wrote. Calls do not overlap.
void RunStandalone(const arena::Descriptor& descriptor, ArenaMemory& memory);

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_STANDALONE_H_
