#include "client/cli/run/cluster_client.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/version.h"
#include "common/rpc/rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/cluster.grpc.pb.h"

namespace ringd::cli {
namespace {

using namespace ringd::cluster::v1;  // NOLINT: one proto package's names, in a test.
using ::testing::HasSubstr;

class FakeScheduler : public Cluster::Service {
 public:
  grpc::Status GetVersion(grpc::ServerContext*, const VersionRequest*,
                          VersionResponse* response) override {
    response->set_version(version);
    return grpc::Status::OK;
  }
  grpc::Status Submit(grpc::ServerContext*, const SubmitRequest* request,
                      SubmitResponse* response) override {
    if (first_request_id.empty()) first_request_id = request->request_id();
    same_request_id = request->request_id() == first_request_id;
    if (submits_to_lose-- > 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
    response->set_job("j-1");
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context, const JobRequest*,
                     grpc::ServerWriter<Job>* writer) override {
    Job job;
    job.set_id("j-1");
    writer->Write(job);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }

  std::string version = kVersion;
  std::string first_request_id;
  bool same_request_id = false;
  int submits_to_lose = 0;
};

class ClusterClientTest : public ::testing::Test {
 protected:
  ClusterClientTest() : server_(RpcServer::Create()) {
    server_->AddService(&scheduler_);
    const auto all = [](const PeerCredentials&) { return true; };
    EXPECT_TRUE(server_->ListenUnixSocket(path_, 0600, all).ok());
    EXPECT_TRUE(server_->Start().ok());
  }
  ~ClusterClientTest() override {
    server_->Shutdown(absl::ZeroDuration());
    rmdir(folder_.c_str());
  }

  static std::string MakeFolder() {
    char path[] = "/tmp/ringctl-test-XXXXXX";  // Short enough for a socket.
    return mkdtemp(path) != nullptr ? path : "";
  }

  const std::string folder_ = MakeFolder();
  const std::string path_ = folder_ + "/s.sock";
  const SchedulerAddress address_ = {.address = "unix:" + path_};
  FakeScheduler scheduler_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(ClusterClientTest, OtherVersion_IsRefusedAndBothAreNamed) {
  scheduler_.version = "9.9.9";
  const absl::Status status = ClusterClient::Connect(address_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("9.9.9"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(kVersion));
}

TEST_F(ClusterClientTest, NobodyThere_NamesTheAddressAndHowToStartOne) {
  const absl::Status status =
      ClusterClient::Connect({.address = "unix:/nonexistent/s.sock"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unix:/nonexistent/s.sock"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ringctl local up"));
}

TEST_F(ClusterClientTest, LostSubmission_IsRepeatedUnderTheSameId) {
  const auto client = ClusterClient::Connect(address_);
  ASSERT_TRUE(client.ok()) << client.status();
  scheduler_.submits_to_lose = 2;
  const auto submitted = (*client)->Submit(JobSpec());
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  EXPECT_EQ(submitted->job(), "j-1");
  EXPECT_TRUE(scheduler_.same_request_id);
}

TEST_F(ClusterClientTest, CancelledGroup_EndsItsStreams) {
  const auto client = ClusterClient::Connect(address_);
  ASSERT_TRUE(client.ok()) << client.status();
  CallGroup calls;
  std::atomic<int> changes = 0;
  std::thread watcher([&] {
    const absl::Status status = (*client)->Watch("j-1", &calls, [&](const Job&) {
      ++changes;
      return true;
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  });
  while (changes == 0) absl::SleepFor(absl::Milliseconds(1));
  calls.Cancel();
  watcher.join();
  EXPECT_TRUE((*client)->Watch("j-1", &calls, [](const Job&) { return true; }).code() ==
              absl::StatusCode::kCancelled);
}

TEST_F(ClusterClientTest, StreamThatIsNoLongerWanted_EndsWell) {
  const auto client = ClusterClient::Connect(address_);
  ASSERT_TRUE(client.ok()) << client.status();
  CallGroup calls;
  EXPECT_TRUE((*client)->Watch("j-1", &calls, [](const Job&) { return false; }).ok());
}

}  // namespace
}  // namespace ringd::cli
