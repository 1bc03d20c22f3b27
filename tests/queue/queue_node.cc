#include "tests/queue/queue_node.h"

#include <fcntl.h>

#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "client/c/ringd.h"
#include "client/session/memory_limit.h"
#include "common/base/fd.h"
#include "daemon/collectives/communicator.h"
#include "proto/arena.h"
#include "tests/queue/shared_mapping.h"

namespace ringd {
namespace {

constexpr char kJob[] = "job";
constexpr uint64_t kMaxArenaBytes = 256u << 20;
constexpr int64_t kShutdownMicros = 5'000'000;

UniqueFd Duplicate(const UniqueFd& fd) {
  UniqueFd copy(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) abort();
  return copy;
}

session::MemoryLimit Plenty() { return {uint64_t{1} << 40, uint64_t{1} << 40, "test"}; }

}  // namespace

QueueNode::QueueNode(int size) : ranks_(size) {
  daemon::EngineOptions options;
  options.reduce_threads = 2;
  engine_ = *daemon::Engine::Create(options);
  daemon::JobGeneration generation;
  generation.job = kJob;
  generation.generation = 1;
  generation.layout.nodes = {{"node-a", 0, size}};
  generation.key = std::string(32, 'k');
  std::promise<absl::Status> prepared;
  engine_->PrepareJob(generation,
                      [&](absl::Status status) { prepared.set_value(std::move(status)); });
  if (!prepared.get_future().get().ok()) abort();
  for (int rank = 0; rank < size; ++rank) Attach(rank);
}

QueueNode::~QueueNode() {
  for (int rank = 0; rank < size(); ++rank) Detach(rank);
  engine_->Stop();
}

int QueueNode::CountMappings(int rank) const {
  return ringd::CountMappings(ranks_[rank].keeper->segments()[0].fd.get());
}

void QueueNode::ForEachRank(
    const std::function<void(int rank, client::ArenaClient& client)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank, client(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

void QueueNode::Reattach(int rank) {
  Detach(rank);
  Attach(rank);
}

void QueueNode::Attach(int rank) {
  Rank& place = ranks_[rank];
  place.keeper = std::make_unique<session::ArenaKeeper>(arena::kMinBytes, kMaxArenaBytes, Plenty);
  if (!place.keeper->CreateFirst().ok()) abort();
  const session::ArenaKeeper::Segment& first = place.keeper->segments()[0];
  const absl::StatusOr<int> doorbell =
      engine_->AddClient(kJob, rank, ++place.arena, {Duplicate(first.fd).release(), first.bytes});
  if (!doorbell.ok()) abort();
  client::ArenaClientOptions options;
  options.segment = Duplicate(first.fd);
  options.segment_bytes = first.bytes;
  options.doorbell = UniqueFd(*doorbell);
  options.shared_segment = UniqueFd(*engine_->ShareSegment(kJob));
  options.info = ringd_info{.size = sizeof(ringd_info),
                            .rank = rank,
                            .world_size = size(),
                            .local_rank = rank,
                            .local_size = size(),
                            .node_count = 1,
                            .generation = 1};
  options.grow = [this, rank](uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes) {
    return Grow(rank, bytes, fd, segment_bytes);
  };
  if (client::ArenaClient::Create(std::move(options), &place.client) != RINGD_OK) abort();
}

void QueueNode::Detach(int rank) {
  Rank& place = ranks_[rank];
  place.client->Shutdown(kShutdownMicros);
  engine_->RemoveClient(kJob, rank, place.arena);
  place.client.reset();
}

int QueueNode::Grow(int rank, uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes) {
  Rank& place = ranks_[rank];
  const absl::StatusOr<uint32_t> index = place.keeper->Grow(bytes);
  if (!index.ok()) return RINGD_RESOURCE_EXHAUSTED;
  const session::ArenaKeeper::Segment& segment = place.keeper->segments()[*index];
  const absl::Status added = engine_->AddSegment(kJob, rank, place.arena, *index,
                                                 {Duplicate(segment.fd).release(), segment.bytes});
  if (!added.ok()) return RINGD_INTERNAL;
  *fd = Duplicate(segment.fd);
  *segment_bytes = segment.bytes;
  return RINGD_OK;
}

}  // namespace ringd
