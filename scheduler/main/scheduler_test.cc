// The whole scheduler over real sockets, with daemons played by the test.
#include "scheduler/main/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/sync/mutex.h"
#include "proto/cluster.grpc.pb.h"

namespace ringd::scheduler {
namespace {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.
using testing::HasSubstr;

constexpr int kTimeoutSeconds = 20;

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kTimeoutSeconds));
}

// Prepares and starts everything at once; ranks run until the test ends them. Keeps what ranks have
// "written".
class FakeDaemon {
 public:
  FakeDaemon(std::shared_ptr<grpc::Channel> channel, NodeHello hello)
      : stub_(Cluster::NewStub(channel)) {
    SetDeadline(&context_);
    stream_ = stub_->Join(&context_);
    NodeReport report;
    *report.mutable_hello() = std::move(hello);
    Say(report);
    reader_ = std::thread([this] { Read(); });
  }
  ~FakeDaemon() {
    context_.TryCancel();
    reader_.join();
  }

  void Say(const NodeReport& report) {
    MutexLock lock(&write_mu_);
    stream_->Write(report);
  }
  void Heartbeat() {
    NodeReport report;
    report.mutable_heartbeat();
    Say(report);
  }
  void End(const std::string& job, int rank, int exit_code) {
    NodeReport report;
    RankUpdate* update = report.mutable_rank();
    update->set_job(job);
    update->set_generation(1);
    update->set_rank(rank);
    update->set_pid(100 + rank);
    update->set_exited(true);
    update->set_exit_code(exit_code);
    Say(report);
  }
  void Clear(const std::string& job) {
    NodeReport report;
    report.mutable_cleared()->set_job(job);
    Say(report);
  }
  // Blocks until an order of this kind has come.
  NodeOrder Wait(NodeOrder::OrderCase kind) {
    const absl::Time end = absl::Now() + absl::Seconds(kTimeoutSeconds);
    MutexLock lock(&mu_);
    while (absl::Now() < end) {
      for (const NodeOrder& order : orders_) {
        if (order.order_case() == kind) return order;
      }
      changed_.WaitWithTimeout(&mu_, absl::Milliseconds(100));
    }
    ADD_FAILURE() << "no order of kind " << kind;
    return {};
  }

 private:
  void Read() {
    for (NodeOrder order; stream_->Read(&order);) {
      Obey(order);
      MutexLock lock(&mu_);
      orders_.push_back(order);
      changed_.SignalAll();
    }
    status_ = stream_->Finish();
  }
  void Obey(const NodeOrder& order) {
    NodeReport report;
    if (order.has_prepare()) {
      const auto& prepare = order.prepare();
      part_ = prepare.nodes(prepare.node_index());
      report.mutable_prepared()->set_job(prepare.job());
      report.mutable_prepared()->set_generation(prepare.generation());
      report.mutable_prepared()->set_ok(true);
      Say(report);
    } else if (order.has_start()) {
      for (int i = 0; i < part_.rank_count(); ++i) {
        RankUpdate* update = report.mutable_rank();
        update->set_job(order.start().job());
        update->set_generation(order.start().generation());
        update->set_rank(part_.first_rank() + i);
        update->set_pid(100 + part_.first_rank() + i);
        update->set_worker_pid(200 + part_.first_rank() + i);
        Say(report);
      }
    } else if (order.has_read_log()) {
      const std::string text = absl::StrCat("output of rank ", order.read_log().rank(), "\n");
      LogData* data = report.mutable_log();
      data->set_request(order.read_log().request());
      if (order.read_log().offset() == 0) data->add_pieces()->set_data(text);
      data->set_next_offset(text.size());
      data->set_finished(order.read_log().offset() > 0);
      Say(report);
    }
  }

  std::unique_ptr<Cluster::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<NodeReport, NodeOrder>> stream_;
  Mutex write_mu_;
  GenerationNode part_;
  std::thread reader_;
  grpc::Status status_;
  Mutex mu_;
  CondVar changed_;
  std::vector<NodeOrder> orders_ ABSL_GUARDED_BY(mu_);
};

