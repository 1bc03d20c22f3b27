#include "client/c/error.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace ringd::client {
namespace {

ringd_error& ThreadError() {
  thread_local ringd_error error{.size = sizeof(ringd_error), .rank = -1, .exit_code = -1};
  return error;
}

}  // namespace

void CopyText(std::string_view from, char* to, size_t capacity) {
  const size_t bytes = std::min(from.size(), capacity - 1);
  std::memcpy(to, from.data(), bytes);
  to[bytes] = '\0';
}

int Fail(Code code, std::string_view message) {
  ringd_error& error = ThreadError();
  error.code = static_cast<int32_t>(code);
  error.rank = -1;
  error.exit_code = -1;
  error.signal = 0;
  error.node[0] = '\0';
  error.stderr_tail[0] = '\0';
  CopyText(message, error.message, sizeof(error.message));
  return error.code;
}

int FailFormat(Code code, const char* format, ...) {
  char text[sizeof(ringd_error::message)];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return Fail(code, text);
}

int FailWith(const ringd_error& error) {
  ThreadError() = error;
  ThreadError().size = sizeof(ringd_error);
  return error.code;
}

const ringd_error& LastError() { return ThreadError(); }

}  // namespace ringd::client
