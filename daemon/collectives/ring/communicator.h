// The communicator behind ring.h: operations, frames and failures of one generation's ring.
//
// A frame's way: Link -> OnData (where does it go) -> OnFrame -> the operation's RingAlgorithm ->
// TakePiece -> Link. Sources: ring_communicator.cc (operations and Progress), ring_frames.cc (what
// neighbours send), ring_floods.cc (failures).
#ifndef RINGD_DAEMON_COLLECTIVES_RING_COMMUNICATOR_H_
#define RINGD_DAEMON_COLLECTIVES_RING_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/collectives/communicator.h"
#include "daemon/collectives/ring/algorithm.h"
#include "daemon/collectives/ring/channel.h"
#include "daemon/collectives/ring/failure.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/collectives/ring/tuner.h"
#include "daemon/transport/link.h"

namespace ringd::daemon {

class RingCommunicator : public Communicator {
 public:
  RingCommunicator(GroupLayout layout, uint64_t generation, RingSockets sockets, EventLoop* loop,
                   RingFailure ring_failure, const RingTuning& tuning);
  ~RingCommunicator() override;

  void Start(OperationKey key, std::shared_ptr<const Collective> collective, Done done) override;
  bool Progress() override;
  void Abort(OperationKey key, const Outcome& outcome) override;
  void AbortFrom(OperationKey key, const Outcome& outcome) override;
  void set_peer_failure_handler(PeerFailure handler) override {
    peer_failure_ = std::move(handler);
  }
  void set_note_handler(NoteHandler handler) override { note_ = std::move(handler); }
  void SendNote(std::string note) override;
  Counters counters() const override;

 private:
  enum class Side { kLeft, kRight };
  using OperationPtr = std::shared_ptr<RingOperation>;

  // Tells which link it was.
  struct SideHandler : Link::Handler {
    SideHandler(RingCommunicator* owner, Side side) : owner(owner), side(side) {}
    absl::StatusOr<std::byte*> OnData(const wire::FrameHeader& header) override {
      return owner->OnData(side, header);
    }
    absl::Status OnFrame(const wire::FrameHeader& header, const std::byte* payload) override {
      return owner->OnFrame(side, header, payload);
    }
    void OnSent(uint64_t tag) override { owner->OnSent(tag); }
    RingCommunicator* const owner;
    const Side side;
  };

  // Start while the ring has no table runs nothing but the tuner's operations.
  void BeginTuning(const RingTuning& tuning);

  // Operations.
  bool Activate();
  bool PrepareSome();
  void Announce(const OperationPtr& operation);
  bool MoveBytes();
  bool QueuePieces();
  bool QueuePiece(RingOperation* operation);
  bool MaySend(const RingOperation& operation, uint32_t bytes) const;
  void RaiseLimits();
  bool FinishSome();
  bool IsOver(const RingOperation& operation) const;
  void Remove(const OperationPtr& operation);
  void ReleaseEager(RingOperation* operation);
  wire::FrameHeader HeaderOf(const RingOperation& operation, wire::FrameType type) const;
  // `done` and the handlers run at the end of the outermost call, when nothing is half done.
  void RunCallbacks();

  // Frames.
  absl::StatusOr<std::byte*> OnData(Side side, const wire::FrameHeader& header);
  absl::Status OnFrame(Side side, const wire::FrameHeader& header, const std::byte* payload);
  void OnSent(uint64_t tag);
  absl::Status OnDataComplete(const wire::FrameHeader& header, const std::byte* payload);
  absl::Status OnNote(Side side, std::string note);
  absl::Status OnReady(const wire::FrameHeader& header);
  absl::Status ApplyReady(RingOperation* operation, const wire::FrameHeader& header);
  absl::Status CheckPiece(const RingOperation& operation, const wire::FrameHeader& header) const;
  void ApplyPiece(RingOperation* operation, const wire::FrameHeader& header, const std::byte* data);
  absl::StatusOr<std::byte*> ReceiveEarly(RingChannel* channel, const wire::FrameHeader& header);
  absl::Status FeedEarly(RingOperation* operation);
  // Null: the peers have named more channels than there can be.
  RingChannel* FindChannel(uint64_t channel);
  absl::StatusOr<EarlyArrivals*> EarlyOf(RingChannel* channel, uint64_t sequence);
  void DropEarly(RingChannel* channel, uint64_t sequence);

  // Failures.
  void SendFlood(wire::FrameType type, OperationKey key, uint64_t signature,
                 const RingFailureText& failure);
  absl::Status OnFlood(Side side, const wire::FrameHeader& header, const std::byte* payload);
  absl::Status OnAbort(const wire::FrameHeader& header, const RingFailureText& failure);
  absl::Status FailOne(OperationKey key, const Outcome& outcome, bool tell_engine);
  absl::Status FailFrom(OperationKey key, const Outcome& outcome, bool tell_engine);
  void Fail(const OperationPtr& operation, const Outcome& outcome);
  void CheckSignatures(const OperationPtr& operation);
  void BeginMismatch(const OperationPtr& operation);
  absl::Status AddMismatch(OperationKey key, uint32_t node, MismatchReport report);
  std::string Describe(const RingOperation& operation) const;
  void CheckLinks();
  void OnLinkBroken(Side side, const absl::Status& status);
  void BreakRing(const Outcome& outcome);
  void FlushControl();
  void DiscardIncoming();
  void DropMismatches(RingChannel* channel, uint64_t sequence);
  void NoteStarted(RingChannel* channel, uint64_t sequence);
  absl::Status NoteEarlyText(size_t bytes);

  const GroupLayout layout_;
  const uint64_t generation_;
  GroupLayout leaders_;  // The nodes with one rank each.
  const RingFailure ring_failure_;
  PeerFailure peer_failure_;
  NoteHandler note_;
  SideHandler left_handler_;
  SideHandler right_handler_;
  std::unique_ptr<Link> left_;
  std::unique_ptr<Link> right_;
  std::optional<Outcome> broken_;
  absl::Status early_violation_;  // Found when early frames were looked at.

  std::unordered_map<uint64_t, RingChannel> channels_;
  std::vector<OperationPtr> running_;  // Of all channels.
  size_t next_to_send_ = 0;            // Of running_, round robin.
  std::unordered_map<uint64_t, RingOperation*> running_by_id_;
  std::vector<uint64_t> channels_to_activate_;
  uint64_t last_id_ = 0;
  RingScratch scratch_;
  std::unique_ptr<RingTuner> tuner_;
  std::optional<RingTable> table_;  // Before it is there, the tuner's operations run alone.
  uint64_t tuning_sequence_ = 0;

  // What we have sent, and keep, ahead of READY.
  uint64_t eager_bytes_ = 0;
  size_t eager_operations_ = 0;
  uint64_t early_bytes_ = 0;
  size_t early_operations_ = 0;
  std::optional<EarlyFrame> receiving_early_;

  uint32_t last_flood_ = 0;
  std::vector<uint32_t> floods_seen_;  // The last of each origin.
  size_t early_text_bytes_ = 0;

  std::vector<std::function<void()>> callbacks_;
  bool is_busy_ = false;  // In Progress, or running callbacks.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_COMMUNICATOR_H_
