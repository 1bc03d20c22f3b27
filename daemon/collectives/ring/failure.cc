#include "daemon/collectives/ring/failure.h"

#include <string.h>

#include <algorithm>

#include "absl/strings/string_view.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

constexpr size_t kMaxShortTextBytes = 64u << 10;  // Messages and tails are far shorter.

uint32_t Append(const std::string& part, size_t max_bytes, std::string* text) {
  const size_t bytes = std::min(part.size(), max_bytes);
  text->append(part, 0, bytes);
  return static_cast<uint32_t>(bytes);
}

}  // namespace

std::string EncodeFailure(const RingFailureText& failure) {
  wire::Failure record{};
  std::string text(sizeof(record), '\0');
  record.code = static_cast<uint32_t>(failure.outcome.code);
  record.rank = failure.outcome.rank;
  record.exit_code = failure.outcome.exit_code;
  record.signal = failure.outcome.signal;
  record.message_bytes = Append(failure.outcome.message, kMaxShortTextBytes, &text);
  record.tail_bytes = Append(failure.outcome.stderr_tail, kMaxShortTextBytes, &text);
  record.description_bytes =
      Append(failure.description, wire::kMaxTextBytes - text.size() - kMaxShortTextBytes, &text);
  record.node_bytes = Append(failure.outcome.node, kMaxShortTextBytes, &text);
  memcpy(text.data(), &record, sizeof(record));
  return text;
}

absl::StatusOr<RingFailureText> DecodeFailure(const std::byte* data, size_t bytes) {
  wire::Failure record{};
  if (bytes < sizeof(record)) return absl::InvalidArgumentError("it sent a truncated failure");
  memcpy(&record, data, sizeof(record));
  const uint64_t expected = sizeof(record) + uint64_t{record.message_bytes} + record.tail_bytes +
                            record.description_bytes + record.node_bytes;
  if (expected != bytes || record.code == static_cast<uint32_t>(arena::Code::kOk) ||
      record.code > static_cast<uint32_t>(arena::Code::kInternal)) {
    return absl::InvalidArgumentError("it sent a malformed failure");
  }
  absl::string_view rest(reinterpret_cast<const char*>(data) + sizeof(record),
                         bytes - sizeof(record));
  const auto take = [&rest](uint32_t count) {
    const std::string part(rest.substr(0, count));
    rest.remove_prefix(count);
    return part;
  };
  RingFailureText failure;
  failure.outcome.code = static_cast<arena::Code>(record.code);
  failure.outcome.rank = record.rank;
  failure.outcome.exit_code = record.exit_code;
  failure.outcome.signal = record.signal;
  failure.outcome.message = take(record.message_bytes);
  failure.outcome.stderr_tail = take(record.tail_bytes);
  failure.description = take(record.description_bytes);
  failure.outcome.node = take(record.node_bytes);
  return failure;
}

}  // namespace ringd::daemon
