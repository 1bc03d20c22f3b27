#include "daemon/collectives/ring/communicator.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/fd.h"
#include "common/log/log.h"
#include "common/status/macros.h"
#include "daemon/collectives/rooted.h"

namespace ringd::daemon {
namespace {

// Of one Progress.
constexpr size_t kMaxReceivedBytes = 1u << 20;
constexpr size_t kMaxSentBytes = 1u << 20;
constexpr size_t kMaxControlBytes = 256u << 10;
// Waiting in the link: enough for the socket, little enough that operations share it fairly.
constexpr uint64_t kMaxQueuedBytes = 2 * kRingPieceBytes;
constexpr size_t kMaxQueuedFrames = 32;

}  // namespace

RingCommunicator::RingCommunicator(GroupLayout layout, uint64_t generation, RingSockets sockets,
                                   EventLoop* loop, RingFailure ring_failure,
                                   const RingTuning& tuning)
    : layout_(std::move(layout)),
      generation_(generation),
      ring_failure_(std::move(ring_failure)),
      floods_seen_(layout_.nodes.size(), 0) {
  lanes_.push_back(std::make_unique<Lane>(this, 0, sockets, generation, loop));
  for (const SocketPair& pair : sockets.shortcuts) {
    lanes_.push_back(std::make_unique<Lane>(this, lane_count(), pair, generation, loop));
  }
  if (tuning.measures) {
    BeginTuning(tuning);
  } else {
    UseCosts(tuning.costs ? *tuning.costs : RingCosts{});
  }
}

RingCommunicator::~RingCommunicator() {
  for (const OperationPtr& operation : running_) DropData(*operation);
  lanes_.clear();
}

void RingCommunicator::BeginTuning(const RingTuning& tuning) {
  leaders_ = layout_;
  leaders_.members.clear();
  for (int node = 0; node < leaders_.node_count(); ++node) {
    leaders_.nodes[node].first_rank = node;
    leaders_.nodes[node].rank_count = 1;
  }
  tuner_ = std::make_unique<RingTuner>(
      layout_.node_count(), shortcut_count(), layout_.node_index == 0, tuning.gather_bytes,
      [this](std::shared_ptr<const Collective> collective, Done done) {
        Start({wire::kTuningChannel, ++tuning_sequence_}, std::move(collective),
              [this, done = std::move(done)](const Outcome& outcome) {
                if (!outcome.ok() && !broken_.has_value()) BreakRing(outcome);
                done(outcome);
              });
      },
      [] { return static_cast<double>(absl::GetCurrentTimeNanos()) / 1e3; },
      [this, tuning](const RingCosts& costs) {
        if (tuning.costs != nullptr) *tuning.costs = costs;
        UseCosts(costs);
        GetLogger("collectives")
            ->info(
                "ring measured job={} generation={} nodes={} step_us={:.0f} gbit={:.2f} "
                "shortcuts={} gather_bytes={}{} tree_bytes={}",
                tuning.job, generation_, layout_.node_count(), costs.step_us,
                costs.bytes_per_us * 8 / 1e3, table_->shortcut_count, table_->gather_bytes,
                costs.gather_bytes >= 0 ? " (set)" : "", table_->tree_bytes);
      });
  tuner_->Begin();
}

void RingCommunicator::UseCosts(const RingCosts& costs) {
  table_ = ChooseTable(layout_.node_count(), shortcut_count(), costs);
}

void RingCommunicator::Start(OperationKey key, std::shared_ptr<const Collective> collective,
                             Done done) {
  RingChannel& channel = channels_[key.channel];
  Outcome failure;
  if (broken_.has_value()) {
    failure = *broken_;
  } else if (key.sequence <= channel.last_started) {
    failure.code = arena::Code::kInternal;
    failure.message = "an operation was started out of order; please report this";
  } else if (const Outcome* known = channel.FindFailure(key.sequence); known != nullptr) {
    failure = *known;
  }
  if (!failure.ok()) {
    if (key.sequence > channel.last_started) {
      NoteStarted(&channel, key.sequence);
      channel.NoteFailed(key.sequence);
      DropEarly(&channel, key.sequence);
    }
    callbacks_.push_back([done = std::move(done), failure] { done(failure); });
    RunCallbacks();
    return;
  }
  NoteStarted(&channel, key.sequence);
  auto operation = std::make_shared<RingOperation>();
  operation->key = key;
  operation->id = ++last_id_;
  operation->collective = WithoutRoot(std::move(collective), layout_.size());
  operation->done = std::move(done);
  channel.queued.push_back(operation);
  channels_to_activate_.push_back(key.channel);
  CheckSignatures(operation);
  RunCallbacks();
}

bool RingCommunicator::Progress() {
  if (std::exchange(is_busy_, true)) return false;
  bool has_worked = Activate();
  for (const auto& lane : lanes_) {
    has_worked |= lane->left.Receive(kMaxReceivedBytes);
    has_worked |= lane->right.Receive(kMaxControlBytes);
  }
  has_worked |= PrepareSome();
  for (int lane = 0; lane < lane_count(); ++lane) has_worked |= SendPieces(lane);
  RaiseLimits();
  for (const auto& lane : lanes_) has_worked |= lane->left.Flush(kMaxControlBytes);
  has_worked |= FinishSome();
  CheckLinks();
  has_worked |= !callbacks_.empty();
  is_busy_ = false;
  RunCallbacks();
  return has_worked;
}

bool RingCommunicator::Activate() {
  const std::vector<uint64_t> numbers = std::exchange(channels_to_activate_, {});
  bool has_worked = false;
  for (const uint64_t number : numbers) {
    const bool is_tuning = number == wire::kTuningChannel;
    if (!is_tuning && !table_.has_value()) {
      channels_to_activate_.push_back(number);
      continue;
    }
    has_worked = true;
    RingChannel& channel = channels_[number];
    while (channel.MayActivate()) {
      const OperationPtr operation = channel.queued.front();
      absl::StatusOr<std::unique_ptr<RingAlgorithm>> algorithm = MakeRingAlgorithm(
          is_tuning ? leaders_ : layout_, *operation->collective,
          table_.value_or(RingTable{.shortcut_count = shortcut_count()}), &scratch_);
      if (!algorithm.ok()) {
        Outcome outcome;
        outcome.code = arena::Code::kInvalidArgument;
        outcome.message = std::string(algorithm.status().message());
        Abort(operation->key, outcome);
        continue;
      }
      operation->algorithm = *std::move(algorithm);
      operation->streams.resize(operation->algorithm->stream_count());
      channel.queued.pop_front();
      channel.running.push_back(operation);
      running_.push_back(operation);
      running_by_id_[operation->id] = operation.get();
    }
  }
  return has_worked;
}

bool RingCommunicator::PrepareSome() {
  bool has_worked = false;
  for (const OperationPtr& operation : running_) {
    if (operation->is_announced || operation->is_mismatched) continue;
    has_worked = true;
    if (operation->algorithm->Prepare()) Announce(operation);
  }
  return has_worked;
}

void RingCommunicator::Announce(const OperationPtr& operation) {
  operation->is_announced = true;
  SendReady(operation.get(), true);
  FeedEarly(operation.get());
}

void RingCommunicator::SendReady(RingOperation* operation, bool is_first) {
  for (int lane = 0; lane < StreamCount(*operation); ++lane) {
    StreamProgress& progress = operation->streams[lane];
    const uint64_t limit = operation->algorithm->stream(lane)->ReceiveLimit();
    if (!ReceivesOn(lane, *operation) || (!is_first && limit == progress.announced_limit)) continue;
    progress.announced_limit = limit;
    wire::FrameHeader header = HeaderOf(*operation, wire::FrameType::kReady);
    header.offset = limit;
    lanes_[lane]->left.SendControl(header, {});
  }
}

void RingCommunicator::RaiseLimits() {
  for (const OperationPtr& operation : running_) {
    if (operation->is_announced && !operation->is_mismatched) SendReady(operation.get(), false);
  }
}

bool RingCommunicator::SendPieces(int lane) {
  bool has_worked = false;
  for (size_t moved = 0; moved < kMaxSentBytes; moved += kMaxQueuedBytes) {
    const bool has_queued = QueuePieces(lane);
    const bool has_sent = lanes_[lane]->right.Flush(kMaxQueuedBytes);
    has_worked |= has_queued || has_sent;
    if (!has_sent) break;
  }
  return has_worked;
}

bool RingCommunicator::QueuePieces(int lane) {
  Lane& links = *lanes_[lane];
  bool has_queued = false;
  size_t idle = 0;  // Operations in a row that have nothing to send.
  while (idle < running_.size() && links.right.queued_data_bytes() < kMaxQueuedBytes &&
         links.right.queued_data_frames() < kMaxQueuedFrames) {
    if (links.next_to_send >= running_.size()) links.next_to_send = 0;
    const bool is_queued = QueuePiece(lane, running_[links.next_to_send++].get());
    idle = is_queued ? 0 : idle + 1;
    has_queued |= is_queued;
  }
  return has_queued;
}

bool RingCommunicator::MaySend(int lane, const StreamProgress& progress, uint32_t bytes) const {
  if (progress.right_is_ready) return progress.taken_bytes + bytes <= progress.right_limit;
  const Lane& links = *lanes_[lane];
  return progress.eager_frames < wire::kMaxEagerFrames &&
         links.eager_bytes + bytes <= wire::kEagerWindowBytes &&
         (progress.eager_frames > 0 || links.eager_operations < wire::kMaxEarlyOperations);
}

bool RingCommunicator::QueuePiece(int lane, RingOperation* operation) {
  if (!operation->is_announced || operation->is_mismatched || !SendsOn(lane, *operation)) {
    return false;
  }
  Lane& links = *lanes_[lane];
  StreamProgress& progress = operation->streams[lane];
  RingStream* const stream = operation->algorithm->stream(lane);
  const uint32_t bytes = stream->NextSendBytes();
  const bool is_empty = bytes == 0;
  if (is_empty && (progress.has_sent_empty || stream->send_bytes() > 0)) return false;
  if (!MaySend(lane, progress, bytes)) return false;
  const std::byte* const piece = is_empty ? nullptr : stream->TakePiece();
  if (!is_empty && piece == nullptr) return false;
  wire::FrameHeader header = HeaderOf(*operation, wire::FrameType::kData);
  header.offset = progress.taken_bytes;
  progress.has_sent_empty |= is_empty;
  progress.taken_bytes += bytes;
  ++progress.frames_with_link;
  if (!progress.right_is_ready) {
    if (progress.eager_frames++ == 0) ++links.eager_operations;
    progress.eager_bytes += bytes;
    links.eager_bytes += bytes;
  }
  links.right.SendData(header, piece, bytes, operation->id);
  return true;
}

bool RingCommunicator::SendsOn(int lane, const RingOperation& operation) {
  return lane == 0 ||
         (lane < StreamCount(operation) && operation.algorithm->stream(lane)->send_bytes() > 0);
}

bool RingCommunicator::ReceivesOn(int lane, const RingOperation& operation) {
  return lane == 0 ||
         (lane < StreamCount(operation) && operation.algorithm->stream(lane)->receive_bytes() > 0);
}

bool RingCommunicator::IsOver(const RingOperation& operation) {
  if (!operation.is_announced || operation.is_mismatched) return false;
  for (int lane = 0; lane < StreamCount(operation); ++lane) {
    if (!IsOver(lane, operation)) return false;
  }
  return true;
}

bool RingCommunicator::IsOver(int lane, const RingOperation& operation) {
  const StreamProgress& progress = operation.streams[lane];
  const RingStream& stream = *operation.algorithm->stream(lane);
  if (SendsOn(lane, operation)) {
    const bool has_sent = progress.taken_bytes == stream.send_bytes() &&
                          (progress.has_sent_empty || stream.send_bytes() > 0);
    if (!has_sent || !progress.right_is_ready || progress.frames_with_link > 0) return false;
  }
  return !ReceivesOn(lane, operation) ||
         (progress.left_has_begun && progress.received_bytes == stream.receive_bytes());
}

bool RingCommunicator::FinishSome() {
  std::vector<OperationPtr> over;
  bool has_worked = false;
  for (const OperationPtr& operation : running_) {
    if (!IsOver(*operation)) continue;
    has_worked = true;
    if (operation->algorithm->Finish()) over.push_back(operation);
  }
  for (const OperationPtr& operation : over) {
    Remove(operation);
    callbacks_.push_back([done = std::move(operation->done)] { done(Outcome{}); });
  }
  return has_worked;
}

void RingCommunicator::Remove(const OperationPtr& operation) {
  RingChannel& channel = channels_[operation->key.channel];
  std::erase(channel.running, operation);
  std::erase(channel.queued, operation);
  std::erase(running_, operation);
  running_by_id_.erase(operation->id);
  for (int lane = 0; lane < StreamCount(*operation); ++lane) ReleaseEager(lane, operation.get());
  DropMismatches(&channel, operation->key.sequence);
  if (!channel.queued.empty()) channels_to_activate_.push_back(operation->key.channel);
}

void RingCommunicator::ReleaseEager(int lane, RingOperation* operation) {
  StreamProgress& progress = operation->streams[lane];
  if (progress.eager_frames == 0) return;
  --lanes_[lane]->eager_operations;
  lanes_[lane]->eager_bytes -= progress.eager_bytes;
  progress.eager_frames = 0;
  progress.eager_bytes = 0;
}

void RingCommunicator::DropData(const RingOperation& operation) {
  for (const auto& lane : lanes_) lane->right.DropData(operation.id);
}

wire::FrameHeader RingCommunicator::HeaderOf(const RingOperation& operation,
                                             wire::FrameType type) const {
  wire::FrameHeader header{};
  header.type = type;
  header.channel = operation.key.channel;
  header.sequence = operation.key.sequence;
  header.signature = operation.collective->signature;
  return header;
}

void RingCommunicator::SendNote(std::string note) {
  if (broken_.has_value()) return;
  wire::FrameHeader header{};
  header.type = wire::FrameType::kNote;
  lanes_[0]->right.SendControl(header, std::move(note));
}

void RingCommunicator::RunCallbacks() {
  if (is_busy_) return;
  is_busy_ = true;
  while (!callbacks_.empty()) {
    const std::vector<std::function<void()>> callbacks = std::exchange(callbacks_, {});
    for (const std::function<void()>& callback : callbacks) callback();
  }
  is_busy_ = false;
}

Communicator::Counters RingCommunicator::counters() const {
  Counters counters;
  for (const auto& lane : lanes_) {
    for (const Link* link : {&lane->left, &lane->right}) {
      counters.bytes_sent += link->counters().payload_bytes_sent;
      counters.bytes_received += link->counters().payload_bytes_received;
      counters.frames_sent += link->counters().frames_sent;
    }
  }
  return counters;
}

std::unique_ptr<Communicator> MakeRingCommunicator(GroupLayout layout, uint64_t generation,
                                                   RingSockets sockets, EventLoop* loop,
                                                   RingFailure ring_failure,
                                                   const RingTuning& tuning) {
  return std::make_unique<RingCommunicator>(std::move(layout), generation, sockets, loop,
                                            std::move(ring_failure), tuning);
}

}  // namespace ringd::daemon
