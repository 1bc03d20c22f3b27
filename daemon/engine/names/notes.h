// Notes: what the daemons of a group tell one another beside their operations. They go from node to
// node, to the right (Communicator::SendNote), until they have come to whom they are for.
#ifndef RINGD_DAEMON_ENGINE_NAMES_NOTES_H_
#define RINGD_DAEMON_ENGINE_NAMES_NOTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/collectives/communicator.h"

namespace ringd::daemon {

struct Note {
  enum class Kind : uint8_t {
    // Operations that are ordered by name. To the first node, from `node`:
    kReady = 1,   // Its ranks have all submitted the operation.
    kFailed = 2,  // The operation has failed there already, with `outcome`.
    kEnded = 3,   // One of its ranks won't submit any more: `outcome`.
    // From the first node to all others:
    kOrder = 4,     // The operation runs next.
    kFail = 5,      // It fails everywhere, with `outcome`.
    kFailRest = 6,  // All that has not been ordered fails, and what comes later.
    // Join. From `node` to all others:
    kJoined = 7,   // All of its ranks have joined, `rank` as the last one.
    kStarted = 8,  // It has started operation `key`, of this form; for nodes that have joined.
    // From the first node to all others:
    kJoinOver = 9,  // All ranks have joined, `rank` as the last one.
    // Round the ring, from the first node to itself:
    kProbe = 10,  // `form`: a probe::v1::Probe.
  };
  static constexpr Kind kLastKind = Kind::kProbe;

  Kind kind = Kind::kReady;
  uint16_t node = 0;
  // The operation: by the number that NameTable has for name and form, or, where that is 0, by name
  // and form.
  uint32_t id = 0;
  std::string name;
  std::string form;
  Outcome outcome;
  int32_t rank = 0;
  OperationKey key;

  bool HasName() const {
    return kind == Kind::kReady || kind == Kind::kFailed || kind == Kind::kOrder ||
           kind == Kind::kFail;
  }
  bool HasOutcome() const {
    return kind == Kind::kFailed || kind == Kind::kEnded || kind == Kind::kFail ||
           kind == Kind::kFailRest;
  }
  bool IsOfNames() const { return kind <= Kind::kFailRest; }
  bool IsForFirst() const { return kind <= Kind::kEnded; }
};

// Texts of at most `limit` bytes, as far as no single note is longer.
std::vector<std::string> EncodeNotes(const std::vector<Note>& notes, size_t limit);
// INVALID_ARGUMENT: not what EncodeNotes makes.
absl::StatusOr<std::vector<Note>> DecodeNotes(absl::string_view text);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_NAMES_NOTES_H_
