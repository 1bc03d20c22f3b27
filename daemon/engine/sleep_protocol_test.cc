// No wake-up is ever lost: every interleaving of the two sleep-and-wake protocols of the arena, as
// a model, and a stress run of the real ones.
//
// Doorbell: a client publishes `head`, then reads `sleeping`, then rings; the engine sets
// `sleeping`, then reads `head`, then blocks on the bell. Slot: the engine writes `word`, then
// reads `waiters`, then wakes; a waiter raises `waiters`, then reads `word`, then blocks in a futex
// while `word` has not changed. All four are seq_cst, so that every execution is some interleaving
// of these steps.
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "daemon/engine/testing/engine_fixture.h"
#include "daemon/engine/testing/interleavings.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

struct Bell {
  enum Engine { kDrain, kIdlePoll, kAnnounce, kLook, kLatePoll, kBlock, kAwake };
  enum Client { kPublish, kRead, kRing };
  static constexpr int kOperations = 4;

  int head = 0, tail = 0, sleeping = 0, rung = 0;
  int engine = kDrain;
  int client = kPublish;
  int read_first = 0;  // What a client that reads too early has seen.
  auto Tuple() const { return std::tie(head, tail, sleeping, rung, engine, client, read_first); }
  bool operator<(const Bell& other) const { return Tuple() < other.Tuple(); }
};

enum class Flaw { kNone, kLookBeforeAnnounce, kReadBeforePublish, kPollAfterLook };

std::optional<Bell> StepEngine(Bell s, Flaw flaw) {
  switch (s.engine) {
    case Bell::kDrain:
      if (s.head != s.tail) {
        s.tail = s.head;
      } else {
        s.engine = Bell::kIdlePoll;
      }
      return s;
    case Bell::kIdlePoll:  // The idle rounds look at the descriptors, too: rings of before are used
                           // up.
      s.rung = 0;
      s.engine = flaw == Flaw::kLookBeforeAnnounce ? Bell::kLook : Bell::kAnnounce;
      return s;
    case Bell::kAnnounce:
      s.sleeping = 1;
      s.engine = flaw == Flaw::kLookBeforeAnnounce ? Bell::kBlock : Bell::kLook;
      return s;
    case Bell::kLook:
      if (s.head != s.tail) {
        s.engine = Bell::kAwake;
      } else if (flaw == Flaw::kLookBeforeAnnounce) {
        s.engine = Bell::kAnnounce;
      } else {
        s.engine = flaw == Flaw::kPollAfterLook ? Bell::kLatePoll : Bell::kBlock;
      }
      return s;
    case Bell::kLatePoll:
      s.rung = 0;
      s.engine = Bell::kBlock;
      return s;
    case Bell::kBlock:
      if (s.rung == 0) return std::nullopt;
      s.rung = 0;
      s.engine = Bell::kAwake;
      return s;
    default:
      s.sleeping = 0;
      s.engine = Bell::kDrain;
      return s;
  }
}

std::optional<Bell> StepClient(Bell s, Flaw flaw) {
  const bool early = flaw == Flaw::kReadBeforePublish;
  switch (s.client) {
    case Bell::kPublish:
      if (s.head == Bell::kOperations) return std::nullopt;
      if (early) {
        s.read_first = s.sleeping;
      } else {
        ++s.head;
      }
      s.client = Bell::kRead;
      return s;
    case Bell::kRead: {
      if (early) ++s.head;
      const int sleeping = early ? s.read_first : s.sleeping;
      s.client = sleeping != 0 ? Bell::kRing : Bell::kPublish;
      return s;
    }
    default:
      s.rung = 1;
      s.client = Bell::kPublish;
      return s;
  }
}

bool BellCanBeLost(Flaw flaw) {
  return CanReach<Bell>(
      Bell{}, 2,
      [flaw](Bell s, int process) {
        return process == 0 ? StepEngine(s, flaw) : StepClient(s, flaw);
      },
      [](const Bell& s) {
        const bool client_is_done = s.client == Bell::kPublish && s.head == Bell::kOperations;
        return client_is_done && s.engine == Bell::kBlock && s.rung == 0 && s.head != s.tail;
      });
}

TEST(SleepProtocolTest, Doorbell_EveryInterleaving_WakesTheEngine) {
  EXPECT_FALSE(BellCanBeLost(Flaw::kNone));
}

TEST(SleepProtocolTest, Doorbell_TheModelFindsWrongOrders) {
  EXPECT_TRUE(BellCanBeLost(Flaw::kLookBeforeAnnounce));
  EXPECT_TRUE(BellCanBeLost(Flaw::kReadBeforePublish));
  EXPECT_TRUE(BellCanBeLost(Flaw::kPollAfterLook));
}

