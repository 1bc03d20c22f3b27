// The protocols of the shared segment (proto/segment.h), as models: every interleaving of their
// steps. All words that the steps name are seq_cst, or ordered by a release that an acquire reads.
//
// Slots: a rank opens the slot that does not have its newest operation, writes it, then its number,
// then the flag; when all flags have come to the operation, it reads the others' slots.
// Wake: a rank stores its flag, then reads `sleepers`, then wakes; a sleeper raises `sleepers`,
// then reads the flag, then blocks while the flag has not changed. Bell: a rank stores its flag,
// then reads `attention`, then `sleeping`, then rings; the daemon sets `attention`, then looks at
// the flag, then sets `sleeping`, looks once more, then blocks.
#include <array>
#include <optional>
#include <tuple>

#include "daemon/engine/testing/interleavings.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

enum class SlotFlaw { kNone, kOneSlot, kFlagBeforeData, kPublishesAhead };

template <int kRanks>
struct Slots {
  enum Step { kOpen, kWrite, kNumber, kFlag, kWait, kRead };
  struct Rank {
    int operation = 1;
    int step = kOpen;
    int peer = 0;
    int flag = 0;
    std::array<int, 2> number = {0, 0};
    std::array<int, 2> data = {0, 0};
    auto Tuple() const { return std::tie(operation, step, peer, flag, number, data); }
    bool operator<(const Rank& other) const { return Tuple() < other.Tuple(); }
  };
  std::array<Rank, kRanks> ranks;
  bool wrong = false;
  bool operator<(const Slots& other) const {
    return std::tie(ranks, wrong) < std::tie(other.ranks, other.wrong);
  }
};

// Where the rank's operation is, and where the next one goes.
template <typename Rank>
int NextSlot(const Rank& rank, SlotFlaw flaw) {
  return flaw != SlotFlaw::kOneSlot && rank.number[0] > rank.number[1] ? 1 : 0;
}

template <typename State>
std::optional<State> StepRank(State s, int me, int operations, SlotFlaw flaw) {
  auto& rank = s.ranks[me];
  const int count = static_cast<int>(s.ranks.size());
  const int slot = NextSlot(rank, flaw);
  const auto go_on = [&](int wanted) {
    do ++rank.peer;
    while (rank.peer == me);
    if (rank.peer >= count) {
      rank.peer = me == 0 ? 1 : 0;
      rank.step = wanted;
    }
  };
  if (rank.operation > operations) return std::nullopt;
  switch (rank.step) {
    case State::kOpen:
      rank.number[slot] = 0;
      rank.step = flaw == SlotFlaw::kFlagBeforeData ? State::kNumber : State::kWrite;
      return s;
    case State::kWrite: {
      // kFlagBeforeData: the number is there already.
      const bool late = flaw == SlotFlaw::kFlagBeforeData;
      const int written = late && rank.number[1] == rank.operation ? 1 : late ? 0 : slot;
      rank.data[written] = rank.operation;
      rank.step = late ? State::kWait : State::kNumber;
      rank.peer = me == 0 ? 1 : 0;
      return s;
    }
    case State::kNumber:
      rank.number[slot] = rank.operation;
      rank.step = State::kFlag;
      return s;
    case State::kFlag:
      rank.flag = rank.operation;
      rank.peer = me == 0 ? 1 : 0;
      rank.step = flaw == SlotFlaw::kFlagBeforeData ? State::kWrite : State::kWait;
      if (flaw == SlotFlaw::kPublishesAhead && rank.operation < operations && me == 0) {
        ++rank.operation;
        rank.step = State::kOpen;
      }
      return s;
    case State::kWait:
      if (s.ranks[rank.peer].flag < rank.operation) return std::nullopt;
      go_on(State::kRead);
      return s;
    default: {
      const auto& peer = s.ranks[rank.peer];
      const int found = peer.number[1] == rank.operation ? 1 : 0;
      // Not there: the operation is handed over, which should not be needed.
      s.wrong =
          s.wrong || peer.number[found] != rank.operation || peer.data[found] != rank.operation;
      go_on(State::kOpen);
      if (rank.step == State::kOpen) ++rank.operation;
      return s;
    }
  }
}

template <int kRanks>
bool SlotsCanGoWrong(int operations, SlotFlaw flaw) {
  using State = Slots<kRanks>;
  return CanReach<State>(
      State{}, kRanks, [=](State s, int process) { return StepRank(s, process, operations, flaw); },
      [](const State& s) { return s.wrong; });
}

