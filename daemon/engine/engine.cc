// The production engine: real data port, real communicators.
#include "daemon/engine/engine.h"

#include <utility>

#include "daemon/collectives/loopback.h"
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
  impl.make_communicator = [](const JobGeneration& generation, RingSockets, EventLoop*,
                              const std::function<void(absl::Status)>&) {
    return MakeLoopbackCommunicator(generation.layout);
  };
  absl::StatusOr<std::unique_ptr<EngineImpl>> engine = EngineImpl::Create(std::move(impl));
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Engine>(*std::move(engine));
}

}  // namespace ringd::daemon
