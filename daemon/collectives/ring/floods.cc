// Failures: told to all nodes by floods, and what broken links mean.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/status/macros.h"
#include "daemon/collectives/mismatch.h"
#include "daemon/collectives/ring/communicator.h"

namespace ringd::daemon {
namespace {

// Failures and descriptions of operations that are not started here yet; a job has few at a time.
constexpr size_t kMaxEarlyTextBytes = 64u << 20;
constexpr size_t kEarlyTextOverheadBytes = 512;  // Of an entry.

bool IsAt(const wire::FrameHeader* header, OperationKey key) {
  return header != nullptr && header->type == wire::FrameType::kData &&
         header->channel == key.channel && header->sequence == key.sequence;
}

size_t TextBytes(const Outcome& outcome) {
  return outcome.message.size() + outcome.stderr_tail.size() + kEarlyTextOverheadBytes;
}
size_t TextBytes(const MismatchReport& report) {
  return report.description.size() + kEarlyTextOverheadBytes;
}

Outcome Checked(const Outcome& outcome) {
  if (!outcome.ok()) return outcome;
  Outcome failure = outcome;
  failure.code = arena::Code::kInternal;
  return failure;
}

}  // namespace

void RingCommunicator::Abort(OperationKey key, const Outcome& outcome) {
  RingChannel& channel = channels_[key.channel];
  const bool is_started = channel.Find(key.sequence) != nullptr;
  if (broken_.has_value() || (!is_started && (key.sequence <= channel.last_started ||
                                              channel.FindFailure(key.sequence) != nullptr))) {
    return;
  }
  const Outcome failure = Checked(outcome);
  SendFlood(wire::FrameType::kAbort, key, 0, {failure, ""});
  FailOne(key, failure, false).IgnoreError();  // Our own texts are bounded by the engine's slots.
  FlushControl();
  RunCallbacks();
}

void RingCommunicator::AbortFrom(OperationKey key, const Outcome& outcome) {
  const RingChannel& channel = channels_[key.channel];
  if (broken_.has_value() ||
      (channel.failed_from.has_value() && channel.failed_from->first <= key.sequence)) {
    return;
  }
  const Outcome failure = Checked(outcome);
  SendFlood(wire::FrameType::kAbortFrom, key, 0, {failure, ""});
  FailFrom(key, failure, false).IgnoreError();
  FlushControl();
  RunCallbacks();
}

void RingCommunicator::SendFlood(wire::FrameType type, OperationKey key, uint64_t signature,
                                 const RingFailureText& failure) {
  wire::FrameHeader header{};
  header.type = type;
  header.channel = key.channel;
  header.sequence = key.sequence;
  header.signature = signature;
  header.origin = static_cast<uint32_t>(layout_.node_index);
  header.flood = ++last_flood_;
  const std::string text = EncodeFailure(failure);
  for (const auto& lane : lanes_) {
    lane->left.SendControl(header, text);
    lane->right.SendControl(header, text);
  }
}

void RingCommunicator::FlushControl() {
  for (const auto& lane : lanes_) {
    lane->left.Flush(wire::kMaxTextBytes);
    lane->right.Flush(wire::kMaxTextBytes);
  }
}

absl::Status RingCommunicator::OnFlood(const Link& from, const wire::FrameHeader& header,
                                       const std::byte* payload) {
  if (header.origin >= floods_seen_.size() || header.flood == 0 ||
      (header.channel == wire::kAllChannels && header.type != wire::FrameType::kAbortFrom)) {
    return absl::InvalidArgumentError("it sent a malformed flood");
  }
  // A flood comes by several ways, in order by each: what is not newer has been seen.
  if (header.origin == static_cast<uint32_t>(layout_.node_index) ||
      header.flood <= floods_seen_[header.origin]) {
    return absl::OkStatus();
  }
  floods_seen_[header.origin] = header.flood;
  RINGD_ASSIGN_OR_RETURN(const RingFailureText failure,
                         DecodeFailure(payload, header.payload_bytes));
  const std::string text(reinterpret_cast<const char*>(payload), header.payload_bytes);
  for (const auto& lane : lanes_) {
    for (Link* onward : {&lane->left, &lane->right}) {
      if (onward != &from) onward->SendControl(header, text);
    }
  }
  if (broken_.has_value()) return absl::OkStatus();
  const OperationKey key{header.channel, header.sequence};
  if (header.type == wire::FrameType::kAbort) return OnAbort(header, failure);
  if (key.channel == wire::kAllChannels) {
    BreakRing(failure.outcome);
    return absl::OkStatus();
  }
  return FailFrom(key, failure.outcome, true);
}

absl::Status RingCommunicator::OnAbort(const wire::FrameHeader& header,
                                       const RingFailureText& failure) {
  const OperationKey key{header.channel, header.sequence};
  if (failure.description.empty()) return FailOne(key, failure.outcome, true);
  RingChannel* const channel = FindChannel(key.channel);
  if (channel == nullptr) return absl::InvalidArgumentError("it named too many channels");
  if (channel->Find(key.sequence) == nullptr &&
      (key.sequence <= channel->last_started || channel->FindFailure(key.sequence) != nullptr)) {
    return absl::OkStatus();
  }
  RINGD_RETURN_IF_ERROR(AddMismatch(key, header.origin, {header.signature, failure.description}));
  if (const OperationPtr operation = channel->Find(key.sequence); operation != nullptr) {
    BeginMismatch(operation);
  }
  return absl::OkStatus();
}

absl::Status RingCommunicator::FailOne(OperationKey key, const Outcome& outcome, bool tell_engine) {
  RingChannel* const channel = FindChannel(key.channel);
  if (channel == nullptr) return absl::InvalidArgumentError("it named too many channels");
  if (const OperationPtr operation = channel->Find(key.sequence); operation != nullptr) {
    Fail(operation, outcome);
    return absl::OkStatus();
  }
  if (key.sequence <= channel->last_started || channel->FindFailure(key.sequence) != nullptr) {
    return absl::OkStatus();
  }
  RINGD_RETURN_IF_ERROR(NoteEarlyText(TextBytes(outcome)));
  channel->failed_early[key.sequence] = outcome;
  DropMismatches(channel, key.sequence);
  DropEarly(channel, key.sequence);
  DiscardIncoming(key);
  if (tell_engine && peer_failure_) {
    callbacks_.push_back([this, key, outcome] { peer_failure_(key, false, outcome); });
  }
  return absl::OkStatus();
}

absl::Status RingCommunicator::FailFrom(OperationKey key, const Outcome& outcome,
                                        bool tell_engine) {
  RingChannel* const channel = FindChannel(key.channel);
  if (channel == nullptr) return absl::InvalidArgumentError("it named too many channels");
  if (channel->failed_from.has_value() && channel->failed_from->first <= key.sequence) {
    return absl::OkStatus();
  }
  channel->failed_from = {key.sequence, outcome};
  std::vector<OperationPtr> failed(channel->queued.begin(), channel->queued.end());
  failed.insert(failed.end(), channel->running.begin(), channel->running.end());
  for (const OperationPtr& operation : failed) {
    if (operation->key.sequence >= key.sequence) Fail(operation, outcome);
  }
  while (!channel->early.empty() && channel->early.rbegin()->first >= key.sequence) {
    DropEarly(channel, channel->early.rbegin()->first);
  }
  for (const auto& lane : lanes_) {
    const wire::FrameHeader* const incoming = lane->left.incoming();
    if (incoming != nullptr && incoming->sequence >= key.sequence &&
        IsAt(incoming, {key.channel, incoming->sequence})) {
      DiscardIncoming(lane.get());
    }
  }
  if (tell_engine && peer_failure_) {
    callbacks_.push_back([this, key, outcome] { peer_failure_(key, true, outcome); });
  }
  return absl::OkStatus();
}

void RingCommunicator::Fail(const OperationPtr& operation, const Outcome& outcome) {
  RingChannel& channel = channels_[operation->key.channel];
  channel.NoteFailed(operation->key.sequence);
  DropData(*operation);
  DiscardIncoming(operation->key);
  DropEarly(&channel, operation->key.sequence);
  Remove(operation);
  callbacks_.push_back([done = std::move(operation->done), outcome] { done(outcome); });
}

void RingCommunicator::DiscardIncoming(OperationKey key) {
  for (const auto& lane : lanes_) {
    if (IsAt(lane->left.incoming(), key)) DiscardIncoming(lane.get());
  }
}

void RingCommunicator::DiscardIncoming(Lane* lane) {
  lane->left.DiscardIncoming();
  if (lane->receiving_early.has_value()) lane->early_bytes -= lane->receiving_early->data.size();
  lane->receiving_early.reset();
}

std::string RingCommunicator::Describe(const RingOperation& operation) const {
  const std::string node = absl::StrCat(" (node ", layout_.nodes[layout_.node_index].name, ")");
  const std::string& description = operation.collective->description;
  const size_t colon = description.find(": ");
  if (absl::StartsWith(description, "rank ") && colon != std::string::npos) {
    return absl::StrCat(description.substr(0, colon), node, description.substr(colon));
  }
  return absl::StrCat(
      "rank ", layout_.JobRank(layout_.first_local_rank()), node, ": ",
      description.empty() ? OperationName(operation.collective->operation) : description);
}

void RingCommunicator::CheckSignatures(const OperationPtr& operation) {
  RingChannel& channel = channels_[operation->key.channel];
  const uint64_t signature = operation->collective->signature;
  bool differs = channel.mismatches.contains(operation->key.sequence);
  if (const auto found = channel.early.find(operation->key.sequence);
      found != channel.early.end()) {
    for (const EarlyStream& stream : found->second.streams) {
      differs |= stream.ready.has_value() && stream.ready->signature != signature;
      for (const EarlyFrame& frame : stream.frames) differs |= frame.header.signature != signature;
    }
  }
  for (const auto& lane : lanes_) {
    if (!lane->receiving_early.has_value()) continue;
    const wire::FrameHeader& header = lane->receiving_early->header;
    differs |= IsAt(&header, operation->key) && header.signature != signature;
  }
  if (differs) BeginMismatch(operation);
}

void RingCommunicator::BeginMismatch(const OperationPtr& operation) {
  if (operation->is_mismatched) return;
  operation->is_mismatched = true;
  MismatchReport report{operation->collective->signature, Describe(*operation)};
  RingFailureText failure;
  failure.outcome.code = arena::Code::kMismatch;
  failure.outcome.node = layout_.nodes[layout_.node_index].name;
  failure.description = report.description;
  SendFlood(wire::FrameType::kAbort, operation->key, report.signature, failure);
  AddMismatch(operation->key, static_cast<uint32_t>(layout_.node_index), std::move(report))
      .IgnoreError();
}

// The operation fails as soon as two of its descriptions differ: those of the lowest nodes that are
// known.
absl::Status RingCommunicator::AddMismatch(OperationKey key, uint32_t node, MismatchReport report) {
  RingChannel& channel = channels_[key.channel];
  if (channel.mismatches[key.sequence].contains(node)) return absl::OkStatus();
  RINGD_RETURN_IF_ERROR(NoteEarlyText(TextBytes(report)));
  std::map<uint32_t, MismatchReport>& reports = channel.mismatches[key.sequence];
  reports[node] = std::move(report);
  const auto first = reports.begin();
  for (auto other = std::next(first); other != reports.end(); ++other) {
    if (other->second.signature == first->second.signature) continue;
    Outcome outcome;
    outcome.code = arena::Code::kMismatch;
    outcome.message = MismatchMessage(key, first->second.description, other->second.description);
    outcome.node = layout_.nodes[other->first].name;
    return FailOne(key, outcome, true);
  }
  return absl::OkStatus();
}

void RingCommunicator::DropMismatches(RingChannel* channel, uint64_t sequence) {
  const auto found = channel->mismatches.find(sequence);
  if (found == channel->mismatches.end()) return;
  for (const auto& [node, report] : found->second) early_text_bytes_ -= TextBytes(report);
  channel->mismatches.erase(found);
}

void RingCommunicator::NoteStarted(RingChannel* channel, uint64_t sequence) {
  for (const auto& [skipped, outcome] : channel->failed_early) {
    if (skipped <= sequence) early_text_bytes_ -= TextBytes(outcome);
  }
  channel->NoteStarted(sequence);
}

absl::Status RingCommunicator::NoteEarlyText(size_t bytes) {
  early_text_bytes_ += bytes;
  if (early_text_bytes_ <= kMaxEarlyTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError("it reported too many failures");
}

void RingCommunicator::CheckLinks() {
  const EarlyViolation& early = early_violation_;
  if (!early.status.ok()) OnLinkBroken(early.lane, early.side, early.status);
  for (int lane = 0; lane < lane_count(); ++lane) {
    const Lane& links = *lanes_[lane];
    if (!links.left.status().ok()) OnLinkBroken(lane, Side::kLeft, links.left.status());
    if (!links.right.status().ok()) OnLinkBroken(lane, Side::kRight, links.right.status());
  }
}

void RingCommunicator::OnLinkBroken(int lane, Side side, const absl::Status& status) {
  if (broken_.has_value()) return;
  const int neighbour =
      Wrap(layout_.node_index + (side == Side::kLeft ? -1 : 1) * (1 << lane), layout_.node_count());
  Outcome outcome;
  outcome.code = arena::Code::kPeerFailed;
  outcome.node = layout_.nodes[neighbour].name;
  const std::string reason(status.message());
  outcome.message = absl::IsInvalidArgument(status)
                        ? absl::StrCat("node ", outcome.node, " broke the data protocol: ", reason)
                        : absl::StrCat("lost connection to node ", outcome.node, ": ", reason);
  // With nothing under way, it may just be the end of the job.
  const auto level = running_.empty() ? spdlog::level::info : spdlog::level::warn;
  GetLogger("collectives")->log(level, "ring broken node={} reason=\"{}\"", outcome.node, reason);
  SendFlood(wire::FrameType::kAbortFrom, {wire::kAllChannels, 0}, 0, {outcome, ""});
  FlushControl();
  BreakRing(outcome);
}

void RingCommunicator::BreakRing(const Outcome& outcome) {
  broken_ = outcome;
  for (auto& [number, channel] : channels_) {
    std::vector<OperationPtr> failed(channel.running.begin(), channel.running.end());
    failed.insert(failed.end(), channel.queued.begin(), channel.queued.end());
    for (const OperationPtr& operation : failed) Fail(operation, outcome);
    while (!channel.early.empty()) DropEarly(&channel, channel.early.begin()->first);
  }
  if (ring_failure_) callbacks_.push_back([this, outcome] { ring_failure_(outcome); });
}

}  // namespace ringd::daemon
