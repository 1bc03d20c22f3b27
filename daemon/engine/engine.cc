// The production engine: real data port, real communicators.
#include "daemon/engine/engine.h"

#include <utility>

#include "daemon/collectives/local.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/collectives/slice_pool.h"
#include "daemon/engine/engine_impl.h"

namespace ringd::daemon {

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  EngineImpl::Options impl;
  if (!options.data_address.empty()) {
    impl.data_host = options.data_address.substr(0, options.data_address.rfind(':'));
    impl.make_data_port = [address = options.data_address](EventLoop* loop) {
      return DataPort::Create(loop, address);
    };
  }
  auto pool = std::make_shared<SlicePool>(options.reduce_threads);
  impl.make_communicator = [pool, gather_bytes = options.gather_bytes](
                               const JobGeneration& generation, RingSockets sockets,
                               EventLoop* loop, RingFailure ring_failed, RingTuning tuning) {
    if (generation.layout.node_count() == 1) {
      return MakeLocalCommunicator(generation.layout, pool.get());
    }
    tuning.gather_bytes = gather_bytes;
    return MakeRingCommunicator(generation.layout, generation.generation, sockets, loop,
                                std::move(ring_failed), tuning);
  };
  absl::StatusOr<std::unique_ptr<EngineImpl>> engine = EngineImpl::Create(std::move(impl));
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Engine>(*std::move(engine));
}

}  // namespace ringd::daemon
