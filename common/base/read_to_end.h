// What comes from a descriptor until its end.
#ifndef RINGD_COMMON_BASE_READ_TO_END_H_
#define RINGD_COMMON_BASE_READ_TO_END_H_

#include <errno.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringd {

// Blocks until the other end is closed, or an error. Keeps `limit` bytes and reads on.
inline std::string ReadToEnd(int fd, size_t limit = SIZE_MAX) {
  std::string text;
  char buffer[1024];
  while (true) {
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    text.append(buffer, static_cast<size_t>(bytes));
    if (text.size() > limit) text.resize(limit);
  }
}

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_READ_TO_END_H_
