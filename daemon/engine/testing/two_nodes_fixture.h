// Two production engines in one process, joined by a ring over the loopback interface.
#ifndef RINGD_DAEMON_ENGINE_TESTING_TWO_NODES_FIXTURE_H_
#define RINGD_DAEMON_ENGINE_TESTING_TWO_NODES_FIXTURE_H_

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/fake_client.h"
#include "gtest/gtest.h"

namespace ringd::daemon {

// Job "job": node-a has the ranks 0 and 1, node-b rank 2.
class TwoNodesTest : public testing::Test {
 protected:
  void SetUp() override {
    JobGeneration generation;
    generation.job = "job";
    generation.generation = 1;
    generation.layout.nodes = {{"node-a", 0, 2}, {"node-b", 2, 1}};
    generation.key = std::string(32, 'k');
    for (auto& engine : engines_) {
      EngineOptions options;
      options.data_address = "127.0.0.1:0";
      options.reduce_threads = 2;
      auto created = Engine::Create(options);
      ASSERT_TRUE(created.ok()) << created.status();
      engine = *std::move(created);
      generation.data_addresses.push_back(engine->data_address());
    }
    std::promise<absl::Status> prepared[2];
    for (int node = 0; node < 2; ++node) {
      generation.layout.node_index = node;
      engines_[node]->PrepareJob(generation, [&prepared, node](absl::Status status) {
        prepared[node].set_value(std::move(status));
      });
    }
    for (auto& promise : prepared) {
      const absl::Status status = promise.get_future().get();
      ASSERT_TRUE(status.ok()) << status;
    }
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(clients_[rank].Attach(EngineOf(rank), "job", rank).ok());
    }
  }

  Engine* EngineOf(int rank) { return engines_[rank / 2].get(); }
  void ForEachRank(const std::function<void(int rank, FakeClient& client)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] { body(rank, clients_[rank]); });
    for (std::thread& thread : threads) thread.join();
  }

  FakeClient clients_[3];
  std::unique_ptr<Engine> engines_[2];
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_TESTING_TWO_NODES_FIXTURE_H_
