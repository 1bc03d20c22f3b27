// Notes: what the daemons of a group tell one another about operations that are ordered by name.
// They go from node to node, to the right (Communicator::SendNote), until they have come to whom
// they are for.
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
    // To the first node, from `node`.
    kReady = 1,   // Its ranks have all submitted the operation.
    kFailed = 2,  // The operation has failed there already, with `outcome`.
    kEnded = 3,   // One of its ranks won't submit any more: `outcome`.
    // From the first node.
    kOrder = 4,     // The operation runs next.
    kFail = 5,      // It fails everywhere, with `outcome`.
    kFailRest = 6,  // All that has not been ordered fails, and what comes later.
  };
  static constexpr Kind kLastKind = Kind::kFailRest;

  Kind kind = Kind::kReady;
  uint16_t node = 0;
  // The operation: by the number that NameTable has for name and form, or, where that is 0, by name
  // and form.
  uint32_t id = 0;
  std::string name;
  std::string form;
  Outcome outcome;

  bool HasName() const { return kind != Kind::kEnded && kind != Kind::kFailRest; }
  bool HasOutcome() const { return kind != Kind::kReady && kind != Kind::kOrder; }
  bool IsForFirst() const { return kind <= Kind::kEnded; }
};

// Texts of at most `limit` bytes, as far as no single note is longer.
std::vector<std::string> EncodeNotes(const std::vector<Note>& notes, size_t limit);
// INVALID_ARGUMENT: not what EncodeNotes makes.
absl::StatusOr<std::vector<Note>> DecodeNotes(absl::string_view text);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_NAMES_NOTES_H_
