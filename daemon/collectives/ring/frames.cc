// What the neighbours send: payload from the left, READY from the right, floods from both.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/macros.h"
#include "daemon/collectives/ring/communicator.h"
#include "daemon/collectives/ring/staged.h"

namespace ringd::daemon {
namespace {

// Groups and plans of a job's whole life.
constexpr size_t kMaxChannels = size_t{1} << 17;
// Operations that neighbours may have begun before us: those with payload and those with READY.
constexpr size_t kMaxEarlyEntries = 2 * wire::kMaxEarlyOperations;
static_assert(kStagingPieces >= wire::kMaxEagerFrames, "eager pieces must fit the staging");

absl::Status Violation(const char* what, const wire::FrameHeader& header) {
  return absl::InvalidArgumentError(
      absl::StrCat("it sent ", what, " (channel ", header.channel, ", operation ", header.sequence,
                   ", offset ", header.offset, ", ", header.payload_bytes, " bytes)"));
}

}  // namespace

absl::StatusOr<std::byte*> RingCommunicator::OnData(Side side, const wire::FrameHeader& header) {
  if (side == Side::kRight) return Violation("payload to its left neighbour", header);
  if (broken_.has_value()) return nullptr;
  RingChannel* const channel = FindChannel(header.channel);
  if (channel == nullptr) return Violation("too many channels", header);
  const OperationPtr operation = channel->Find(header.sequence);
  if (operation == nullptr) {
    if (header.sequence <= channel->last_started) {
      if (channel->HasFailed(header.sequence)) return nullptr;
      return Violation("payload of an operation that is over", header);
    }
    if (channel->FindFailure(header.sequence) != nullptr) return nullptr;
    return ReceiveEarly(channel, header);
  }
  if (header.signature != operation->collective->signature) BeginMismatch(operation);
  if (operation->is_mismatched) return nullptr;
  if (!operation->is_announced) return ReceiveEarly(channel, header);
  RINGD_RETURN_IF_ERROR(CheckPiece(*operation, header));
  return header.payload_bytes == 0 ? nullptr : operation->algorithm->ReceiveBuffer();
}

absl::Status RingCommunicator::OnFrame(Side side, const wire::FrameHeader& header,
                                       const std::byte* payload) {
  switch (header.type) {
    case wire::FrameType::kData:
      return OnDataComplete(header, payload);
    case wire::FrameType::kReady:
      if (side == Side::kLeft) return Violation("READY to its right neighbour", header);
      return OnReady(header);
    case wire::FrameType::kNote:
      return OnNote(side, {reinterpret_cast<const char*>(payload), header.payload_bytes});
    default:
      return OnFlood(side, header, payload);
  }
}

// When nothing is half done: what is noted may start operations.
absl::Status RingCommunicator::OnNote(Side side, std::string note) {
  if (side == Side::kRight || note_ == nullptr) {
    return absl::InvalidArgumentError("it sent a note that nobody expects");
  }
  callbacks_.push_back([this, note = std::move(note)] {
    if (broken_.has_value()) return;
    if (absl::Status status = note_(note); !status.ok()) early_violation_.Update(status);
  });
  return absl::OkStatus();
}

void RingCommunicator::OnSent(uint64_t tag) {
  const auto found = running_by_id_.find(tag);
  if (found == running_by_id_.end()) return;
  RingOperation* const operation = found->second;
  --operation->frames_with_link;
  if (operation->algorithm->send_bytes() > 0) operation->algorithm->PieceSent();
}

absl::Status RingCommunicator::OnDataComplete(const wire::FrameHeader& header,
                                              const std::byte* payload) {
  if (broken_.has_value()) return absl::OkStatus();
  std::optional<EarlyFrame> early = std::exchange(receiving_early_, std::nullopt);
  RingChannel& channel = channels_[header.channel];
  const OperationPtr operation = channel.Find(header.sequence);
  if (!early.has_value()) {
    if (operation == nullptr || operation->is_mismatched) return absl::OkStatus();  // Discarded.
    ApplyPiece(operation.get(), header, payload);
    return absl::OkStatus();
  }
  RINGD_ASSIGN_OR_RETURN(EarlyArrivals* const arrivals, EarlyOf(&channel, header.sequence));
  arrivals->frames.push_back(*std::move(early));
  if (operation == nullptr || !operation->is_announced) return absl::OkStatus();
  return FeedEarly(operation.get());
}

absl::Status RingCommunicator::CheckPiece(const RingOperation& operation,
                                          const wire::FrameHeader& header) const {
  const RingAlgorithm& algorithm = *operation.algorithm;
  if (header.payload_bytes == 0) {
    if (algorithm.receive_bytes() == 0 && header.offset == 0 && !operation.left_has_begun) {
      return absl::OkStatus();
    }
    return Violation("an empty frame out of place", header);
  }
  if (header.offset != operation.received_bytes ||
      header.payload_bytes != algorithm.NextReceiveBytes() ||
      header.offset + header.payload_bytes > algorithm.ReceiveLimit()) {
    return Violation("payload that does not fit its operation", header);
  }
  return absl::OkStatus();
}

void RingCommunicator::ApplyPiece(RingOperation* operation, const wire::FrameHeader& header,
                                  const std::byte* data) {
  operation->left_has_begun = true;
  if (header.payload_bytes == 0) return;
  operation->algorithm->Received(data);
  operation->received_bytes += header.payload_bytes;
}

absl::Status RingCommunicator::OnReady(const wire::FrameHeader& header) {
  if (broken_.has_value()) return absl::OkStatus();
  RingChannel* const channel = FindChannel(header.channel);
  if (channel == nullptr) return Violation("too many channels", header);
  const OperationPtr operation = channel->Find(header.sequence);
  if (operation == nullptr) {
    if (header.sequence <= channel->last_started ||
        channel->FindFailure(header.sequence) != nullptr) {
      return absl::OkStatus();
    }
    RINGD_ASSIGN_OR_RETURN(EarlyArrivals* const arrivals, EarlyOf(channel, header.sequence));
    arrivals->ready = header;
    return absl::OkStatus();
  }
  if (header.signature != operation->collective->signature) BeginMismatch(operation);
  if (operation->is_mismatched) return absl::OkStatus();
  if (operation->is_announced) return ApplyReady(operation.get(), header);
  RINGD_ASSIGN_OR_RETURN(EarlyArrivals* const arrivals, EarlyOf(channel, header.sequence));
  arrivals->ready = header;
  return absl::OkStatus();
}

absl::Status RingCommunicator::ApplyReady(RingOperation* operation,
                                          const wire::FrameHeader& header) {
  if (header.offset > operation->algorithm->send_bytes() ||
      header.offset < operation->right_limit) {
    return Violation("READY with an impossible limit", header);
  }
  operation->right_is_ready = true;
  operation->right_limit = header.offset;
  ReleaseEager(operation);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> RingCommunicator::ReceiveEarly(RingChannel* channel,
                                                          const wire::FrameHeader& header) {
  RINGD_ASSIGN_OR_RETURN(EarlyArrivals* const arrivals, EarlyOf(channel, header.sequence));
  if (arrivals->frames.size() >= wire::kMaxEagerFrames ||
      early_bytes_ + header.payload_bytes > wire::kEagerWindowBytes) {
    return Violation("more payload before READY than the eager window takes", header);
  }
  early_bytes_ += header.payload_bytes;
  receiving_early_.emplace();
  receiving_early_->header = header;
  receiving_early_->data.resize(header.payload_bytes);
  return header.payload_bytes == 0 ? nullptr : receiving_early_->data.data();
}

absl::Status RingCommunicator::FeedEarly(RingOperation* operation) {
  RingChannel& channel = channels_[operation->key.channel];
  const auto found = channel.early.find(operation->key.sequence);
  if (found == channel.early.end()) return absl::OkStatus();
  const EarlyArrivals arrivals = std::move(found->second);
  found->second = {};
  DropEarly(&channel, operation->key.sequence);
  for (const EarlyFrame& frame : arrivals.frames) early_bytes_ -= frame.data.size();
  if (arrivals.ready.has_value()) RINGD_RETURN_IF_ERROR(ApplyReady(operation, *arrivals.ready));
  for (const EarlyFrame& frame : arrivals.frames) {
    RINGD_RETURN_IF_ERROR(CheckPiece(*operation, frame.header));
    ApplyPiece(operation, frame.header, frame.data.data());
  }
  return absl::OkStatus();
}

RingChannel* RingCommunicator::FindChannel(uint64_t channel) {
  const auto found = channels_.find(channel);
  if (found != channels_.end()) return &found->second;
  return channels_.size() < kMaxChannels ? &channels_[channel] : nullptr;
}

absl::StatusOr<EarlyArrivals*> RingCommunicator::EarlyOf(RingChannel* channel, uint64_t sequence) {
  const auto found = channel->early.find(sequence);
  if (found != channel->early.end()) return &found->second;
  if (early_operations_ >= kMaxEarlyEntries) {
    return absl::InvalidArgumentError("it has begun too many operations before us");
  }
  ++early_operations_;
  return &channel->early[sequence];
}

void RingCommunicator::DropEarly(RingChannel* channel, uint64_t sequence) {
  const auto found = channel->early.find(sequence);
  if (found == channel->early.end()) return;
  for (const EarlyFrame& frame : found->second.frames) early_bytes_ -= frame.data.size();
  channel->early.erase(found);
  --early_operations_;
}

}  // namespace ringd::daemon
