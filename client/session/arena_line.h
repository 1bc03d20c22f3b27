// The connection on which arenas are handed to the daemon (RUN_DIR/arena.sock, proto/attach.h).
#ifndef RINGD_CLIENT_SESSION_ARENA_LINE_H_
#define RINGD_CLIENT_SESSION_ARENA_LINE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace ringd::session {

// Strictly request and answer. Every call blocks until the daemon has answered, kAnswerTimeout at
// most.
//
// Ownership: descriptors passed in stay the caller's.
// Thread-compatible: external synchronisation.
// Failure: UNAVAILABLE: the daemon is gone or does not answer (the line is of no use any more);
// else the daemon's word, by the code that it gave.
class ArenaLine {
 public:
  // session: AttachResponse.session, attach::kSessionBytes long.
  static absl::StatusOr<std::unique_ptr<ArenaLine>> Connect(const std::string& path,
                                                            const std::string& session);

  // What a client gets with segment 0. Invalid: none.
  struct Links {
    UniqueFd doorbell;
    UniqueFd shared_segment;  // proto/segment.h.
  };
  // The doorbell is there for segment 0, nothing for others.
  absl::StatusOr<Links> OfferSegment(uint64_t arena, uint32_t segment, int fd, uint64_t bytes);
  absl::Status ReportAttached(uint64_t arena, int pid, int pidfd);
  absl::Status ReportDetached(uint64_t arena);

 private:
  ArenaLine(UniqueFd socket, std::string session);
  template <typename Message>
  absl::StatusOr<Links> Exchange(Message message, int fd);

  const UniqueFd socket_;
  const std::string session_;
};

}  // namespace ringd::session

#endif  // RINGD_CLIENT_SESSION_ARENA_LINE_H_
