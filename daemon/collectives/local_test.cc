#include "daemon/collectives/local.h"

#include <sched.h>

#include <numeric>

#include "common/base/cpus.h"
#include "daemon/collectives/conformance.h"
#include "daemon/collectives/slice_pool.h"

namespace ringd::daemon {
namespace {

class LocalCluster : public Cluster {
 public:
  explicit LocalCluster(const GroupLayout& layout)
      : layout_(layout), pool_(2), communicator_(MakeLocalCommunicator(layout, &pool_)) {}
  const GroupLayout& layout(int) const override { return layout_; }
  Communicator* communicator(int) override { return communicator_.get(); }
  void Drive() override { communicator_->Progress(); }

 private:
  const GroupLayout layout_;
  SlicePool pool_;
  std::unique_ptr<Communicator> communicator_;
};

std::unique_ptr<Cluster> MakeLocalCluster(const std::vector<GroupLayout>& layouts) {
  return std::make_unique<LocalCluster>(layouts[0]);
}

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorConformanceTest,
                         testing::Values(Shape{"1rank", {1}, MakeLocalCluster},
                                         Shape{"2ranks", {2}, MakeLocalCluster},
                                         Shape{"3ranks", {3}, MakeLocalCluster},
                                         Shape{"4ranks", {4}, MakeLocalCluster},
                                         Shape{"5ranks", {5}, MakeLocalCluster}),
                         [](const auto& info) { return info.param.name; });

// Sums of 64 KiB, begun together: they are shared between the threads, each whole.
TEST(LocalCommunicatorTest, Start_ManySmallAtOnce_EachIsReducedAndToldOnce) {
  constexpr int kOperations = 50;
  constexpr size_t kCount = 16 << 10, kRanks = 3;
  SlicePool pool(3);
  const auto communicator = MakeLocalCommunicator(GroupLayout{}, &pool);
  std::vector<std::vector<float>> buffers(kOperations * kRanks);
  std::vector<int> told(kOperations);
  for (int round = 1; round <= 20; ++round) {
    for (int i = 0; i < kOperations; ++i) {
      auto collective = std::make_shared<Collective>();
      collective->operation = Operation::kAllreduce;
      collective->dtype = DType::kFloat32;
      collective->reduction = Reduction::kSum;
      collective->count = kCount;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        std::vector<float>& buffer = buffers[i * kRanks + rank];
        buffer.assign(kCount, static_cast<float>(1000 * rank + i));
        auto* const memory = reinterpret_cast<std::byte*>(buffer.data());
        collective->ranks.push_back({memory, memory});
      }
      communicator->Start({1, static_cast<uint64_t>(i)}, collective,
                          [&told, i](const Outcome& outcome) {
                            EXPECT_TRUE(outcome.ok());
                            ++told[i];
                          });
      if (i % 7 == round % 7) communicator->Progress();
    }
    while (communicator->Progress()) {
    }
    EXPECT_EQ(told, std::vector<int>(kOperations, round));
    for (int i = 0; i < kOperations; ++i) {
      const std::vector<float> sum(kCount, static_cast<float>(3000 + 3 * i));
      for (size_t rank = 0; rank < kRanks; ++rank) ASSERT_EQ(buffers[i * kRanks + rank], sum);
    }
  }
}

TEST(SlicePoolTest, Submit_ManyTasks_RunsEveryUnitOnce) {
  for (const int threads : {1, 2, 4}) {
    SlicePool pool(threads);
    for (const size_t total : {size_t{1}, size_t{7}, size_t{1000}, size_t{100'003}}) {
      std::vector<std::atomic<int>> hits(total);
      std::vector<std::shared_ptr<SliceTask>> tasks;
      for (int i = 0; i < 3; ++i) {
        tasks.push_back(pool.Submit(total, 64, [&hits](size_t begin, size_t end) {
          for (size_t at = begin; at < end; ++at) hits[at].fetch_add(1, std::memory_order_relaxed);
        }));
      }
      for (const auto& task : tasks) {
        while (!task->done()) pool.RunPiece();
      }
      for (size_t at = 0; at < total; ++at) ASSERT_EQ(hits[at].load(), 3) << at << " of " << total;
    }
  }
}

TEST(SlicePoolTest, Submit_HelpersAsleep_WakesThem) {
  SlicePool pool(2);
  for (int i = 0; i < 20; ++i) {
    struct timespec pause = {0, 2'000'000};
    nanosleep(&pause, nullptr);
    std::atomic<int> units{0};
    // The engine's thread takes no piece: the helper must.
    auto task = pool.Submit(4, 1, [&](size_t, size_t) { ++units; });
    for (int wait = 0; !task->done() && wait < 5000; ++wait) nanosleep(&pause, nullptr);
    ASSERT_TRUE(task->done());
    EXPECT_EQ(units.load(), 4);
  }
}

TEST(SlicePoolTest, Submit_TwoCpus_KeepsHelpersOffTheCallersCpu) {
  if (UsableCpus() < 2) return;  // Then there is nowhere else.
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  SlicePool pool(2);
  std::atomic<int> checked{0};
  for (int i = 0; i < 20; ++i) {
    const int caller = sched_getcpu();
    std::atomic<int> allowed{-1};
    const auto helper = [&](size_t, size_t) {
      cpu_set_t mine;
      ASSERT_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
      allowed = CPU_ISSET(caller, &mine) ? 1 : 0;
    };
    const auto task = pool.Submit(1, 1, helper);  // The caller takes no piece.
    const bool moved = sched_getcpu() != caller;
    while (!task->done()) sched_yield();
    if (moved) continue;
    EXPECT_EQ(allowed.load(), 0) << "of CPU " << caller;
    ++checked;
  }
  EXPECT_GT(checked.load(), 0);
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace ringd::daemon
