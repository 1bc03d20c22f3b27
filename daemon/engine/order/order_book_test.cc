#include "daemon/engine/order/order_book.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

using Kind = Action::Kind;

GroupLayout Layout(int local_count, int first_rank = 0) {
  GroupLayout layout;
  if (first_rank > 0) layout.nodes.push_back({"node-a", 0, first_rank});
  layout.node_index = first_rank > 0 ? 1 : 0;
  layout.nodes.push_back({"node-b", first_rank, local_count});
  return layout;
}

RequestPtr Allreduce(uint64_t count = 10) {
  auto request = std::make_unique<Request>();
  request->operation = Operation::kAllreduce;
  request->dtype = DType::kFloat32;
  request->reduction = Reduction::kSum;
  request->count = count;
  request->shape = {static_cast<int64_t>(count)};
  return request;
}

RequestPtr Bucket(uint32_t plan, uint32_t bucket) {
  auto request = Allreduce();
  request->operation = Operation::kPlanBucket;
  request->plan_id = plan;
  request->bucket = bucket;
  return request;
}

class OrderBookTest : public testing::Test {
 protected:
  void Make(int local_count, int first_rank = 0, bool may_skip = false) {
    book_ = std::make_unique<OrderBook>(Layout(local_count, first_rank), may_skip);
  }
  // "start s.1", "tell 2 mismatch" (requests, code), "abort s.1", "abort_from s.1": what one call
  // asked for.
  std::vector<std::string> Taken() {
    std::vector<std::string> texts;
    for (const Action& action : actions_) {
      const std::string key =
          std::to_string(action.key.channel) + "/" + std::to_string(action.key.sequence);
      switch (action.kind) {
        case Kind::kStart:
          texts.push_back("start " + key);
          break;
        case Kind::kTell:
          texts.push_back("tell " + std::to_string(static_cast<int>(action.outcome->code)));
          message_ = action.outcome->message;
          break;
        case Kind::kAbort:
          texts.push_back("abort " + key);
          break;
        case Kind::kAbortFrom:
          texts.push_back("abort_from " + key);
          message_ = action.outcome->message;
          break;
      }
    }
    actions_.clear();
    return texts;
  }
  std::vector<std::string> Submit(int rank, RequestPtr request) {
    EXPECT_TRUE(book_->Submit(rank, std::move(request), now_us_, &actions_).ok());
    return Taken();
  }

  using Texts = std::vector<std::string>;
  std::unique_ptr<OrderBook> book_;
  Actions actions_;
  std::string message_;
  int64_t now_us_ = 0;
};

TEST_F(OrderBookTest, Submit_LastLocalRank_StartsWithRequestsByRank) {
  Make(3);
  EXPECT_EQ(Submit(2, Allreduce()), Texts{});
  EXPECT_EQ(Submit(0, Allreduce()), Texts{});
  auto last = Allreduce();
  last->slot = 77;
  ASSERT_TRUE(book_->Submit(1, std::move(last), 0, &actions_).ok());
  ASSERT_EQ(actions_.size(), 1u);
  ASSERT_EQ(actions_[0].requests.size(), 3u);
  EXPECT_EQ(actions_[0].requests[1]->slot, 77u);
  EXPECT_EQ(Taken(), Texts{"start 0/1"});
  EXPECT_EQ(book_->pending(), 0u);
}

TEST_F(OrderBookTest, Submit_ARankAhead_StartsInOrderAsTheOtherFollows) {
  Make(2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Submit(0, Allreduce(i)), Texts{});
  EXPECT_EQ(book_->pending(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Submit(1, Allreduce(i)), Texts{"start 0/" + std::to_string(i + 1)});
  }
}

TEST_F(OrderBookTest, Mismatch_FailsAtSecondArrival_ThirdGetsItAtOnce_LaterGoesOn) {
  Make(3, 4);
  Submit(1, Allreduce(10));
  EXPECT_EQ(Submit(0, Allreduce(11)), (Texts{"abort 0/1", "tell 2", "tell 2"}));
  EXPECT_EQ(message_,
            "operation s.1 is not the same on all ranks: rank 5 called allreduce float32[10] sum, "
            "rank 4 called allreduce float32[11] sum");
  EXPECT_EQ(Submit(2, Allreduce(10)), Texts{"tell 2"});
  for (int rank = 0; rank < 2; ++rank) Submit(rank, Allreduce());
  EXPECT_EQ(Submit(2, Allreduce()), Texts{"start 0/2"});
}

