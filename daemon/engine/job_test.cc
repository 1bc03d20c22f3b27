// A job over a communicator that the test holds by hand: other nodes, failures, slow completion,
// stalls.
#include "daemon/engine/job.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/futex.h"
#include "daemon/engine/testing/fake_client.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;

class HandCommunicator : public Communicator {
 public:
  struct Started {
    OperationKey key;
    std::shared_ptr<const Collective> collective;
    Done done;
  };
  void Start(OperationKey key, std::shared_ptr<const Collective> collective, Done done) override {
    started.push_back({key, std::move(collective), std::move(done)});
  }
  bool Progress() override { return false; }
  void Abort(OperationKey key, const Outcome& outcome) override {
    aborts.push_back({key, outcome});
  }
  void AbortFrom(OperationKey key, const Outcome& outcome) override {
    aborts_from.push_back({key, outcome});
  }
  void set_peer_failure_handler(PeerFailure handler) override { peer_failure = std::move(handler); }
  void Finish(size_t index, const Outcome& outcome = {}) { started[index].done(outcome); }

  std::vector<Started> started;
  std::vector<std::pair<OperationKey, Outcome>> aborts, aborts_from;
  PeerFailure peer_failure;
};

// Ranks 2 and 3 of a job of two nodes, with a client each.
class JobTest : public testing::Test {
 protected:
  JobTest() {
    JobGeneration generation;
    generation.job = "job";
    generation.generation = 1;
    generation.layout.nodes = {{"node-a", 0, 2}, {"node-b", 2, 2}};
    generation.layout.node_index = 1;
    auto communicator = std::make_unique<HandCommunicator>();
    hand_ = communicator.get();
    Job::Events events;
    events.client_failed = [this](int rank, std::string reason) {
      failed_[rank] = std::move(reason);
    };
    events.client_died = [](int, int) {};
    events.stalled = [this](Stall stall) { reports_.push_back(std::move(stall.report)); };
    job_ = std::make_unique<Job>(generation, std::move(communicator), &loop_, 5, std::move(events));
    for (int i = 0; i < 2; ++i) {
      const auto doorbell = job_->AddClient(2 + i, 1, clients_[i].Segment());
      EXPECT_TRUE(doorbell.ok()) << doorbell.status();
      bells_[i].reset(*doorbell);
    }
  }

  FakeClient::Ticket Submit(int i) {
    const auto data = clients_[i].Allocate(4);
    const auto ticket = clients_[i].Submit(clients_[i].Describe(
        Operation::kAllreduce, DType::kFloat32, Reduction::kAverage, 1, data, data));
    job_->Poll();
    return ticket;
  }

  EventLoop loop_;
  FakeClient clients_[2];
  UniqueFd bells_[2];
  HandCommunicator* hand_ = nullptr;
  std::unique_ptr<Job> job_;
  std::map<int, std::string> failed_;
  std::vector<std::string> reports_;
};

TEST_F(JobTest, AllLocalRanksSubmitted_StartsWithDescriptionAndDivisor) {
  Submit(1);
  EXPECT_TRUE(hand_->started.empty());
  Submit(0);
  ASSERT_EQ(hand_->started.size(), 1u);
  EXPECT_EQ(hand_->started[0].key, (OperationKey{0, 1}));
  const Collective& collective = *hand_->started[0].collective;
  EXPECT_EQ(collective.description, "rank 2: allreduce float32[1] average");
  EXPECT_EQ(collective.scaling.divisor, 4.0);
  EXPECT_EQ(collective.ranks.size(), 2u);
  EXPECT_EQ(clients_[0].header()->incarnation.load(), 5u);
  EXPECT_EQ(clients_[0].header()->generation.load(), 1u);
}

TEST_F(JobTest, Done_TellsAllLocalRanks) {
  const auto a = Submit(0);
  const auto b = Submit(1);
  EXPECT_FALSE(clients_[0].IsOver(a));
  hand_->Finish(0);
  EXPECT_EQ(clients_[0].Wait(a).code, Code::kOk);
  EXPECT_EQ(clients_[1].Wait(b).code, Code::kOk);
}

