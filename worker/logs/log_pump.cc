#include "worker/logs/log_pump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/futex.h"

namespace ringd::worker {
namespace {

constexpr size_t kReadBytes = 64u << 10;      // A pipe's own size.
constexpr int64_t kPartialMicros = 50'000;    // An unfinished line is shown after this.
constexpr int64_t kFinishMicros = 1'000'000;  // For a writer that escaped and goes on writing.

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

LogPump::LogPump(UniqueFd stdout_pipe, UniqueFd stderr_pipe, std::unique_ptr<LogFile> log)
    : log_(std::move(log)),
      buffer_(new char[kReadBytes]),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  streams_[0].pipe = std::move(stdout_pipe);
  streams_[1].pipe = std::move(stderr_pipe);
  streams_[1].is_stderr = true;
  for (Stream& stream : streams_) SetNonBlocking(stream.pipe.get());
  thread_ = std::thread([this] { Run(); });
}

LogPump::~LogPump() { Finish(); }

std::string LogPump::Finish() {
  if (thread_.joinable()) {
    finishing_.store(true);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }
  return tail_.Text();
}

void LogPump::Run() {
  while (!finishing_.load()) {
    Poll();
    for (Stream& stream : streams_) ReadOnce(&stream);
    FlushLate(MonotonicMicros());
  }
  Drain();
}

void LogPump::Poll() {
  pollfd entries[3] = {{wake_.get(), POLLIN, 0}};
  int64_t flush_at_us = INT64_MAX;
  for (int i = 0; i < 2; ++i) {
    entries[i + 1] = {streams_[i].pipe.get(), POLLIN, 0};  // Closed: -1, which poll skips.
    if (streams_[i].lines.has_pending())
      flush_at_us = std::min(flush_at_us, streams_[i].flush_at_us);
  }
  int timeout_ms = -1;
  if (flush_at_us != INT64_MAX) {
    timeout_ms =
        static_cast<int>(std::max<int64_t>(0, (flush_at_us - MonotonicMicros() + 999) / 1000));
  }
  poll(entries, 3, timeout_ms);
}

bool LogPump::ReadOnce(Stream* stream) {
  if (!stream->pipe.valid()) return false;
  const ssize_t got = read(stream->pipe.get(), buffer_.get(), kReadBytes);
  if (got > 0) {
    const absl::string_view data(buffer_.get(), got);
    if (stream->is_stderr) tail_.Add(data);
    log_->Write(stream->is_stderr, stream->lines.Add(data));
    stream->flush_at_us = MonotonicMicros() + kPartialMicros;
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) stream->pipe.reset();
  return false;
}

void LogPump::FlushLate(int64_t now_us) {
  for (Stream& stream : streams_) {
    const bool late = now_us >= stream.flush_at_us || !stream.pipe.valid();
    if (stream.lines.has_pending() && late) log_->Write(stream.is_stderr, stream.lines.Flush());
  }
}

void LogPump::Drain() {
  const int64_t deadline_us = MonotonicMicros() + kFinishMicros;
  bool more = true;
  while (more && MonotonicMicros() < deadline_us) {
    more = false;
    for (Stream& stream : streams_) more = ReadOnce(&stream) || more;
  }
  for (Stream& stream : streams_) stream.pipe.reset();
  FlushLate(INT64_MAX);
}

}  // namespace ringd::worker
