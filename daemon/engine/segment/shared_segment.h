// The daemon's side of a job's shared segment (proto/segment.h).
#ifndef RINGD_DAEMON_ENGINE_SEGMENT_SHARED_SEGMENT_H_
#define RINGD_DAEMON_ENGINE_SEGMENT_SHARED_SEGMENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "daemon/engine/order/request.h"
#include "proto/segment_view.h"

namespace ringd::daemon {

// Makes the segment, reads what ranks have published there, and publishes in the place of ranks
// whose operation the daemon has.
//
// Life: made with a job of one node; goes with it. Ownership: owns memory and mapping.
// Thread-bound: the engine's thread. Failure: nothing that ranks write is trusted; what makes no
// sense is taken as not there.
class SharedSegment {
 public:
  using Sequences = std::array<uint64_t, segment::kSlotCount>;

  // Whether a job of so many ranks on one node has one.
  static bool IsFor(int rank_count);
  // RESOURCE_EXHAUSTED: no memory, no descriptor.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(int rank_count);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  int fd() const { return fd_.get(); }
  int rank_count() const { return static_cast<int>(view_.rank_count()); }

  // Whether the ranks have to ring when they publish. Call it before looking, as a sleeper does.
  void SetWaiting(bool waiting);
  bool waiting() const { return waiting_; }
  // The ranks publish nothing more from now on, and those that sleep hand over. For good.
  void Close();
  // The same, until it is taken back.
  void Pause(bool paused);

  // Numbers of the operations that the rank's slots have, 0 for none.
  Sequences Published(int rank) const;
  // The newest one.
  uint64_t Newest(int rank) const;
  // The operation as a request that stands for the rank: data and result lie in its scratch. Null:
  // not there (any more), or nonsense.
  std::unique_ptr<Request> Take(int rank, uint64_t sequence) const;
  // Publishes the request's operation for the rank, unless the rank has done so. REQUIRES:
  // request.sequence is not 0.
  void Publish(int rank, const Request& request);

 private:
  SharedSegment(UniqueFd fd, void* base, uint64_t bytes, int rank_count);
  void StoreAttention();
  void WakeAll();

  const UniqueFd fd_;
  const segment::View view_;
  void* const base_;
  const uint64_t bytes_;
  bool waiting_ = false;
  bool closed_ = false;
  bool paused_ = false;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_SEGMENT_SHARED_SEGMENT_H_