class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() {
    std::string pattern = "/tmp/ringd-sched-XXXXXX";
    options_.state_directory = mkdtemp(pattern.data());
    socket_ = absl::StrCat("unix:", options_.state_directory, "/s.sock");
    options_.listen = {socket_, "127.0.0.1:0"};
    options_.node_timeout = absl::Seconds(30);
  }
  ~SchedulerTest() override {
    scheduler_.reset();
    std::filesystem::remove_all(options_.state_directory);
  }

  void Start() {
    auto started = Scheduler::Start(options_);
    ASSERT_TRUE(started.ok()) << started.status();
    scheduler_ = *std::move(started);
    channel_ = *Connect(socket_, {});
    stub_ = Cluster::NewStub(channel_);
  }
  NodeHello Hello(const std::string& name, int slots) {
    NodeHello hello;
    hello.set_name(name);
    hello.set_slots(slots);
    hello.set_data_address(name + ":1");
    hello.set_pid(getpid());
    hello.set_uid(geteuid());  // A private daemon of ours.
    return hello;
  }
  grpc::Status Submit(int ranks, bool queue, std::string* job, bool foreground = false) {
    grpc::ClientContext context;
    SetDeadline(&context);
    SubmitRequest request;
    request.mutable_spec()->add_command("train");
    request.mutable_spec()->set_ranks(ranks);
    request.mutable_spec()->set_queue(queue);
    request.mutable_spec()->set_foreground(foreground);
    (*request.mutable_spec()->mutable_environment())["SECRET"] = "s3cret";
    SubmitResponse response;
    const grpc::Status status = stub_->Submit(&context, request, &response);
    *job = response.job();
    return status;
  }
  // Of a job of three ranks.
  grpc::Status Gather(const std::string& node, int first, int count, std::string* job,
                      absl::Duration patience = absl::Seconds(kTimeoutSeconds)) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
    GatherRequest request;
    request.set_name("srun-1-0");
    request.set_node(node);
    request.set_first_rank(first);
    request.set_rank_count(count);
    request.mutable_timeout()->set_seconds(kTimeoutSeconds);
    request.mutable_spec()->add_command("train");
    request.mutable_spec()->set_ranks(3);
    SubmitResponse response;
    const grpc::Status status = stub_->Gather(&context, request, &response);
    *job = response.job();
    return status;
  }
  Job Describe(const std::string& id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    JobRequest request;
    request.set_job(id);
    Job job;
    EXPECT_TRUE(stub_->Describe(&context, request, &job).ok());
    return job;
  }
  // Reads Watch until a final state, and gives the states that were seen.
  std::vector<JobState> Watch(const std::string& id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    JobRequest request;
    request.set_job(id);
    auto stream = stub_->Watch(&context, request);
    std::vector<JobState> states;
    for (Job job; stream->Read(&job);) states.push_back(job.state());
    EXPECT_TRUE(stream->Finish().ok());
    return states;
  }
  std::string Logs(const std::string& id, bool follow, grpc::Status* status) {
    grpc::ClientContext context;
    SetDeadline(&context);
    LogsRequest request;
    request.set_job(id);
    request.set_rank(-1);
    request.set_follow(follow);
    auto stream = stub_->Logs(&context, request);
    std::map<int, std::string> texts;
    for (LogChunk chunk; stream->Read(&chunk);) {
      for (const LogPiece& piece : chunk.pieces()) texts[chunk.rank()] += piece.data();
    }
    *status = stream->Finish();
    std::string all;
    for (const auto& [rank, text] : texts) all += text;
    return all;
  }
  void WaitForNode(const std::string& name) {
    for (int i = 0; i < kTimeoutSeconds * 100; ++i) {
      grpc::ClientContext context;
      SetDeadline(&context);
      NodesResponse response;
      ASSERT_TRUE(stub_->Nodes(&context, {}, &response).ok());
      for (const NodeState& node : response.nodes()) {
        if (node.name() == name && node.state() == "up") return;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    FAIL() << "node " << name << " did not come up";
  }

  Options options_;
  std::string socket_;
  std::unique_ptr<Scheduler> scheduler_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Cluster::Stub> stub_;
};

TEST_F(SchedulerTest, Job_FromSubmitToSuccess_IsSeenByWatchAndLogs) {
  Start();
  FakeDaemon daemon(channel_, Hello("a", 2));
  EXPECT_EQ(daemon.Wait(NodeOrder::kWelcome).welcome().term(), 1u);
  WaitForNode("a");
  std::string job;
  ASSERT_TRUE(Submit(2, false, &job).ok());
  EXPECT_EQ(job, "j-1");
  std::vector<JobState> states;
  std::thread watcher([&] { states = Watch(job); });
  std::string text;
  grpc::Status log_status;
  std::thread follower([&] { text = Logs(job, true, &log_status); });
  EXPECT_EQ(daemon.Wait(NodeOrder::kPrepare).prepare().spec().environment().at("SECRET"), "s3cret");
  daemon.Wait(NodeOrder::kStart);
  follower.join();
  EXPECT_EQ(text, "output of rank 0\noutput of rank 1\n");
  EXPECT_TRUE(log_status.ok());
  daemon.End(job, 0, 0);
  daemon.End(job, 1, 0);
  daemon.Clear(job);
  watcher.join();
  ASSERT_FALSE(states.empty());
  EXPECT_EQ(states.back(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Logs(job, false, &log_status), text) << "readable after the end";
  EXPECT_THAT(Describe(job).DebugString(), testing::Not(HasSubstr("s3cret")));
}

TEST_F(SchedulerTest, Submit_NoRoomNow_IsRefusedWithTheReason) {
  Start();
  FakeDaemon daemon(channel_, Hello("a", 2));
  WaitForNode("a");
  std::string job;
  const grpc::Status status = Submit(3, false, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("needs 3 slots, cluster has 2"));
}

TEST_F(SchedulerTest, Restart_RunningAndQueuedJobs_GoOn) {
  Start();
  auto daemon = std::make_unique<FakeDaemon>(channel_, Hello("a", 2));
  WaitForNode("a");
  std::string running;
  std::string queued;
  ASSERT_TRUE(Submit(2, true, &running).ok());
  daemon->Wait(NodeOrder::kStart);
  ASSERT_TRUE(Submit(2, true, &queued).ok());
  scheduler_.reset();
  daemon.reset();
  Start();
  EXPECT_EQ(Describe(running).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Describe(queued).state(), JOB_STATE_QUEUED);
  NodeHello hello = Hello("a", 2);
  hello.set_term(1);
  hello.add_jobs()->set_job(running);
  hello.mutable_jobs(0)->set_generation(1);
  for (int rank = 0; rank < 2; ++rank) {
    RankUpdate* update = hello.mutable_jobs(0)->add_ranks();
    update->set_rank(rank);
    update->set_pid(100 + rank);
  }
  daemon = std::make_unique<FakeDaemon>(channel_, hello);
  EXPECT_EQ(daemon->Wait(NodeOrder::kWelcome).welcome().term(), 2u);
  daemon->End(running, 0, 0);
  daemon->End(running, 1, 0);
  daemon->Clear(running);
  EXPECT_EQ(Watch(running).back(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(daemon->Wait(NodeOrder::kPrepare).prepare().job(), queued);
}

TEST_F(SchedulerTest, Gather_PartsOfAllNodes_AreOneJobInRankOrder) {
  Start();
  FakeDaemon a(channel_, Hello("a", 2)), b(channel_, Hello("b", 2));
  WaitForNode("a");
  WaitForNode("b");
  std::string jobs[2];
  std::thread other([&] { EXPECT_TRUE(Gather("b", 0, 2, &jobs[1]).ok()); });
  EXPECT_TRUE(Gather("a", 2, 1, &jobs[0]).ok());
  other.join();
  EXPECT_EQ(jobs[0], "j-1");
  EXPECT_EQ(jobs[1], "j-1");
  const Prepare prepare = a.Wait(NodeOrder::kPrepare).prepare();
  EXPECT_EQ(prepare.nodes(0).name(), "b");
  EXPECT_EQ(prepare.nodes(1).first_rank(), 2);
  b.Wait(NodeOrder::kStart);
}

TEST_F(SchedulerTest, Gather_CallerGoesOrSchedulerStops_NothingWaits) {
  Start();
  std::string job;
  EXPECT_EQ(Gather("a", 0, 2, &job, absl::Milliseconds(200)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  grpc::Status status;
  std::thread waiting([&] { status = Gather("a", 0, 2, &job); });
  absl::SleepFor(absl::Milliseconds(300));
  scheduler_.reset();
  waiting.join();
  EXPECT_FALSE(status.ok());
}

TEST_F(SchedulerTest, Hold_StreamBroken_CancelsTheJob) {
  options_.embedded = true;  // No lease.
  Start();
  FakeDaemon daemon(channel_, Hello("a", 2));
  WaitForNode("a");
  std::string job;
  ASSERT_TRUE(Submit(1, false, &job, /*foreground=*/true).ok());
  daemon.Wait(NodeOrder::kStart);
  {
    grpc::ClientContext context;
    SetDeadline(&context);
    HoldResponse response;
    auto stream = stub_->Hold(&context, &response);
    HoldRequest request;
    request.set_job(job);
    ASSERT_TRUE(stream->Write(request));
    absl::SleepFor(absl::Milliseconds(200));
    EXPECT_EQ(Describe(job).state(), JOB_STATE_RUNNING);
    context.TryCancel();
    stream->Finish();
  }
  EXPECT_EQ(daemon.Wait(NodeOrder::kStop).stop().job(), job);
  daemon.End(job, 0, 1);
  daemon.Clear(job);
  EXPECT_EQ(Watch(job).back(), JOB_STATE_CANCELLED);
}

TEST_F(SchedulerTest, Tcp_WithoutTls_TakesNeitherJobsNorNodes) {
  Start();
  auto channel = *Connect(scheduler_->addresses()[1], {});
  auto stub = Cluster::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(&context);
  SubmitRequest request;
  request.mutable_spec()->add_command("train");
  request.mutable_identity()->set_user("root");
  SubmitResponse response;
  EXPECT_EQ(stub->Submit(&context, request, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  FakeDaemon daemon(channel, Hello("evil", 2));
  EXPECT_THAT(daemon.Wait(NodeOrder::kRefuse).refuse().reason(), HasSubstr("nodes join with TLS"));
}

TEST_F(SchedulerTest, Start_Addresses_AreWrittenWithTheChosenPorts) {
  Start();
  std::ifstream file(options_.state_directory + "/scheduler.address");
  std::string first;
  std::string second;
  file >> first >> second;
  EXPECT_EQ(first, socket_);
  EXPECT_EQ(second, scheduler_->addresses()[1]);
  EXPECT_NE(second, "127.0.0.1:0");
  const auto twice = Scheduler::Start(options_);
  EXPECT_EQ(twice.status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SchedulerTest, Stop_WithOpenStreams_EndsSoon) {
  Start();
  FakeDaemon daemon(channel_, Hello("a", 1));
  WaitForNode("a");
  std::string job;
  ASSERT_TRUE(Submit(5, true, &job).ok());
  std::thread watcher([&] {
    grpc::ClientContext context;
    SetDeadline(&context);
    JobRequest request;
    request.set_job(job);
    auto stream = stub_->Watch(&context, request);
    for (Job each; stream->Read(&each);) {
    }
    stream->Finish();
  });
  absl::SleepFor(absl::Milliseconds(100));
  const absl::Time begin = absl::Now();
  scheduler_.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  watcher.join();
}

}  // namespace
}  // namespace ringd::scheduler
