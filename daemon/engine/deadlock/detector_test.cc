#include "daemon/engine/deadlock/detector.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

// A node whose one rank is blocked in a channel, and its detector.
struct Node {
  Node(int index, int count) : detector(index, count) {
    snapshot.is_blocked = true;
    snapshot.activity = 10;
  }
  std::optional<Probe> Check() { return detector.Check(snapshot, StateOf()); }
  std::optional<Probe> Take(const Probe& probe) {
    return detector.Take(probe, snapshot, StateOf());
  }
  DeadlockDetector::StateOf StateOf() const {
    return [this](const ChannelKey& channel) -> std::optional<ChannelState> {
      const auto found = states.find(channel.id);
      if (found == states.end()) return std::nullopt;
      return found->second;
    };
  }
  void WaitIn(uint64_t channel, ChannelState state, const std::string& text, int rank) {
    snapshot.pending.insert({channel, 0, 0});
    states[channel] = state;
    AddWait(text, rank, &snapshot.waits);
  }

  DeadlockDetector detector;
  Snapshot snapshot;
  std::map<uint64_t, ChannelState> states;
};

// A job of three nodes. Rank 0 has started operation 5 of channel 1; ranks 1 and 2 wait in
// operation 2 of channel 7, which node 0 doesn't have.
class DetectorTest : public testing::Test {
 protected:
  DetectorTest() {
    nodes_[0].WaitIn(1, {6, 5, 5}, "a", 0);
    for (const int rank : {1, 2}) {
      nodes_[rank].WaitIn(7, {3, 2, 2}, "b", rank);
      nodes_[rank].states[1] = {5, kNoOperation, 4};
    }
    nodes_[2].states[7] = {2, kNoOperation, 3};
  }

  void CheckAll() {
    for (Node& node : nodes_) {
      if (auto probe = node.Check(); probe.has_value()) sent_ = probe;
    }
  }
  // Takes what was sent once round.
  void GoRound() {
    for (const int node : {1, 2, 0}) {
      if (sent_.has_value()) sent_ = nodes_[node].Take(*sent_);
    }
  }

  Node nodes_[3] = {{0, 3}, {1, 3}, {2, 3}};
  std::optional<Probe> sent_;
};

TEST_F(DetectorTest, AllBlocked_VerdictAfterTwoRounds) {
  CheckAll();
  EXPECT_FALSE(sent_.has_value()) << "one look is not enough";
  CheckAll();
  ASSERT_TRUE(sent_.has_value());
  EXPECT_EQ(sent_->phase(), Probe::PHASE_COLLECT);
  GoRound();
  ASSERT_TRUE(sent_.has_value());
  EXPECT_EQ(sent_->phase(), Probe::PHASE_VERIFY);
  GoRound();
  ASSERT_TRUE(sent_.has_value());
  EXPECT_EQ(sent_->phase(), Probe::PHASE_VERDICT);
  ASSERT_EQ(sent_->channels_size(), 2);
  EXPECT_EQ(sent_->channels(0).newest(), 5u);
  EXPECT_EQ(sent_->channels(1).newest(), 3u);
  const Outcome outcome = DeadlockOutcome(*sent_);
  EXPECT_EQ(outcome.code, arena::Code::kMismatch);
  EXPECT_EQ(outcome.message,
            "deadlock: each rank waits in an operation that others have not called: rank 0 waits "
            "in a; ranks 1, 2 wait in b. All of them fail; let all ranks of a group call the same "
            "operations");
}

TEST_F(DetectorTest, OperationThatAllHaveStarted_GoesOn) {
  for (const int node : {1, 2}) nodes_[node].states[1].next = 6;
  CheckAll();
  CheckAll();
  GoRound();
  ASSERT_TRUE(sent_.has_value());
  GoRound();
  EXPECT_FALSE(sent_.has_value());
}