TEST_F(OrderBookTest, Mismatch_OfEveryValue_IsFound) {
  const std::vector<std::pair<std::string, std::function<void(Request*)>>> changes = {
      {"operation", [](Request* r) { r->operation = Operation::kBroadcast; }},
      {"dtype", [](Request* r) { r->dtype = DType::kInt32; }},
      {"reduction", [](Request* r) { r->reduction = Reduction::kMax; }},
      {"count", [](Request* r) { r->count = 9; }},
      {"prescale", [](Request* r) { r->prescale = 2; }},
      {"postscale", [](Request* r) { r->postscale = 2; }},
      {"root", [](Request* r) { r->root = 1; }},
      {"counts",
       [](Request* r) {
         r->counts = {5, 5};
       }},
      {"signature", [](Request* r) { r->signature = 1; }},
      {"tag", [](Request* r) { r->tag = 1; }},
  };
  for (const auto& [name, change] : changes) {
    Make(2);
    Submit(0, Allreduce());
    auto other = Allreduce();
    change(other.get());
    EXPECT_EQ(Submit(1, std::move(other)), (Texts{"abort 0/1", "tell 2", "tell 2"})) << name;
  }
}

RequestPtr Numbered(uint64_t sequence, uint64_t count = 10) {
  auto request = Allreduce(count);
  request->sequence = sequence;
  return request;
}

RequestPtr Direct(uint64_t sequence, uint64_t count = 10) {
  auto request = Numbered(sequence, count);
  request->direct = true;
  return request;
}

TEST_F(OrderBookTest, Number_ThatWasDueBefore_OrLeavesOthersOut_IsRefused) {
  Make(1);
  EXPECT_EQ(Submit(0, Numbered(1)), Texts{"start 0/1"});
  EXPECT_FALSE(book_->Submit(0, Numbered(1), 0, &actions_).ok());
  EXPECT_FALSE(book_->Submit(0, Numbered(3), 0, &actions_).ok());
  EXPECT_EQ(Submit(0, Numbered(2)), Texts{"start 0/2"});
}

TEST_F(OrderBookTest, Skipped_NumbersAreNotWaitedFor) {
  Make(2, 0, true);
  EXPECT_EQ(Submit(0, Numbered(5)), Texts{});
  EXPECT_EQ(Submit(0, Numbered(uint64_t{1} << 40)), Texts{});
  EXPECT_EQ(Submit(1, Numbered(5)), Texts{"start 0/5"});
  EXPECT_TRUE(book_->IsWaiting());
  EXPECT_EQ(Submit(1, Numbered(uint64_t{1} << 40)), Texts{"start 0/1099511627776"});
  EXPECT_FALSE(book_->IsWaiting());
  EXPECT_EQ(book_->Position(0), uint64_t{1} << 40);
}

TEST_F(OrderBookTest, Direct_StandsForItsRank_UntilItComesItself) {
  Make(3, 0, true);
  Submit(0, Numbered(7));
  EXPECT_TRUE(book_->Lacks(1, 7));
  EXPECT_FALSE(book_->Lacks(0, 7));
  EXPECT_FALSE(book_->Lacks(1, 6));
  EXPECT_EQ(Submit(1, Direct(7)), Texts{});
  EXPECT_FALSE(book_->Lacks(1, 7));
  EXPECT_EQ(Submit(1, Numbered(7)), Texts{});
  EXPECT_EQ(Submit(2, Direct(7)), Texts{"start 0/7"});
  EXPECT_EQ(book_->pending(), 0u);
  // Rank 2 has not seen that; it finds the others' part where they have left it.
  EXPECT_EQ(Submit(2, Numbered(7)), Texts{});
  EXPECT_EQ(Submit(0, Direct(7)), Texts{});
  EXPECT_EQ(Submit(1, Direct(7)), Texts{"start 0/7"});
}