// No state but the end has all ranks blocked.
template <int kRanks>
bool SlotsCanBlock(int operations) {
  using State = Slots<kRanks>;
  return CanReach<State>(
      State{}, kRanks,
      [=](State s, int process) { return StepRank(s, process, operations, SlotFlaw::kNone); },
      [=](const State& s) {
        bool all_blocked = true;
        bool all_done = true;
        for (int rank = 0; rank < kRanks; ++rank) {
          all_blocked = all_blocked && !StepRank(s, rank, operations, SlotFlaw::kNone).has_value();
          all_done = all_done && s.ranks[rank].operation > operations;
        }
        return all_blocked && !all_done;
      });
}

TEST(SegmentProtocolTest, Slots_EveryInterleaving_ReadsTheOperationsOwnData) {
  EXPECT_FALSE(SlotsCanGoWrong<2>(5, SlotFlaw::kNone));
  EXPECT_FALSE(SlotsCanGoWrong<3>(3, SlotFlaw::kNone));
}

TEST(SegmentProtocolTest, Slots_EveryInterleaving_EndsWithAllDone) {
  EXPECT_FALSE(SlotsCanBlock<2>(5));
  EXPECT_FALSE(SlotsCanBlock<3>(3));
}

TEST(SegmentProtocolTest, Slots_TheModelFindsWrongOrders) {
  EXPECT_TRUE(SlotsCanGoWrong<2>(3, SlotFlaw::kOneSlot));
  EXPECT_TRUE(SlotsCanGoWrong<2>(2, SlotFlaw::kFlagBeforeData));
  EXPECT_TRUE(SlotsCanGoWrong<2>(3, SlotFlaw::kPublishesAhead));
}

enum class WakeFlaw { kNone, kCountBeforeFlag, kLookBeforeRaise, kSleepWithoutCompare };

struct Wake {
  enum Sleeper { kLook, kRaise, kLoad, kBlock, kSleeping, kLower, kDone };
  enum Publisher { kFlag, kCount, kWake, kFinished };
  int flag = 0, sleepers = 0, counted = 0;
  int publisher = kFlag;
  std::array<int, 2> sleeper = {kLook, kLook};
  std::array<int, 2> seen = {0, 0};
  auto Tuple() const { return std::tie(flag, sleepers, counted, publisher, sleeper, seen); }
  bool operator<(const Wake& other) const { return Tuple() < other.Tuple(); }
};

std::optional<Wake> StepSleeper(Wake s, int i, WakeFlaw flaw) {
  int& step = s.sleeper[i];
  const bool early = flaw == WakeFlaw::kLookBeforeRaise;
  switch (step) {
    case Wake::kLook:
      step = s.flag == 1 ? Wake::kDone : early ? Wake::kLoad : Wake::kRaise;
      return s;
    case Wake::kRaise:
      ++s.sleepers;
      step = early ? Wake::kBlock : Wake::kLoad;
      return s;
    case Wake::kLoad:
      s.seen[i] = s.flag;
      step = s.flag == 1 ? Wake::kLower : early ? Wake::kRaise : Wake::kBlock;
      if (early && s.flag == 1) step = Wake::kDone;
      return s;
    case Wake::kBlock: {  // The kernel compares and queues in one step.
      const bool compares = flaw != WakeFlaw::kSleepWithoutCompare && !early;
      step = compares && s.flag != s.seen[i] ? Wake::kLower : Wake::kSleeping;
      return s;
    }
    case Wake::kLower:
      --s.sleepers;
      step = Wake::kLook;
      return s;
    default:
      return std::nullopt;
  }
}

std::optional<Wake> StepPublisher(Wake s, WakeFlaw flaw) {
  const bool early = flaw == WakeFlaw::kCountBeforeFlag;
  switch (s.publisher) {
    case Wake::kFlag:
      (early ? s.counted : s.flag) = early ? s.sleepers : 1;
      s.publisher = Wake::kCount;
      return s;
    case Wake::kCount:
      (early ? s.flag : s.counted) = early ? 1 : s.sleepers;
      s.publisher = s.counted > 0 ? Wake::kWake : Wake::kFinished;
      return s;
    case Wake::kWake:
      for (int& step : s.sleeper) {
        if (step == Wake::kSleeping) step = Wake::kLower;
      }
      s.publisher = Wake::kFinished;
      return s;
    default:
      return std::nullopt;
  }
}

bool WakeCanBeLost(WakeFlaw flaw) {
  return CanReach<Wake>(
      Wake{}, 3,
      [flaw](Wake s, int process) {
        return process == 2 ? StepPublisher(s, flaw) : StepSleeper(s, process, flaw);
      },
      [](const Wake& s) {
        return s.publisher == Wake::kFinished &&
               (s.sleeper[0] == Wake::kSleeping || s.sleeper[1] == Wake::kSleeping);
      });
}

