// How client/c says what went wrong: a code that is returned, and details that the calling thread
// keeps.
#ifndef RINGD_CLIENT_C_ERROR_H_
#define RINGD_CLIENT_C_ERROR_H_

#include <string_view>

#include "client/c/ringd.h"
#include "proto/arena.h"

namespace ringd::client {

using arena::Code;

// Makes `message` the calling thread's last error and returns the code. Texts are cut to the room
// there is.
int Fail(Code code, std::string_view message);
int FailFormat(Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The same with everything that a daemon reported.
int FailWith(const ringd_error& error);

// The calling thread's last error; code RINGD_OK where there was none.
const ringd_error& LastError();

// Copies `from` into a zero-terminated buffer.
void CopyText(std::string_view from, char* to, size_t capacity);

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_ERROR_H_
