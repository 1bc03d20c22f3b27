// Sums a few floats over all ranks: see README.md.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/session/codes.h"
#include "client/session/session.h"

namespace {

using ringd::client::ArenaClient;
using ringd::session::Session;

constexpr int kCount = 4;
constexpr int64_t kTimeoutMicros = 60'000'000;

ringd::UniqueFd Duplicate(int fd) { return ringd::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

ringd_info MakeInfo(const Session& session) {
  ringd_info info{};
  info.size = sizeof(info);
  info.rank = session.layout().rank();
  info.world_size = session.layout().size();
  info.local_rank = session.layout().local_rank();
  info.local_size = session.layout().local_size();
  info.node_rank = session.layout().node_rank();
  info.node_count = session.layout().node_count();
  info.generation = session.generation();
  ringd::client::CopyText(session.job(), info.job, sizeof(info.job));
  ringd::client::CopyText(session.node(), info.node, sizeof(info.node));
  return info;
}

int Grow(Session* session, uint64_t bytes, ringd::UniqueFd* fd, uint64_t* segment_bytes) {
  absl::StatusOr<Session::Segment> segment = session->Grow(bytes);
  if (!segment.ok()) {
    return ringd::client::Fail(ringd::session::ToCode(segment.status()),
                               std::string(segment.status().message()));
  }
  *fd = std::move(segment->fd);
  *segment_bytes = segment->bytes;
  return RINGD_OK;
}

int CreateClient(Session* session, std::unique_ptr<ArenaClient>* client) {
  ringd::client::ArenaClientOptions options;
  options.segment = Duplicate(session->segment_fd());
  options.segment_bytes = session->segment_bytes();
  options.doorbell = Duplicate(session->doorbell_fd());
  if (session->shared_segment_fd() >= 0) {
    options.shared_segment = Duplicate(session->shared_segment_fd());
  }
  options.info = MakeInfo(*session);
  options.grow = [session](uint64_t bytes, ringd::UniqueFd* fd, uint64_t* segment_bytes) {
    return Grow(session, bytes, fd, segment_bytes);
  };
  options.liveness_fd = session->liveness_fd();
  return ArenaClient::Create(std::move(options), client);
}

// In place, in the arena: nothing is copied.
int Allreduce(ArenaClient* client, float* values) {
  const int64_t shape[] = {kCount};
  ringd_operation operation{};
  operation.size = sizeof(operation);
  operation.operation = static_cast<uint32_t>(ringd::Operation::kAllreduce);
  operation.dtype = static_cast<uint32_t>(ringd::DType::kFloat32);
  operation.reduction = static_cast<uint32_t>(ringd::Reduction::kSum);
  operation.count = kCount;
  operation.input = values;
  operation.output = values;
  operation.output_count = kCount;
  operation.shape = shape;
  operation.ndim = 1;
  operation.site = "cc_client";
  operation.prescale = 1.0;
  operation.postscale = 1.0;
  ringd_handle handle = 0;
  if (const int code = client->SubmitBatch(&operation, 1, &handle); code != RINGD_OK) return code;
  return client->Wait(handle, kTimeoutMicros);
}

int Fail(const std::string& reason) {
  fprintf(stderr, "cc_client: %s\n", reason.c_str());
  return EXIT_FAILURE;
}

int Run(Session* session) {
  std::unique_ptr<ArenaClient> client;
  if (CreateClient(session, &client) != RINGD_OK) return Fail(ringd::client::LastError().message);
  auto* values = static_cast<float*>(client->Allocate(kCount * sizeof(float)));
  if (values == nullptr) return Fail(ringd::client::LastError().message);
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<float>(client->info().rank + 1);
  if (Allreduce(client.get(), values) != RINGD_OK) return Fail(ringd::client::LastError().message);
  printf("rank %d of %d: sum", client->info().rank, client->info().world_size);
  for (int i = 0; i < kCount; ++i) printf(" %g", values[i]);
  printf("\n");
  client->Free(values);
  client->Shutdown(kTimeoutMicros);
  return EXIT_SUCCESS;
}

}  // namespace

int main() {
  ringd::session::SessionOptions options;
  if (const char* socket = getenv("RINGD_SOCKET"); socket != nullptr)
    options.worker_socket = socket;
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Attach(options);
  if (!session.ok()) return Fail(std::string(session.status().message()));
  return Run(session->get());
}
