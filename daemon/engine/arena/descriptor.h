// From a client's descriptor, hostile until here, to a Request.
#ifndef RINGD_DAEMON_ENGINE_ARENA_DESCRIPTOR_H_
#define RINGD_DAEMON_ENGINE_ARENA_DESCRIPTOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/engine/arena/arena_view.h"
#include "daemon/engine/order/plan.h"
#include "daemon/engine/order/request.h"
#include "proto/arena.h"

namespace ringd::daemon {

// What a descriptor is judged against.
struct DescriptorContext {
  const ArenaView* arena = nullptr;
  // Of the descriptor's group.
  int rank = 0;  // -1: this client's rank is no member, or there is no such group.
  int size = 0;
  const std::vector<int>* members = nullptr;  // Ranks of the job; null: all.
  uint64_t serial = 0;                        // That the next descriptor must have.
  // The client's plans that all ranks have agreed on, by wire::ChannelId.
  const std::map<uint64_t, std::shared_ptr<const Plan>>* plans = nullptr;
};

// Whether the parts are sound that don't depend on the operation: size, version, enumerations,
// flags, serial, slot and number. INVALID_ARGUMENT names the field.
absl::Status CheckDescriptor(const arena::Descriptor& descriptor, const DescriptorContext& context);

// The request of a descriptor that CheckDescriptor found good. Request::client is left null.
// INVALID_ARGUMENT: memory outside the arena, unaligned or overlapping, a meta record that doesn't
// add up, a plan that isn't there: the client has broken its protocol. Mistakes that a program can
// make through the client library (an average of bools, a root outside the group) are
// Request::rejection instead.
absl::StatusOr<std::unique_ptr<Request>> MakeRequest(const arena::Descriptor& descriptor,
                                                     const DescriptorContext& context);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ARENA_DESCRIPTOR_H_
