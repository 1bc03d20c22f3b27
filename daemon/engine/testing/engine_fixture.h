// One node with a job of n ranks for the engine's tests.
#ifndef RINGD_DAEMON_ENGINE_TESTING_ENGINE_FIXTURE_H_
#define RINGD_DAEMON_ENGINE_TESTING_ENGINE_FIXTURE_H_

#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/sync/mutex.h"
#include "daemon/collectives/loopback.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/testing/fake_client.h"

namespace ringd::daemon {

// An engine over the loopback communicator, job "job" of `size` ranks on node "node-a", a client on
// each.
class TestNode {
 public:
  explicit TestNode(int size) {
    EngineImpl::Options options;
    options.make_communicator = [](const JobGeneration& generation, RingSockets, EventLoop*,
                                   const RingFailure&, const RingTuning&) {
      return MakeLoopbackCommunicator(generation.layout);
    };
    engine_ = *EngineImpl::Create(std::move(options));
    Engine::Events events;
    events.client_failed = [this](std::string, int rank, std::string reason) {
      MutexLock lock(&mu_);
      failures_.push_back(std::to_string(rank) + ": " + reason);
    };
    events.client_died = [this](std::string, int rank, int pid) {
      MutexLock lock(&mu_);
      deaths_.push_back({rank, pid});
    };
    engine_->SetEvents(events);
    if (!Prepare("job", size).ok()) abort();
    for (int rank = 0; rank < size; ++rank) {
      clients_.push_back(std::make_unique<FakeClient>());
      if (!clients_[rank]->Attach(engine_.get(), "job", rank).ok()) abort();
    }
  }

  absl::Status Prepare(const std::string& job, int size) {
    JobGeneration generation;
    generation.job = job;
    generation.generation = 1;
    generation.layout.nodes = {{"node-a", 0, size}};
    std::promise<absl::Status> done;
    engine_->PrepareJob(generation, [&](absl::Status status) { done.set_value(status); });
    return done.get_future().get();
  }

  // Runs `body` for every rank, each on a thread of its own.
  void ForEachRank(const std::function<void(int rank, FakeClient& client)>& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < clients_.size(); ++rank) {
      threads.emplace_back([&, rank] { body(static_cast<int>(rank), *clients_[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  EngineImpl& engine() { return *engine_; }
  FakeClient& client(int rank) { return *clients_[rank]; }

  std::vector<std::string> failures() {
    MutexLock lock(&mu_);
    return failures_;
  }
  struct Death {
    int rank, pid;
  };
  std::vector<Death> deaths() {
    MutexLock lock(&mu_);
    return deaths_;
  }

 private:
  Mutex mu_;
  std::vector<std::string> failures_ ABSL_GUARDED_BY(mu_);
  std::vector<Death> deaths_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<FakeClient>> clients_;
  std::unique_ptr<EngineImpl> engine_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_TESTING_ENGINE_FIXTURE_H_