TEST_F(DetectorTest, NoteUnderWay_NoVerdict) {
  nodes_[1].snapshot.notes_underway = 2;
  nodes_[2].snapshot.notes_underway = -1;
  CheckAll();
  CheckAll();
  GoRound();
  GoRound();
  EXPECT_FALSE(sent_.has_value());
}

TEST_F(DetectorTest, NoteThatHasCome_Verdict) {
  nodes_[1].snapshot.notes_underway = 2;
  nodes_[2].snapshot.notes_underway = -2;
  CheckAll();
  CheckAll();
  GoRound();
  GoRound();
  EXPECT_TRUE(sent_.has_value());
}

TEST_F(DetectorTest, NodeThatIsNotBlocked_EndsTheProbe) {
  nodes_[1].snapshot.is_blocked = false;
  CheckAll();
  CheckAll();
  GoRound();
  EXPECT_FALSE(sent_.has_value());
}

TEST_F(DetectorTest, SomethingHappensBetweenTheRounds_EndsTheProbe) {
  for (const int node : {0, 1, 2}) {
    CheckAll();
    CheckAll();
    GoRound();
    ASSERT_TRUE(sent_.has_value());
    ++nodes_[node].snapshot.activity;
    GoRound();
    EXPECT_FALSE(sent_.has_value()) << node;
  }
}

TEST_F(DetectorTest, ProbeOfAFormerRound_Ends) {
  CheckAll();
  CheckAll();
  const std::optional<Probe> former = sent_;
  CheckAll();
  ASSERT_TRUE(sent_.has_value());
  EXPECT_FALSE(nodes_[0].Take(*former).has_value());
}

TEST(DetectorAloneTest, OneNode_VerdictAtTheSecondCheck) {
  Node node(0, 1);
  node.WaitIn(1, {5, kNoOperation, 5}, "a", 0);
  node.WaitIn(2, {3, kNoOperation, 4}, "b", 1);
  EXPECT_FALSE(node.Check().has_value());
  const auto verdict = node.Check();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->phase(), Probe::PHASE_VERDICT);
}

TEST(DetectorAloneTest, OperationUnderWay_NoVerdict) {
  Node node(0, 1);
  node.WaitIn(1, {6, 5, 5}, "a", 0);
  EXPECT_FALSE(node.Check().has_value());
  EXPECT_FALSE(node.Check().has_value());
}

TEST(DetectorAloneTest, MoreChannelsThanAProbeTakes_NoVerdict) {
  Node node(0, 1);
  node.WaitIn(1, {5, kNoOperation, 5}, "a", 0);
  for (uint64_t channel = 2; channel < 10'000; ++channel) {
    node.snapshot.pending.insert({channel, 0, 0});
  }
  EXPECT_FALSE(node.Check().has_value());
  EXPECT_FALSE(node.Check().has_value());
}

TEST(DeadlockOutcomeTest, ManyWaits_FitAnErrorRecord) {
  Probe probe;
  std::vector<probe::v1::Wait> waits;
  for (int rank = 0; rank < 1000; ++rank) AddWait(std::string(5000, 'a' + rank % 20), rank, &waits);
  *probe.mutable_waits() = {waits.begin(), waits.end()};
  const Outcome outcome = DeadlockOutcome(probe);
  EXPECT_LT(outcome.message.size(), sizeof(arena::ErrorDetails::message));
  EXPECT_NE(outcome.message.find("; and 12 more"), std::string::npos);
}

TEST(AddWaitTest, RanksAscend_EachOnce) {
  std::vector<probe::v1::Wait> waits;
  for (const int rank : {3, 1, 2, 7, 1}) AddWait("x", rank, &waits);
  Probe probe;
  *probe.mutable_waits() = {waits.begin(), waits.end()};
  EXPECT_NE(DeadlockOutcome(probe).message.find("ranks 1 to 3, 7 wait in x"), std::string::npos);
}

}  // namespace
}  // namespace ringd::daemon
