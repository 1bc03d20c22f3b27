// How a training process becomes its worker's client: the socket named in RINGD_SOCKET.
#ifndef RINGD_CLIENT_C_CONNECT_H_
#define RINGD_CLIENT_C_CONNECT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "client/c/arena_client.h"
#include "common/base/fd.h"

namespace ringd::client {

// The connection to a rank's worker; it lives as long as the client. Requests come one after the
// other. Thread-compatible: external synchronisation.
class WorkerConnection {
 public:
  // Blocks until the worker has welcomed this process, at most timeout_us. Fills `options` but for
  // `grow`. RINGD_UNAVAILABLE: no worker there, or it refuses (another process holds the rank);
  // RINGD_DEADLINE_EXCEEDED; RINGD_INTERNAL: an answer that this library can't read.
  static int Open(const std::string& path, int64_t timeout_us,
                  std::unique_ptr<WorkerConnection>* connection, ArenaClientOptions* options);

  // Blocks until the worker has made another segment of at least `bytes`.
  int NeedSegment(uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes);

  int fd() const { return socket_.get(); }

 private:
  explicit WorkerConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  UniqueFd socket_;
  uint32_t segment_count_ = 1;
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_CONNECT_H_
