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
      left_handler_(this, Side::kLeft),
      right_handler_(this, Side::kRight),
      left_(std::make_unique<Link>(loop, UniqueFd(sockets.left), generation, &left_handler_)),
      right_(std::make_unique<Link>(loop, UniqueFd(sockets.right), generation, &right_handler_)),
      floods_seen_(layout_.nodes.size(), 0) {
  if (tuning.measures) {
    BeginTuning(tuning);
  } else {
    table_ = ChooseTable(layout_.node_count(), tuning.costs ? *tuning.costs : RingCosts{});
  }
}

RingCommunicator::~RingCommunicator() {
  for (const OperationPtr& operation : running_) right_->DropData(operation->id);
  right_.reset();
  left_.reset();
}

void RingCommunicator::BeginTuning(const RingTuning& tuning) {
  leaders_ = layout_;
  leaders_.members.clear();
  for (int node = 0; node < leaders_.node_count(); ++node) {
    leaders_.nodes[node].first_rank = node;
    leaders_.nodes[node].rank_count = 1;
  }
  tuner_ = std::make_unique<RingTuner>(
      layout_.node_count(), layout_.node_index == 0, tuning.gather_bytes,
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
        table_ = ChooseTable(layout_.node_count(), costs);
        GetLogger("collectives")
            ->info(
                "ring measured job={} generation={} nodes={} step_us={:.0f} gbit={:.2f} "
                "gather_bytes={}{}",
                tuning.job, generation_, layout_.node_count(), costs.step_us,
                costs.bytes_per_us * 8 / 1e3, table_->gather_bytes,
                costs.gather_bytes >= 0 ? " (set)" : "");
      });
  tuner_->Begin();
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
  has_worked |= left_->Receive(kMaxReceivedBytes);
  has_worked |= right_->Receive(kMaxControlBytes);
  has_worked |= PrepareSome();
  has_worked |= MoveBytes();
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
      absl::StatusOr<std::unique_ptr<RingAlgorithm>> algorithm =
          MakeRingAlgorithm(is_tuning ? leaders_ : layout_, *operation->collective,
                            table_.value_or(RingTable{}), &scratch_);
      if (!algorithm.ok()) {
        Outcome outcome;
        outcome.code = arena::Code::kInvalidArgument;
        outcome.message = std::string(algorithm.status().message());
        Abort(operation->key, outcome);
        continue;
      }
      operation->algorithm = *std::move(algorithm);
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
  operation->announced_limit = operation->algorithm->ReceiveLimit();
  wire::FrameHeader header = HeaderOf(*operation, wire::FrameType::kReady);
  header.offset = operation->announced_limit;
  left_->SendControl(header, {});
  if (absl::Status status = FeedEarly(operation.get()); !status.ok()) {
    early_violation_ = std::move(status);
  }
}

bool RingCommunicator::MoveBytes() {
  bool has_worked = false;
  for (size_t moved = 0; moved < kMaxSentBytes; moved += kMaxQueuedBytes) {
    const bool has_queued = QueuePieces();
    const bool has_sent = right_->Flush(kMaxQueuedBytes);
    has_worked |= has_queued || has_sent;
    if (!has_sent) break;
  }
  RaiseLimits();
  has_worked |= left_->Flush(kMaxControlBytes);
  return has_worked;
}

bool RingCommunicator::QueuePieces() {
  bool has_queued = false;
  size_t idle = 0;  // Operations in a row that have nothing to send.
  while (idle < running_.size() && right_->queued_data_bytes() < kMaxQueuedBytes &&
         right_->queued_data_frames() < kMaxQueuedFrames) {
    if (next_to_send_ >= running_.size()) next_to_send_ = 0;
    const bool is_queued = QueuePiece(running_[next_to_send_++].get());
    idle = is_queued ? 0 : idle + 1;
    has_queued |= is_queued;
  }
  return has_queued;
}

bool RingCommunicator::MaySend(const RingOperation& operation, uint32_t bytes) const {
  if (operation.right_is_ready) return operation.taken_bytes + bytes <= operation.right_limit;
  return operation.eager_frames < wire::kMaxEagerFrames &&
         eager_bytes_ + bytes <= wire::kEagerWindowBytes &&
         (operation.eager_frames > 0 || eager_operations_ < wire::kMaxEarlyOperations);
}

bool RingCommunicator::QueuePiece(RingOperation* operation) {
  if (!operation->is_announced || operation->is_mismatched) return false;
  const uint32_t bytes = operation->algorithm->NextSendBytes();
  const bool is_empty = bytes == 0;
  if (is_empty && (operation->has_sent_empty || operation->algorithm->send_bytes() > 0)) {
    return false;
  }
  if (!MaySend(*operation, bytes)) return false;
  const std::byte* const piece = is_empty ? nullptr : operation->algorithm->TakePiece();
  if (!is_empty && piece == nullptr) return false;
  wire::FrameHeader header = HeaderOf(*operation, wire::FrameType::kData);
  header.offset = operation->taken_bytes;
  operation->has_sent_empty |= is_empty;
  operation->taken_bytes += bytes;
  ++operation->frames_with_link;
  if (!operation->right_is_ready) {
    if (operation->eager_frames++ == 0) ++eager_operations_;
    operation->eager_bytes += bytes;
    eager_bytes_ += bytes;
  }
  right_->SendData(header, piece, bytes, operation->id);
  return true;
}

void RingCommunicator::RaiseLimits() {
  for (const OperationPtr& operation : running_) {
    if (!operation->is_announced || operation->is_mismatched) continue;
    const uint64_t limit = operation->algorithm->ReceiveLimit();
    if (limit == operation->announced_limit) continue;
    operation->announced_limit = limit;
    wire::FrameHeader header = HeaderOf(*operation, wire::FrameType::kReady);
    header.offset = limit;
    left_->SendControl(header, {});
  }
}

bool RingCommunicator::IsOver(const RingOperation& operation) const {
  if (!operation.is_announced || operation.is_mismatched || !operation.right_is_ready ||
      !operation.left_has_begun || operation.frames_with_link > 0) {
    return false;
  }
  const RingAlgorithm& algorithm = *operation.algorithm;
  return operation.received_bytes == algorithm.receive_bytes() &&
         operation.taken_bytes == algorithm.send_bytes() &&
         (operation.has_sent_empty || algorithm.send_bytes() > 0);
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
  ReleaseEager(operation.get());
  DropMismatches(&channel, operation->key.sequence);
  if (!channel.queued.empty()) channels_to_activate_.push_back(operation->key.channel);
}

void RingCommunicator::ReleaseEager(RingOperation* operation) {
  if (operation->eager_frames == 0) return;
  --eager_operations_;
  eager_bytes_ -= operation->eager_bytes;
  operation->eager_frames = 0;
  operation->eager_bytes = 0;
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
  right_->SendControl(header, std::move(note));
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
  for (const Link* link : {left_.get(), right_.get()}) {
    counters.bytes_sent += link->counters().payload_bytes_sent;
    counters.bytes_received += link->counters().payload_bytes_received;
    counters.frames_sent += link->counters().frames_sent;
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