TEST_F(OrderBookTest, Direct_OnFailure_IsNotTold_AndGetsTheOutcomeWhenItComes) {
  Make(3, 0, true);
  Submit(0, Numbered(4, 10));
  EXPECT_EQ(Submit(1, Direct(4, 11)), (Texts{"abort 0/4", "tell 2"}));
  EXPECT_EQ(book_->pending(), 0u);
  EXPECT_EQ(Submit(2, Numbered(4, 10)), Texts{"tell 2"});
  EXPECT_EQ(Submit(2, Numbered(5)), Texts{});
  EXPECT_EQ(Submit(1, Numbered(4, 11)), Texts{"tell 2"});
  EXPECT_EQ(Submit(0, Numbered(5)), Texts{});
  EXPECT_EQ(Submit(1, Numbered(5)), Texts{"start 0/5"});
}

TEST_F(OrderBookTest, Direct_ThatComesWithSomethingElse_HasBrokenTheProtocol) {
  Make(2, 0, true);
  Submit(0, Numbered(2));
  EXPECT_EQ(Submit(0, Numbered(3)), Texts{});
  Make(3, 0, true);
  Submit(0, Numbered(2));
  Submit(1, Direct(2));
  EXPECT_FALSE(book_->Submit(1, Numbered(2, 999), 0, &actions_).ok());
}

TEST_F(OrderBookTest, EndRank_AfterWhatItHasPassed_FailsTheNext) {
  Make(2, 0, true);
  Submit(0, Numbered(10));
  book_->Pass(1, 9);
  Outcome outcome;
  outcome.code = arena::Code::kPeerFailed;
  outcome.exit_code = 0;
  book_->EndRank(1, outcome, &actions_);
  EXPECT_EQ(Taken(), (Texts{"abort_from 0/10", "tell 3"}));
  EXPECT_EQ(message_, "rank 1 has finished after 9 operations, s.10 is pending");
}

TEST_F(OrderBookTest, Rejection_FailsTheOperationForAll) {
  Make(2);
  auto bad = Allreduce();
  bad->rejection = "it is senseless";
  EXPECT_EQ(Submit(1, std::move(bad)), (Texts{"abort 0/1", "tell 1"}));
  EXPECT_EQ(message_, "operation s.1: rank 1 called allreduce float32[10] sum: it is senseless");
  EXPECT_EQ(Submit(0, Allreduce()), Texts{"tell 1"});
}

TEST_F(OrderBookTest, EndRank_FailsWhatItHasNotSubmitted) {
  Make(2);
  Submit(0, Allreduce());
  Submit(0, Allreduce());
  Submit(0, Allreduce());
  EXPECT_EQ(Submit(1, Allreduce()), Texts{"start 0/1"});
  Outcome end;
  end.code = arena::Code::kPeerFailed;
  end.exit_code = 0;
  book_->EndRank(1, end, &actions_);
  EXPECT_EQ(Taken(), (Texts{"abort_from 0/2", "tell 3", "tell 3"}));
  EXPECT_EQ(message_, "rank 1 has finished after 1 operations, s.2 is pending");
  EXPECT_EQ(Submit(0, Allreduce()), Texts{"tell 3"});
  EXPECT_EQ(book_->pending(), 0u);
}

TEST_F(OrderBookTest, EndRank_WhoIsAhead_LetsTheOthersCatchUp) {
  Make(2);
  Submit(1, Allreduce());
  Submit(1, Allreduce());
  Outcome end;
  end.code = arena::Code::kPeerFailed;
  end.exit_code = 3;
  book_->EndRank(1, end, &actions_);
  EXPECT_EQ(Taken(), Texts{"abort_from 0/3"});
  EXPECT_EQ(message_, "rank 1 (node node-b) exited with code 3");
  EXPECT_EQ(Submit(0, Allreduce()), Texts{"start 0/1"});
  EXPECT_EQ(Submit(0, Allreduce()), Texts{"start 0/2"});
  EXPECT_EQ(Submit(0, Allreduce()), Texts{"tell 3"});
}