TEST(SegmentProtocolTest, Wake_EveryInterleaving_WakesTheSleepers) {
  EXPECT_FALSE(WakeCanBeLost(WakeFlaw::kNone));
}

TEST(SegmentProtocolTest, Wake_TheModelFindsWrongOrders) {
  EXPECT_TRUE(WakeCanBeLost(WakeFlaw::kCountBeforeFlag));
  EXPECT_TRUE(WakeCanBeLost(WakeFlaw::kLookBeforeRaise));
  EXPECT_TRUE(WakeCanBeLost(WakeFlaw::kSleepWithoutCompare));
}

enum class BellFlaw { kNone, kLookBeforeAttention, kNoLookBeforeBlock, kReadBeforeFlag };

struct Bell {
  enum Daemon { kAttend, kLook, kAnnounce, kLookAgain, kBlock, kFound };
  enum Rank { kFlag, kReadAttention, kReadSleeping, kRing, kDone };
  int flag = 0, attention = 0, sleeping = 0, rung = 0, read_early = 0;
  int daemon = kAttend;
  int rank = kFlag;
  auto Tuple() const { return std::tie(flag, attention, sleeping, rung, read_early, daemon, rank); }
  bool operator<(const Bell& other) const { return Tuple() < other.Tuple(); }
};

std::optional<Bell> StepDaemon(Bell s, BellFlaw flaw) {
  switch (s.daemon) {
    case Bell::kAttend:
      if (flaw == BellFlaw::kLookBeforeAttention && s.flag == 1) {
        s.daemon = Bell::kFound;
        return s;
      }
      if (flaw != BellFlaw::kLookBeforeAttention) s.attention = 1;
      s.daemon = Bell::kLook;
      return s;
    case Bell::kLook:
      if (flaw == BellFlaw::kLookBeforeAttention) {
        s.attention = 1;
        s.sleeping = 1;
        s.daemon = Bell::kBlock;
        return s;
      }
      s.daemon = s.flag == 1 ? Bell::kFound : Bell::kAnnounce;
      return s;
    case Bell::kAnnounce:
      s.sleeping = 1;
      s.daemon = flaw == BellFlaw::kNoLookBeforeBlock ? Bell::kBlock : Bell::kLookAgain;
      return s;
    case Bell::kLookAgain:
      s.daemon = s.flag == 1 ? Bell::kFound : Bell::kBlock;
      return s;
    case Bell::kBlock:
      if (s.rung == 0) return std::nullopt;
      s.daemon = s.flag == 1 ? Bell::kFound : Bell::kAttend;
      return s;
    default:
      return std::nullopt;
  }
}

std::optional<Bell> StepRing(Bell s, BellFlaw flaw) {
  const bool early = flaw == BellFlaw::kReadBeforeFlag;
  switch (s.rank) {
    case Bell::kFlag:
      if (early) {
        s.read_early = s.attention;
      } else {
        s.flag = 1;
      }
      s.rank = Bell::kReadAttention;
      return s;
    case Bell::kReadAttention:
      if (early) s.flag = 1;
      s.rank = (early ? s.read_early : s.attention) == 1 ? Bell::kReadSleeping : Bell::kDone;
      return s;
    case Bell::kReadSleeping:
      s.rank = s.sleeping == 1 ? Bell::kRing : Bell::kDone;
      return s;
    case Bell::kRing:
      s.rung = 1;
      s.rank = Bell::kDone;
      return s;
    default:
      return std::nullopt;
  }
}

bool BellCanBeLost(BellFlaw flaw) {
  return CanReach<Bell>(
      Bell{}, 2,
      [flaw](Bell s, int process) {
        return process == 0 ? StepDaemon(s, flaw) : StepRing(s, flaw);
      },
      [](const Bell& s) {
        return s.rank == Bell::kDone && s.daemon == Bell::kBlock && s.rung == 0;
      });
}

TEST(SegmentProtocolTest, Bell_EveryInterleaving_TellsTheDaemon) {
  EXPECT_FALSE(BellCanBeLost(BellFlaw::kNone));
}

TEST(SegmentProtocolTest, Bell_TheModelFindsWrongOrders) {
  EXPECT_TRUE(BellCanBeLost(BellFlaw::kLookBeforeAttention));
  EXPECT_TRUE(BellCanBeLost(BellFlaw::kNoLookBeforeBlock));
  EXPECT_TRUE(BellCanBeLost(BellFlaw::kReadBeforeFlag));
}

}  // namespace
}  // namespace ringd::daemon
