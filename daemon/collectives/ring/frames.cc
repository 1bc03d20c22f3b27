// What other nodes send: payload from the left, READY from the right, floods from both.
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

absl::StatusOr<std::byte*> RingCommunicator::OnData(int lane, Side side,
                                                    const wire::FrameHeader& header) {
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
    return ReceiveEarly(lane, channel, header);
  }
  if (header.signature != operation->collective->signature) BeginMismatch(operation);
  if (operation->is_mismatched) return nullptr;
  if (!operation->is_announced) return ReceiveEarly(lane, channel, header);
  RINGD_RETURN_IF_ERROR(CheckPiece(lane, *operation, header));
  return header.payload_bytes == 0 ? nullptr : operation->algorithm->stream(lane)->ReceiveBuffer();
}

absl::Status RingCommunicator::OnFrame(int lane, Side side, const wire::FrameHeader& header,
                                       const std::byte* payload) {
  switch (header.type) {
    case wire::FrameType::kData:
      return OnDataComplete(lane, header, payload);
    case wire::FrameType::kReady:
      if (side == Side::kLeft) return Violation("READY to its right neighbour", header);
      return OnReady(lane, header);
    case wire::FrameType::kNote:
      if (lane > 0) return Violation("a note on a shortcut", header);
      return OnNote(side, {reinterpret_cast<const char*>(payload), header.payload_bytes});
    default:
      return OnFlood(side == Side::kLeft ? lanes_[lane]->left : lanes_[lane]->right, header,
                     payload);
  }
}

// When nothing is half done: what is noted may start operations.
absl::Status RingCommunicator::OnNote(Side side, std::string note) {
  if (side == Side::kRight || note_ == nullptr) {
    return absl::InvalidArgumentError("it sent a note that nobody expects");
  }
  callbacks_.push_back([this, note = std::move(note)] {
    if (broken_.has_value()) return;
    NoteViolation(0, Side::kLeft, note_(note));
  });
  return absl::OkStatus();
}

void RingCommunicator::OnSent(int lane, uint64_t tag) {
  const auto found = running_by_id_.find(tag);
  if (found == running_by_id_.end()) return;
  RingOperation* const operation = found->second;
  --operation->streams[lane].frames_with_link;
  RingStream* const stream = operation->algorithm->stream(lane);
  if (stream->send_bytes() > 0) stream->PieceSent();
}

absl::Status RingCommunicator::OnDataComplete(int lane, const wire::FrameHeader& header,
                                              const std::byte* payload) {
  if (broken_.has_value()) return absl::OkStatus();
  std::optional<EarlyFrame> early = std::exchange(lanes_[lane]->receiving_early, std::nullopt);
  RingChannel& channel = channels_[header.channel];
  const OperationPtr operation = channel.Find(header.sequence);
  if (!early.has_value()) {
    if (operation == nullptr || operation->is_mismatched) return absl::OkStatus();  // Discarded.
    ApplyPiece(lane, operation.get(), header, payload);
    return absl::OkStatus();
  }
  RINGD_ASSIGN_OR_RETURN(EarlyStream* const arrivals, EarlyOf(lane, &channel, header.sequence));
  arrivals->frames.push_back(*std::move(early));
  if (operation != nullptr && operation->is_announced) FeedEarly(operation.get());
  return absl::OkStatus();
}

absl::Status RingCommunicator::CheckPiece(int lane, const RingOperation& operation,
                                          const wire::FrameHeader& header) const {
  if (!ReceivesOn(lane, operation)) return Violation("payload by a way that it can't take", header);
  const RingStream& stream = *operation.algorithm->stream(lane);
  const StreamProgress& progress = operation.streams[lane];
  if (header.payload_bytes == 0) {
    if (stream.receive_bytes() == 0 && header.offset == 0 && !progress.left_has_begun) {
      return absl::OkStatus();
    }
    return Violation("an empty frame out of place", header);
  }
  if (header.offset != progress.received_bytes ||
      header.payload_bytes != stream.NextReceiveBytes() ||
      header.offset + header.payload_bytes > stream.ReceiveLimit()) {
    return Violation("payload that does not fit its operation", header);
  }
  return absl::OkStatus();
}

void RingCommunicator::ApplyPiece(int lane, RingOperation* operation,
                                  const wire::FrameHeader& header, const std::byte* data) {
  StreamProgress& progress = operation->streams[lane];
  progress.left_has_begun = true;
  if (header.payload_bytes == 0) return;
  operation->algorithm->stream(lane)->Received(data);
  progress.received_bytes += header.payload_bytes;
}