struct SlotModel {
  enum Waiter { kCheck, kRaise, kLoad, kWait, kSleeping, kLower, kDone };
  enum Completer { kStore, kCount, kWake, kFinished };

  int word = 0, waiters = 0, counted = 0;
  int completer = kStore;
  int waiter[2] = {kCheck, kCheck};
  int seen[2] = {0, 0};
  auto Tuple() const {
    return std::tie(word, waiters, counted, completer, waiter[0], waiter[1], seen[0], seen[1]);
  }
  bool operator<(const SlotModel& other) const { return Tuple() < other.Tuple(); }
};

enum class SlotFlaw { kNone, kCountBeforeStore, kSleepWithoutCompare };

std::optional<SlotModel> StepWaiter(SlotModel s, int i, SlotFlaw flaw) {
  int& pc = s.waiter[i];
  switch (pc) {
    case SlotModel::kCheck:
      pc = s.word == 1 ? SlotModel::kDone : SlotModel::kRaise;
      return s;
    case SlotModel::kRaise:
      ++s.waiters;
      pc = SlotModel::kLoad;
      return s;
    case SlotModel::kLoad:
      s.seen[i] = s.word;
      pc = s.seen[i] == 1 ? SlotModel::kLower : SlotModel::kWait;
      return s;
    case SlotModel::kWait:  // The kernel compares and queues in one step.
      pc = s.word == s.seen[i] || flaw == SlotFlaw::kSleepWithoutCompare ? SlotModel::kSleeping
                                                                         : SlotModel::kLower;
      return s;
    case SlotModel::kLower:
      --s.waiters;
      pc = SlotModel::kCheck;
      return s;
    default:
      return std::nullopt;
  }
}

std::optional<SlotModel> StepCompleter(SlotModel s, SlotFlaw flaw) {
  const bool early = flaw == SlotFlaw::kCountBeforeStore;
  switch (s.completer) {
    case SlotModel::kStore:
      if (early) {
        s.counted = s.waiters;
      } else {
        s.word = 1;
      }
      s.completer = SlotModel::kCount;
      return s;
    case SlotModel::kCount:
      if (early) {
        s.word = 1;
      } else {
        s.counted = s.waiters;
      }
      s.completer = s.counted > 0 ? SlotModel::kWake : SlotModel::kFinished;
      return s;
    case SlotModel::kWake:
      for (int& pc : s.waiter) {
        if (pc == SlotModel::kSleeping) pc = SlotModel::kLower;
      }
      s.completer = SlotModel::kFinished;
      return s;
    default:
      return std::nullopt;
  }
}

bool SlotWakeCanBeLost(SlotFlaw flaw) {
  return CanReach<SlotModel>(
      SlotModel{}, 3,
      [flaw](SlotModel s, int process) {
        return process == 2 ? StepCompleter(s, flaw) : StepWaiter(s, process, flaw);
      },
      [](const SlotModel& s) {
        return s.completer == SlotModel::kFinished &&
               (s.waiter[0] == SlotModel::kSleeping || s.waiter[1] == SlotModel::kSleeping);
      });
}

TEST(SleepProtocolTest, Slot_EveryInterleaving_WakesTheWaiters) {
  EXPECT_FALSE(SlotWakeCanBeLost(SlotFlaw::kNone));
}

TEST(SleepProtocolTest, Slot_TheModelFindsWrongOrders) {
  EXPECT_TRUE(SlotWakeCanBeLost(SlotFlaw::kCountBeforeStore));
  EXPECT_TRUE(SlotWakeCanBeLost(SlotFlaw::kSleepWithoutCompare));
}

// The real thing: pauses around the engine's time to sleep, so that it falls asleep as often as
// not.
TEST(SleepProtocolTest, Stress_RandomPauses_NeedNoBackstop) {
  TestNode node(2);
  node.ForEachRank([&](int rank, FakeClient& client) {
    std::mt19937 random(static_cast<uint32_t>(rank));
    for (int i = 0; i < 1500; ++i) {
      ASSERT_EQ(client.Run(client.Describe(Operation::kNoop)).code, arena::Code::kOk);
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
      ASSERT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, arena::Code::kOk);
    }
    EXPECT_EQ(client.late_wakes(), 0u);
  });
  EXPECT_EQ(node.engine().backstops(), 0u);
}

}  // namespace
}  // namespace ringd::daemon
