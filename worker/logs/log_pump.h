// Carries a rank's output from its pipes to its log, on a thread of its own.
#ifndef RINGD_WORKER_LOGS_LOG_PUMP_H_
#define RINGD_WORKER_LOGS_LOG_PUMP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "common/base/fd.h"
#include "worker/logs/log_file.h"
#include "worker/logs/log_lines.h"

namespace ringd::worker {

// A slow disk then delays the rank's output, never its supervision.
//
// Life: the constructor starts the thread; Finish (or the destructor) ends it.
// Ownership: takes the pipes' reading ends and the log.
// Thread-bound: the creating thread.
class LogPump {
 public:
  LogPump(UniqueFd stdout_pipe, UniqueFd stderr_pipe, std::unique_ptr<LogFile> log);
  ~LogPump();

  // Writes what the pipes hold now and closes them, without waiting for whoever still has them
  // open. Blocks until done, kFinishMicros at most. Returns the end of stderr.
  std::string Finish();

 private:
  struct Stream {
    UniqueFd pipe;
    bool is_stderr = false;
    LineSplitter lines;
    int64_t flush_at_us = 0;  // When an unfinished line is written; meaningful while there is one.
  };

  void Run();
  void Poll();
  // Whether something was read.
  bool ReadOnce(Stream* stream);
  void FlushLate(int64_t now_us);
  void Drain();

  Stream streams_[2];
  const std::unique_ptr<LogFile> log_;
  StderrTail tail_;
  std::unique_ptr<char[]> buffer_;
  const UniqueFd wake_;
  std::atomic<bool> finishing_{false};
  std::thread thread_;
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_LOGS_LOG_PUMP_H_
