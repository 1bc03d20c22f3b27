// How a process that torchrun, mpirun or srun started gets a worker: by `ringd-worker attach`.
#ifndef RINGD_CLIENT_C_LAUNCH_ATTACH_LINE_H_
#define RINGD_CLIENT_C_LAUNCH_ATTACH_LINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "client/c/launch/launcher.h"
#include "client/c/launch/nodes.h"
#include "common/base/fd.h"

namespace ringd::client {

// This process's connection to the `ringd-worker attach` of its job on this node. It stays open
// until the process ends. Thread-compatible: external synchronisation.
class AttachLine {
 public:
  // Local rank 0 starts `ringd-worker attach` (nodes.h); the others find it. Blocks until all ranks
  // of the node are there and each has a worker, at most timeout_us. RINGD_DEADLINE_EXCEEDED: names
  // the ranks that are missing. RINGD_UNAVAILABLE: the program isn't there, or what it said.
  // RINGD_INVALID_ARGUMENT: the ranks' sizes differ.
  static int Open(const Launch& launch, const Exchange& exchange, int64_t timeout_us,
                  std::unique_ptr<AttachLine>* line);

  // Once more, after SayGoodbye.
  int Return(const Launch& launch, int64_t timeout_us);

  // Where this rank's worker listens.
  const std::string& worker_socket() const { return worker_socket_; }

  // Says that this process has shut ringd down: its end is no failure then.
  void SayGoodbye();

 private:
  AttachLine(UniqueFd socket, std::string worker_socket)
      : socket_(std::move(socket)), worker_socket_(std::move(worker_socket)) {}

  const UniqueFd socket_;
  std::string worker_socket_;
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_LAUNCH_ATTACH_LINE_H_