TEST_F(OrderBookTest, EndRank_TwoRanks_TheEarlierSequenceWins) {
  Make(3);
  for (int i = 0; i < 3; ++i) Submit(0, Allreduce());
  for (int i = 0; i < 2; ++i) Submit(1, Allreduce());
  Outcome end;
  end.code = arena::Code::kPeerFailed;
  book_->EndRank(1, end, &actions_);
  EXPECT_EQ(Taken(), (Texts{"abort_from 0/3", "tell 3"}));
  book_->EndRank(2, end, &actions_);
  EXPECT_EQ(Taken(), (Texts{"abort_from 0/1", "tell 3", "tell 3", "tell 3", "tell 3"}));
}

TEST_F(OrderBookTest, FailByPeer_OneOrFrom_TellsWithoutAborting) {
  Make(2);
  Outcome peer;
  peer.code = arena::Code::kPeerFailed;
  book_->FailByPeer({0, 2}, false, peer, &actions_);  // Not submitted by anybody here.
  EXPECT_EQ(Taken(), Texts{});
  Submit(0, Allreduce());
  EXPECT_EQ(Submit(0, Allreduce()), Texts{"tell 3"});
  EXPECT_EQ(Submit(1, Allreduce()), Texts{"start 0/1"});
  EXPECT_EQ(Submit(1, Allreduce()), Texts{"tell 3"});
  Submit(0, Allreduce());
  EXPECT_EQ(Submit(1, Allreduce()), Texts{"start 0/3"});
  Submit(0, Allreduce());
  book_->FailByPeer({0, 4}, true, peer, &actions_);
  EXPECT_EQ(Taken(), Texts{"tell 3"});
  EXPECT_EQ(Submit(1, Allreduce()), Texts{"tell 3"});
  book_->FailByPeer({0, 1}, false, peer, &actions_);  // Over long ago.
  EXPECT_EQ(Taken(), Texts{});
}

TEST_F(OrderBookTest, FailAll_FailsPendingAndLater_FirstOutcomeStays) {
  Make(2);
  Submit(0, Allreduce());
  Outcome first;
  first.code = arena::Code::kPeerFailed;
  book_->FailAll(first, &actions_);
  EXPECT_EQ(Taken(), Texts{"tell 3"});
  Outcome second;
  second.code = arena::Code::kUnavailable;
  book_->FailAll(second, &actions_);
  EXPECT_EQ(Submit(1, Allreduce()), Texts{"tell 3"});
  book_->OpenPlan(0, 1, 2, &actions_);
  EXPECT_EQ(Submit(1, Bucket(1, 1)), Texts{"tell 3"});
}

TEST_F(OrderBookTest, Plan_BucketsInAnyOrder_StartInPlanOrder) {
  Make(2);
  const std::string channel = std::to_string(wire::ChannelId(0, 1)) + "/";
  book_->OpenPlan(0, 1, 3, &actions_);
  for (int step = 0; step < 2; ++step) {
    const auto start = [&](int bucket) {
      return "start " + channel + std::to_string(step * 3 + bucket + 1);
    };
    EXPECT_EQ(Submit(0, Bucket(1, 2)), Texts{});
    EXPECT_EQ(Submit(1, Bucket(1, 2)), Texts{});
    EXPECT_EQ(Submit(0, Bucket(1, 0)), Texts{});
    EXPECT_EQ(Submit(1, Bucket(1, 0)), Texts{start(0)});
    EXPECT_EQ(Submit(1, Bucket(1, 1)), Texts{});
    EXPECT_EQ(Submit(0, Bucket(1, 1)), (Texts{start(1), start(2)}));
  }
}

