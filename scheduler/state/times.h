// Times of the protocol and of absl.
#ifndef RINGD_SCHEDULER_STATE_TIMES_H_
#define RINGD_SCHEDULER_STATE_TIMES_H_

#include <cstdint>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace ringd::scheduler {

inline constexpr int64_t kNanosPerSecond = 1'000'000'000;

inline absl::Duration ToDuration(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

inline void SetDuration(absl::Duration duration, google::protobuf::Duration* proto) {
  const int64_t nanos = absl::ToInt64Nanoseconds(duration);
  proto->set_seconds(nanos / kNanosPerSecond);
  proto->set_nanos(static_cast<int32_t>(nanos % kNanosPerSecond));
}

inline void SetTimestamp(absl::Time time, google::protobuf::Timestamp* proto) {
  const int64_t nanos = absl::ToUnixNanos(time);
  proto->set_seconds(nanos / kNanosPerSecond);
  proto->set_nanos(static_cast<int32_t>(nanos % kNanosPerSecond));
}

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STATE_TIMES_H_
