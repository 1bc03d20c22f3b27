#include "client/session/codes.h"

#include <string.h>

namespace ringd::session {

absl::Status ToStatus(uint32_t code, const std::string& text) {
  switch (static_cast<arena::Code>(code)) {
    case arena::Code::kOk:
      return absl::OkStatus();
    case arena::Code::kInvalidArgument:
      return absl::InvalidArgumentError(text);
    case arena::Code::kMismatch:
    case arena::Code::kNotInitialized:
    case arena::Code::kForked:
      return absl::FailedPreconditionError(text);
    case arena::Code::kPeerFailed:
    case arena::Code::kUnavailable:
      return absl::UnavailableError(text);
    case arena::Code::kGenerationChanged:
      return absl::AbortedError(text);
    case arena::Code::kDeadlineExceeded:
      return absl::DeadlineExceededError(text);
    case arena::Code::kInterrupted:
      return absl::CancelledError(text);
    case arena::Code::kResourceExhausted:
      return absl::ResourceExhaustedError(text);
    case arena::Code::kInternal:
      break;
  }
  return absl::InternalError(text);
}

arena::Code ToCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return arena::Code::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
      return arena::Code::kInvalidArgument;
    case absl::StatusCode::kUnavailable:
      return arena::Code::kUnavailable;
    case absl::StatusCode::kAborted:
      return arena::Code::kGenerationChanged;
    case absl::StatusCode::kDeadlineExceeded:
      return arena::Code::kDeadlineExceeded;
    case absl::StatusCode::kCancelled:
      return arena::Code::kInterrupted;
    case absl::StatusCode::kResourceExhausted:
      return arena::Code::kResourceExhausted;
    default:
      return arena::Code::kInternal;
  }
}

void FillText(const std::string& text, char* field, size_t bytes) {
  memset(field, 0, bytes);
  text.copy(field, bytes - 1);
}

std::string ReadText(const char* field, size_t bytes) {
  return std::string(field, strnlen(field, bytes));
}

}  // namespace ringd::session