TEST_F(OrderBookTest, Plan_BucketTwiceInAStepOrUnknown_IsRefused) {
  Make(2);
  EXPECT_EQ(book_->Submit(0, Bucket(1, 0), 0, &actions_).code(),
            absl::StatusCode::kFailedPrecondition);
  book_->OpenPlan(0, 1, 2, &actions_);
  Submit(0, Bucket(1, 0));
  EXPECT_EQ(book_->Submit(0, Bucket(1, 0), 0, &actions_).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(book_->Submit(0, Bucket(1, 2), 0, &actions_).code(),
            absl::StatusCode::kFailedPrecondition);
  book_->ClosePlan(0, 1, &actions_);
  EXPECT_FALSE(book_->IsPlanOpen(0, 1));
  EXPECT_EQ(Taken(), Texts{"tell 2"});
  EXPECT_EQ(book_->Submit(0, Bucket(1, 1), 0, &actions_).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(OrderBookTest, Plan_RegisteredAgain_FailsLeftoversAndNumbersApart) {
  Make(2);
  book_->OpenPlan(0, 1, 2, &actions_);
  Submit(0, Bucket(1, 1));
  book_->OpenPlan(0, 1, 1, &actions_);
  EXPECT_EQ(Taken(), Texts{"tell 2"});
  Outcome stale;
  stale.code = arena::Code::kPeerFailed;
  book_->FailByPeer({wire::ChannelId(0, 1), 1}, true, stale, &actions_);
  Submit(1, Bucket(1, 0));
  const std::string first =
      std::to_string(wire::ChannelId(0, 1)) + "/" + std::to_string((1ull << 40) + 1);
  EXPECT_EQ(Submit(0, Bucket(1, 0)), Texts{"start " + first});
}

TEST_F(OrderBookTest, Plan_OfARankThatEnded_FailsFromItsFirstMissingBucket) {
  Make(2);
  const std::string channel = std::to_string(wire::ChannelId(0, 1)) + "/";
  book_->OpenPlan(0, 1, 3, &actions_);
  for (int bucket = 0; bucket < 3; ++bucket) Submit(0, Bucket(1, bucket));
  EXPECT_EQ(Submit(1, Bucket(1, 0)), Texts{"start " + channel + "1"});
  Submit(1, Bucket(1, 2));
  Outcome end;
  end.code = arena::Code::kPeerFailed;
  end.exit_code = 0;
  book_->EndRank(1, end, &actions_);
  EXPECT_EQ(Taken(),
            (Texts{"abort_from 0/1", "abort_from " + channel + "2", "tell 3", "tell 3", "tell 3"}));
  EXPECT_EQ(message_, "rank 1 has finished after 1 operations, s.2 of plan 1 is pending");
  // A plan whose registration is over only now.
  book_->OpenPlan(0, 2, 1, &actions_);
  EXPECT_EQ(Taken(), Texts{"abort_from " + std::to_string(wire::ChannelId(0, 2)) + "/1"});
  EXPECT_EQ(Submit(0, Bucket(2, 0)), Texts{"tell 3"});
}

TEST_F(OrderBookTest, Plan_PeerFailsItBeforeItsRegistrationIsOverHere_IsKept) {
  Make(1);
  Outcome peer;
  peer.code = arena::Code::kPeerFailed;
  book_->FailByPeer({wire::ChannelId(0, 1), 2}, true, peer, &actions_);
  EXPECT_FALSE(book_->IsPlanOpen(0, 1));
  book_->OpenPlan(0, 1, 2, &actions_);
  EXPECT_EQ(Submit(0, Bucket(1, 0)),
            Texts{"start " + std::to_string(wire::ChannelId(0, 1)) + "/1"});
  EXPECT_EQ(Submit(0, Bucket(1, 1)), Texts{"tell 3"});
}

TEST_F(OrderBookTest, WaitingSince_NamesPresentAndMissing) {
  Make(3);
  now_us_ = 100;
  Submit(0, Allreduce());
  Submit(2, Allreduce());
  EXPECT_TRUE(book_->WaitingSince(99, 10).empty());
  const std::vector<Waiting> waiting = book_->WaitingSince(100, 10);
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].key.sequence, 1u);
  EXPECT_EQ(waiting[0].description, "allreduce float32[10] sum");
  EXPECT_EQ(waiting[0].present, (std::vector<int>{0, 2}));
  EXPECT_EQ(waiting[0].missing, (std::vector<int>{1}));
}

TEST_F(OrderBookTest, ARankFarAhead_OfFailedOperations_IsBounded) {
  Make(3);
  auto submit_pair = [&](uint64_t count) {
    Submit(0, Allreduce(count));
    return Submit(1, Allreduce(count + 1));
  };
  Texts last;
  for (int i = 0; i < 140'000; ++i) last = submit_pair(1);
  EXPECT_EQ(last, Texts{"tell 9"});
  EXPECT_EQ(Submit(2, Allreduce()), Texts{"tell 2"});
}

// Any interleaving of what ranks do: each request is told or started exactly once; starts come in
// order.
TEST_F(OrderBookTest, RandomCalls_EveryRequestEndsOnce_StartsInOrder) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int size = 1 + static_cast<int>(random() % 4);
    Make(size);
    std::set<uint32_t> open;
    std::map<uint32_t, uint64_t> last_start;
    std::vector<bool> ended(size);
    uint32_t next = 0;
    const auto check = [&] {
      for (Action& action : actions_) {
        for (const RequestPtr& request : action.requests) {
          ASSERT_EQ(open.erase(request->slot), 1u) << "seed " << seed;
        }
        if (action.kind != Kind::kStart) continue;
        ASSERT_EQ(action.requests.size(), static_cast<size_t>(size));
        ASSERT_GT(action.key.sequence, last_start[action.key.channel]) << "seed " << seed;
        last_start[action.key.channel] = action.key.sequence;
      }
      actions_.clear();
      ASSERT_EQ(book_->pending(), open.size()) << "seed " << seed;
    };
    book_->OpenPlan(0, 1, 3, &actions_);
    Outcome failure;
    failure.code = arena::Code::kPeerFailed;
    for (int i = 0; i < 200; ++i) {
      const int rank = static_cast<int>(random() % size);
      const uint32_t what = random() % 100;
      if (what < 90 && !ended[rank]) {
        auto request = what < 45 ? Bucket(1, random() % 3) : Allreduce(random() % 20 == 0 ? 9 : 10);
        request->slot = next;
        open.insert(next);
        if (!book_->Submit(rank, std::move(request), 0, &actions_).ok()) open.erase(next);
        ++next;
      } else if (what < 96) {
        book_->FailByPeer({0, random() % 50 + 1}, false, failure, &actions_);
      } else if (what == 97) {
        ended[rank] = true;
        book_->EndRank(rank, failure, &actions_);
      } else if (what == 98) {
        book_->OpenPlan(0, 1, 3, &actions_);
        last_start[wire::ChannelId(0, 1)] = 0;
      }
      ASSERT_NO_FATAL_FAILURE(check());
    }
    book_->FailAll(failure, &actions_);
    ASSERT_NO_FATAL_FAILURE(check());
    ASSERT_TRUE(open.empty()) << "seed " << seed;
  }
}

