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
    SideHandler(RingCommunicator* owner, int lane, Side side)
        : owner(owner), lane(lane), side(side) {}
    absl::StatusOr<std::byte*> OnData(const wire::FrameHeader& header) override {
      return owner->OnData(lane, side, header);
    }
    absl::Status OnFrame(const wire::FrameHeader& header, const std::byte* payload) override {
      return owner->OnFrame(lane, side, header, payload);
    }
    void OnSent(uint64_t tag) override { owner->OnSent(lane, tag); }
    RingCommunicator* const owner;
    const int lane;
    const Side side;
  };

  // The links that carry one stream of each operation: to the node 2^index places to the right, and
  // from that to the left. Lane 0 is the ring.
  struct Lane {
    Lane(RingCommunicator* owner, int index, SocketPair sockets, uint64_t generation,
         EventLoop* loop)
        : left_handler(owner, index, Side::kLeft),
          right_handler(owner, index, Side::kRight),
          left(loop, UniqueFd(sockets.left), generation, &left_handler),
          right(loop, UniqueFd(sockets.right), generation, &right_handler) {}
    SideHandler left_handler;
    SideHandler right_handler;
    Link left;
    Link right;
    size_t next_to_send = 0;  // Of running_, round robin.
    // What we have sent, and keep, ahead of READY.
    uint64_t eager_bytes = 0;
    size_t eager_operations = 0;
    // What has come ahead of ours.
    uint64_t early_bytes = 0;
    std::optional<EarlyFrame> receiving_early;
  };

  // Start while the ring has no table runs nothing but the tuner's operations.
  void BeginTuning(const RingTuning& tuning);
  void UseCosts(const RingCosts& costs);
  int lane_count() const { return static_cast<int>(lanes_.size()); }
  int shortcut_count() const { return lane_count() - 1; }
  static int StreamCount(const RingOperation& operation) {
    return static_cast<int>(operation.streams.size());
  }

  // Operations.
  bool Activate();
  bool PrepareSome();
  void Announce(const OperationPtr& operation);
  bool SendPieces(int lane);
  bool QueuePieces(int lane);
  bool QueuePiece(int lane, RingOperation* operation);
  bool MaySend(int lane, const StreamProgress& progress, uint32_t bytes) const;
  // READY, on the lanes on which more can come than was announced.
  void SendReady(RingOperation* operation, bool is_first);
  void RaiseLimits();
  bool FinishSome();
  // Whether the operation's stream has anything to do with the lane's right, or left node.
  static bool SendsOn(int lane, const RingOperation& operation);
  static bool ReceivesOn(int lane, const RingOperation& operation);
  static bool IsOver(const RingOperation& operation);
  static bool IsOver(int lane, const RingOperation& operation);
  void Remove(const OperationPtr& operation);
  void DropData(const RingOperation& operation);
  void ReleaseEager(int lane, RingOperation* operation);
  wire::FrameHeader HeaderOf(const RingOperation& operation, wire::FrameType type) const;
  // `done` and the handlers run at the end of the outermost call, when nothing is half done.
  void RunCallbacks();

  // Frames.
  absl::StatusOr<std::byte*> OnData(int lane, Side side, const wire::FrameHeader& header);
  absl::Status OnFrame(int lane, Side side, const wire::FrameHeader& header,
                       const std::byte* payload);
  void OnSent(int lane, uint64_t tag);
  absl::Status OnDataComplete(int lane, const wire::FrameHeader& header, const std::byte* payload);
  absl::Status OnNote(Side side, std::string note);
  absl::Status OnReady(int lane, const wire::FrameHeader& header);
  absl::Status ApplyReady(int lane, RingOperation* operation, const wire::FrameHeader& header);
  absl::Status CheckPiece(int lane, const RingOperation& operation,
                          const wire::FrameHeader& header) const;
  void ApplyPiece(int lane, RingOperation* operation, const wire::FrameHeader& header,
                  const std::byte* data);
  absl::StatusOr<std::byte*> ReceiveEarly(int lane, RingChannel* channel,
                                          const wire::FrameHeader& header);
  // Gives the operation what came before it was announced.
  void FeedEarly(RingOperation* operation);
  absl::Status FeedStream(int lane, RingOperation* operation, const EarlyStream& stream);
  void NoteViolation(int lane, Side side, absl::Status status);
  // Null: the peers have named more channels than there can be.
  RingChannel* FindChannel(uint64_t channel);
  absl::StatusOr<EarlyStream*> EarlyOf(int lane, RingChannel* channel, uint64_t sequence);
  void DropEarly(RingChannel* channel, uint64_t sequence);
  void ReleaseEarly(const EarlyArrivals& arrivals);

  // Failures.
  void SendFlood(wire::FrameType type, OperationKey key, uint64_t signature,
                 const RingFailureText& failure);
  absl::Status OnFlood(const Link& from, const wire::FrameHeader& header, const std::byte* payload);
  absl::Status OnAbort(const wire::FrameHeader& header, const RingFailureText& failure);
  absl::Status FailOne(OperationKey key, const Outcome& outcome, bool tell_engine);
  absl::Status FailFrom(OperationKey key, const Outcome& outcome, bool tell_engine);
  void Fail(const OperationPtr& operation, const Outcome& outcome);
  void CheckSignatures(const OperationPtr& operation);
  void BeginMismatch(const OperationPtr& operation);
  absl::Status AddMismatch(OperationKey key, uint32_t node, MismatchReport report);
  std::string Describe(const RingOperation& operation) const;
  void CheckLinks();
  void OnLinkBroken(int lane, Side side, const absl::Status& status);
  void BreakRing(const Outcome& outcome);
  void FlushControl();
  // Payload that is being received goes nowhere, if it belongs there.
  void DiscardIncoming(OperationKey key);
  void DiscardIncoming(Lane* lane);
  void DropMismatches(RingChannel* channel, uint64_t sequence);
  void NoteStarted(RingChannel* channel, uint64_t sequence);
  absl::Status NoteEarlyText(size_t bytes);

  const GroupLayout layout_;
  const uint64_t generation_;
  GroupLayout leaders_;  // The nodes with one rank each.
  const RingFailure ring_failure_;
  PeerFailure peer_failure_;
  NoteHandler note_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::optional<Outcome> broken_;
  // Found when early frames or notes were looked at: whose they were.
  struct EarlyViolation {
    int lane = 0;
    Side side = Side::kLeft;
    absl::Status status;
  };
  EarlyViolation early_violation_;

  std::unordered_map<uint64_t, RingChannel> channels_;
  std::vector<OperationPtr> running_;  // Of all channels.
  std::unordered_map<uint64_t, RingOperation*> running_by_id_;
  std::vector<uint64_t> channels_to_activate_;
  uint64_t last_id_ = 0;
  RingScratch scratch_;
  std::unique_ptr<RingTuner> tuner_;
  std::optional<RingTable> table_;  // Before it is there, the tuner's operations run alone.
  uint64_t tuning_sequence_ = 0;

  size_t early_operations_ = 0;

  uint32_t last_flood_ = 0;
  std::vector<uint32_t> floods_seen_;  // The last of each origin.
  size_t early_text_bytes_ = 0;

  std::vector<std::function<void()>> callbacks_;
  bool is_busy_ = false;  // In Progress, or running callbacks.
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_RING_COMMUNICATOR_H_
