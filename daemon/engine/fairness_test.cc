// Several jobs on one engine: how they take turns. What happened in which order is written down on
// the engine's thread; no clock is asked.
#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/collectives/local.h"
#include "daemon/collectives/ring/ring.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/testing/fake_client.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kArenaBytes = 2 * arena::kMinBytes;
constexpr uint64_t kLargeCount = 2 << 20;  // 8 MB of float32: 32 pieces.
constexpr int kPieces = kLargeCount * sizeof(float) / kPieceBytes;

// Writes down "start", "piece" and "done" of its job.
class Watched : public Communicator {
 public:
  using Note = std::function<void(const char* what)>;
  Watched(std::unique_ptr<Communicator> real, Note note)
      : real_(std::move(real)), note_(std::move(note)) {}

  void Start(OperationKey key, std::shared_ptr<const Collective> collective, Done done) override {
    note_("start");
    real_->Start(key, std::move(collective), [this, done](const Outcome& outcome) {
      note_("done");
      done(outcome);
    });
  }
  bool Progress() override {
    if (!real_->Progress()) return false;
    note_("piece");
    return true;
  }
  void Abort(OperationKey key, const Outcome& outcome) override { real_->Abort(key, outcome); }
  void AbortFrom(OperationKey key, const Outcome& outcome) override {
    real_->AbortFrom(key, outcome);
  }
  void set_peer_failure_handler(PeerFailure handler) override {
    real_->set_peer_failure_handler(std::move(handler));
  }

 private:
  const std::unique_ptr<Communicator> real_;
  const Note note_;
};

// Jobs "a", "b" and "c" of one rank each; the engine's thread alone reduces.
class FairnessTest : public testing::Test {
 protected:
  void SetUp() override {
    EngineImpl::Options options;
    options.make_communicator = [this](const JobGeneration& generation, RingSockets, EventLoop*,
                                       const RingFailure&, const RingTuning&) {
      return std::make_unique<Watched>(
          MakeLocalCommunicator(generation.layout, &pool_),
          [this, job = generation.job](const char* what) { Note(job + " " + what); });
    };
    engine_ = *EngineImpl::Create(std::move(options));
    for (const char* job : {"a", "b", "c"}) {
      JobGeneration generation;
      generation.job = job;
      generation.generation = 1;
      generation.layout.nodes = {{"node-a", 0, 1}};
      Await([&](auto done) { engine_->PrepareJob(generation, done); });
      clients_.push_back(std::make_unique<FakeClient>(kArenaBytes));
      ASSERT_TRUE(clients_.back()->Attach(engine_.get(), job, 0).ok());
    }
  }
  void TearDown() override { engine_->Stop(); }

  void Await(const std::function<void(std::function<void(absl::Status)>)>& begin) {
    std::promise<absl::Status> done;
    begin([&](absl::Status status) { done.set_value(std::move(status)); });
    EXPECT_TRUE(done.get_future().get().ok());
  }
  // Runs on the engine's thread, as everything that communicators call.
  void Note(const std::string& event) {
    log_.push_back(event);
    if (on_event_) on_event_(event);
  }
  FakeClient::Ticket Submit(int job, uint64_t count) {
    FakeClient& client = *clients_[job];
    const auto data = client.Allocate(count * sizeof(float));
    return client.Submit(client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum,
                                         count, data, data));
  }
  size_t Find(const std::string& event) const {
    const auto found = std::find(log_.begin(), log_.end(), event);
    EXPECT_NE(found, log_.end()) << event;
    return static_cast<size_t>(found - log_.begin());
  }
  // Both become visible while the engine's thread is held, so that it finds them in one round.
  std::vector<FakeClient::Ticket> SubmitTogether(const std::vector<int>& jobs) {
    std::vector<FakeClient::Ticket> tickets;
    std::promise<void> held;
    JobGeneration again;
    again.job = "a";  // It is here already: refused, on the engine's thread.
    again.layout.nodes = {{"node-a", 0, 1}};
    engine_->PrepareJob(again, [&](const absl::Status&) {
      for (const int job : jobs) tickets.push_back(Submit(job, kLargeCount));
      held.set_value();
    });
    held.get_future().wait();
    return tickets;
  }

  SlicePool pool_{1};
  std::vector<std::string> log_;
  std::function<void(const std::string&)> on_event_;
  std::vector<std::unique_ptr<FakeClient>> clients_;
  std::unique_ptr<EngineImpl> engine_;
};

TEST_F(FairnessTest, SmallOperation_OfAnotherJob_WaitsForThePieceInHandAtMost) {
  std::promise<FakeClient::Ticket> small;
  int pieces = 0;
  size_t submitted_at = 0;
  on_event_ = [&](const std::string& event) {
    if (event != "a piece" || ++pieces != 3) return;
    submitted_at = log_.size();
    small.set_value(Submit(2, 4));
  };
  const auto large = SubmitTogether({0, 1});
  EXPECT_EQ(clients_[2]->Wait(small.get_future().get()).code, arena::Code::kOk);
  for (const int job : {0, 1}) {
    EXPECT_EQ(clients_[job]->Wait(large[job]).code, arena::Code::kOk);
  }
  engine_->Stop();
  EXPECT_EQ(Find("c start"), submitted_at);
  EXPECT_EQ(Find("c done"), submitted_at + 1);
  EXPECT_LT(Find("c done"), Find("a done"));
  EXPECT_LT(Find("c done"), Find("b done"));
}

TEST_F(FairnessTest, LargeOperations_OfTwoJobs_TakeTurns) {
  const auto large = SubmitTogether({0, 1});
  for (const int job : {0, 1}) {
    EXPECT_EQ(clients_[job]->Wait(large[job]).code, arena::Code::kOk);
  }
  engine_->Stop();
  // Each has had half of the pieces when the first is over.
  const size_t first = std::min(Find("a done"), Find("b done"));
  const size_t last = std::max(Find("a done"), Find("b done"));
  EXPECT_GE(std::count(log_.begin(), log_.begin() + static_cast<std::ptrdiff_t>(first), "a piece"),
            kPieces - 2);
  EXPECT_GE(std::count(log_.begin(), log_.begin() + static_cast<std::ptrdiff_t>(first), "b piece"),
            kPieces - 2);
  EXPECT_LE(last - first, 6u);
}

}  // namespace
}  // namespace ringd::daemon