absl::Status RingCommunicator::OnReady(int lane, const wire::FrameHeader& header) {
  if (broken_.has_value()) return absl::OkStatus();
  RingChannel* const channel = FindChannel(header.channel);
  if (channel == nullptr) return Violation("too many channels", header);
  const OperationPtr operation = channel->Find(header.sequence);
  if (operation == nullptr) {
    if (header.sequence <= channel->last_started ||
        channel->FindFailure(header.sequence) != nullptr) {
      return absl::OkStatus();
    }
  } else {
    if (header.signature != operation->collective->signature) BeginMismatch(operation);
    if (operation->is_mismatched) return absl::OkStatus();
    if (operation->is_announced) return ApplyReady(lane, operation.get(), header);
  }
  RINGD_ASSIGN_OR_RETURN(EarlyStream* const arrivals, EarlyOf(lane, channel, header.sequence));
  arrivals->ready = header;
  return absl::OkStatus();
}

absl::Status RingCommunicator::ApplyReady(int lane, RingOperation* operation,
                                          const wire::FrameHeader& header) {
  if (!SendsOn(lane, *operation) ||
      header.offset > operation->algorithm->stream(lane)->send_bytes() ||
      header.offset < operation->streams[lane].right_limit) {
    return Violation("READY with an impossible limit", header);
  }
  operation->streams[lane].right_is_ready = true;
  operation->streams[lane].right_limit = header.offset;
  ReleaseEager(lane, operation);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> RingCommunicator::ReceiveEarly(int lane, RingChannel* channel,
                                                          const wire::FrameHeader& header) {
  RINGD_ASSIGN_OR_RETURN(EarlyStream* const arrivals, EarlyOf(lane, channel, header.sequence));
  Lane& links = *lanes_[lane];
  if (arrivals->frames.size() >= wire::kMaxEagerFrames ||
      links.early_bytes + header.payload_bytes > wire::kEagerWindowBytes) {
    return Violation("more payload before READY than the eager window takes", header);
  }
  links.early_bytes += header.payload_bytes;
  EarlyFrame& early = links.receiving_early.emplace();
  early.header = header;
  early.data.resize(header.payload_bytes);
  return header.payload_bytes == 0 ? nullptr : early.data.data();
}

void RingCommunicator::FeedEarly(RingOperation* operation) {
  RingChannel& channel = channels_[operation->key.channel];
  const auto found = channel.early.find(operation->key.sequence);
  if (found == channel.early.end()) return;
  const EarlyArrivals arrivals = std::move(found->second);
  found->second = {};
  DropEarly(&channel, operation->key.sequence);
  ReleaseEarly(arrivals);
  int lane = 0;
  for (const EarlyStream& stream : arrivals.streams) {
    if (stream.ready.has_value()) {
      NoteViolation(lane, Side::kRight, ApplyReady(lane, operation, *stream.ready));
    }
    NoteViolation(lane, Side::kLeft, FeedStream(lane, operation, stream));
    ++lane;
  }
}

absl::Status RingCommunicator::FeedStream(int lane, RingOperation* operation,
                                          const EarlyStream& stream) {
  for (const EarlyFrame& frame : stream.frames) {
    RINGD_RETURN_IF_ERROR(CheckPiece(lane, *operation, frame.header));
    ApplyPiece(lane, operation, frame.header, frame.data.data());
  }
  return absl::OkStatus();
}

void RingCommunicator::NoteViolation(int lane, Side side, absl::Status status) {
  if (early_violation_.status.ok()) early_violation_ = {lane, side, std::move(status)};
}

RingChannel* RingCommunicator::FindChannel(uint64_t channel) {
  const auto found = channels_.find(channel);
  if (found != channels_.end()) return &found->second;
  return channels_.size() < kMaxChannels ? &channels_[channel] : nullptr;
}

absl::StatusOr<EarlyStream*> RingCommunicator::EarlyOf(int lane, RingChannel* channel,
                                                       uint64_t sequence) {
  const auto found = channel->early.find(sequence);
  if (found == channel->early.end() && early_operations_ >= kMaxEarlyEntries * lanes_.size()) {
    return absl::InvalidArgumentError("it has begun too many operations before us");
  }
  if (found == channel->early.end()) ++early_operations_;
  std::vector<EarlyStream>& streams = channel->early[sequence].streams;
  const auto index = static_cast<size_t>(lane);
  if (streams.size() <= index) streams.resize(index + 1);
  return &streams[index];
}

void RingCommunicator::ReleaseEarly(const EarlyArrivals& arrivals) {
  for (size_t lane = 0; lane < arrivals.streams.size(); ++lane) {
    for (const EarlyFrame& frame : arrivals.streams[lane].frames) {
      lanes_[lane]->early_bytes -= frame.data.size();
    }
  }
}

void RingCommunicator::DropEarly(RingChannel* channel, uint64_t sequence) {
  const auto found = channel->early.find(sequence);
  if (found == channel->early.end()) return;
  ReleaseEarly(found->second);
  channel->early.erase(found);
  --early_operations_;
}

}  // namespace ringd::daemon