TEST_F(OrderBookTest, Group_NamesRanksOfTheJobAndItself) {
  GroupLayout layout = Layout(2, 1);  // Group ranks 1 and 2 are here.
  layout.members = {3, 5, 9};
  book_ = std::make_unique<OrderBook>(layout, false, 4);
  const auto submit = [&](int rank, uint64_t count) {
    RequestPtr request = Allreduce(count);
    request->group = 4;
    return Submit(rank, std::move(request));
  };
  const std::string channel = std::to_string(wire::ChannelId(4, 0));
  EXPECT_TRUE(submit(0, 10).empty());
  EXPECT_EQ(submit(1, 11)[0], "abort " + channel + "/1");
  EXPECT_EQ(message_,
            "operation s.1 of group 4 is not the same on all ranks: rank 5 called allreduce "
            "float32[10] sum, rank 9 called allreduce float32[11] sum");
  submit(0, 10);
  EXPECT_EQ(submit(1, 10), (std::vector<std::string>{"start " + channel + "/2"}));
  submit(0, 10);
  Actions actions;
  Outcome finished;
  finished.code = arena::Code::kPeerFailed;
  finished.exit_code = 0;
  book_->EndRank(1, finished, &actions);
  ASSERT_EQ(actions[0].outcome->message,
            "rank 9 has finished after 2 operations, s.3 of group 4 is pending");
  EXPECT_EQ(actions[0].outcome->rank, 9);
}

}  // namespace
}  // namespace ringd::daemon
