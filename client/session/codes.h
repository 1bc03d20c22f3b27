// arena::Code, as answers on the descriptor sockets carry it, and absl::Status.
#ifndef RINGD_CLIENT_SESSION_CODES_H_
#define RINGD_CLIENT_SESSION_CODES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/arena.h"

namespace ringd::session {

// Unknown numbers are INTERNAL.
absl::Status ToStatus(uint32_t code, const std::string& text);
arena::Code ToCode(const absl::Status& status);

// Copies text into a zero-filled field, cut so that a terminating zero remains.
void FillText(const std::string& text, char* field, size_t bytes);
// Up to the first zero, `bytes` at most.
std::string ReadText(const char* field, size_t bytes);

}  // namespace ringd::session

#endif  // RINGD_CLIENT_SESSION_CODES_H_