TEST_F(JobTest, PeerFailure_OfWhatWaitsHere_TellsIt) {
  const auto a = Submit(0);
  Outcome outcome;
  outcome.code = Code::kPeerFailed;
  outcome.rank = 1;
  outcome.node = "node-a";
  outcome.message = "rank 1 has finished after 0 operations, s.1 is pending";
  hand_->peer_failure({0, 1}, true, outcome);
  EXPECT_EQ(clients_[0].Wait(a).message, outcome.message);
  EXPECT_EQ(clients_[1].Wait(Submit(1)).node, "node-a");
  EXPECT_TRUE(hand_->aborts_from.empty());
}

TEST_F(JobTest, RankEnded_TellsThePeers) {
  Outcome end;
  end.exit_code = 2;
  job_->RankEnded(3, end);
  ASSERT_EQ(hand_->aborts_from.size(), 1u);
  EXPECT_EQ(hand_->aborts_from[0].first, (OperationKey{0, 1}));
  EXPECT_EQ(hand_->aborts_from[0].second.message, "rank 3 (node node-b) exited with code 2");
  EXPECT_EQ(job_->AddClient(3, 2, clients_[1].Segment()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(JobTest, Remove_WaitsUntilTheBuffersAreFree) {
  const auto a = Submit(0);
  Submit(1);
  Outcome cause;
  cause.code = Code::kUnavailable;
  cause.message = "cancelled";
  job_->Remove(cause);
  ASSERT_EQ(hand_->aborts_from.size(), 1u);
  EXPECT_FALSE(job_->removed());
  EXPECT_TRUE(clients_[0].IsPoisoned());
  hand_->Finish(0, cause);
  EXPECT_TRUE(job_->removed());
  EXPECT_EQ(clients_[0].Wait(a).message, "cancelled");
}

TEST_F(JobTest, ClientThatLeft_StaysMappedWhileItsOperationRuns) {
  const auto a = Submit(0);
  const auto b = Submit(1);
  job_->RemoveClient(3, 1);
  job_->Poll();
  float* output = reinterpret_cast<float*>(hand_->started[0].collective->ranks[1].output);
  *output = 4.5f;  // Still mapped.
  hand_->Finish(0);
  job_->Poll();
  EXPECT_EQ(clients_[0].Wait(a).code, Code::kOk);
  EXPECT_EQ(clients_[1].Wait(b).code, Code::kOk);
}

TEST_F(JobTest, Fail_AbortsWhatRuns_AndTellsTheRest) {
  Submit(0);
  Submit(1);
  const auto waiting = Submit(0);
  Outcome cause;
  cause.code = Code::kPeerFailed;
  cause.message = "rank 0 (node node-a) exited with code 1";
  job_->Fail(cause);
  EXPECT_EQ(clients_[0].Wait(waiting).message, cause.message);
  ASSERT_EQ(hand_->aborts_from.size(), 1u);
  EXPECT_EQ(hand_->aborts_from[0].first, (OperationKey{0, 1}));
}

TEST_F(JobTest, Stalls_AreReportedAfterTenSecondsThenAtDoublingAges) {
  const int64_t start_us = MonotonicMicros();
  Submit(0);
  const auto check_at = [&](int64_t seconds) {
    job_->CheckStalls(start_us + seconds * 1'000'000 + 500'000);
  };
  check_at(9);
  EXPECT_TRUE(reports_.empty());
  for (int64_t second = 10; second < 50; ++second) check_at(second);
  ASSERT_EQ(reports_.size(), 3u);
  EXPECT_EQ(reports_[0],
            "operation s.1 (allreduce float32[1] average) has waited 10 s: rank 3 (node node-b) "
            "alive, has not called");
  EXPECT_EQ(clients_[0].header()->stalls.load(), 3u);
  Submit(1);
  check_at(100);
  EXPECT_EQ(reports_.back(),
            "operation s.1 (allreduce float32[1] average) has waited 100 s: all ranks of node "
            "node-b have called; "
            "waits for node node-a (rank 0 to 1)");
  hand_->Finish(0);
  const size_t count = reports_.size();
  check_at(1000);
  check_at(1001);
  ASSERT_EQ(reports_.size(), count + 1);
  EXPECT_EQ(reports_.back(), "");  // It is over.
}

}  // namespace
}  // namespace ringd::daemon
