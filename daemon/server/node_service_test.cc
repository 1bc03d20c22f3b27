#include "daemon/server/node_service.h"

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/version.h"
#include "common/crypto/crypto.h"
#include "common/sync/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/arena.h"

namespace ringd::daemon {
namespace {

using testing::ElementsAre;

class Notes : public WorkerObserver {
 public:
  void OnWorkerAttached(const std::string&, int rank, uint64_t, pid_t pid) override {
    Add(absl::StrCat("attached ", rank, pid == getpid() ? " me" : " other"));
  }
  void OnWorkerReport(const std::string&, int rank, node::v1::WorkerReport report) override {
    Add(absl::StrCat("report ", rank, " ", report.started().pid()));
  }
  void OnWorkerDetached(const std::string&, int rank, uint64_t) override {
    Add(absl::StrCat("detached ", rank));
  }
  std::vector<std::string> WaitFor(size_t count) {
    MutexLock lock(&mu_);
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (notes_.size() < count && absl::Now() < deadline)
      changed_.WaitWithTimeout(&mu_, absl::Milliseconds(50));
    return notes_;
  }

 private:
  void Add(std::string note) {
    MutexLock lock(&mu_);
    notes_.push_back(std::move(note));
    changed_.Signal();
  }
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mu_);
};

class NodeServiceTest : public testing::Test {
 protected:
  NodeServiceTest()
      : table_({.node = "a", .arena_socket = "/r/arena.sock"}), server_(RpcServer::Create()) {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    cluster::v1::Prepare order;
    order.set_job("j-1");
    order.set_uid(getuid());
    order.set_token("token");
    order.add_nodes()->set_rank_count(1);
    table_.AddJob(order);
  }
  ~NodeServiceTest() override {
    server_->Shutdown(absl::ZeroDuration());
    rmdir(directory_.c_str());
  }
  void Serve(NodeServiceOptions options) {
    service_ = std::make_unique<NodeService>(options, server_.get(), &table_, &notes_, [] {
      node::v1::GetInfoResponse info;
      info.set_node("a");
      return info;
    });
    server_->AddService(service_.get());
    const std::string path = directory_ + "/s";
    ASSERT_TRUE(
        server_->ListenUnixSocket(path, 0600, [](const PeerCredentials&) { return true; }).ok());
    ASSERT_TRUE(server_->Start().ok());
    stub_ = node::v1::Node::NewStub(Connect("unix:" + path, {}).value());
  }
  grpc::Status Sign(const std::string& nonce, node::v1::SignIdentityResponse* response) {
    grpc::ClientContext context;
    node::v1::SignIdentityRequest request;
    request.set_nonce(nonce);
    return stub_->SignIdentity(&context, request, response);
  }
  static node::v1::WorkerReport Attach(const std::string& token) {
    node::v1::WorkerReport report;
    report.mutable_attach()->set_job("j-1");
    report.mutable_attach()->set_token(token);
    report.mutable_attach()->set_layout_version(arena::kLayoutVersion);
    report.mutable_attach()->set_version(kVersion);
    return report;
  }

  std::string directory_ = "/tmp/service-XXXXXX";
  Notes notes_;
  SessionTable table_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<NodeService> service_;
  std::unique_ptr<node::v1::Node::Stub> stub_;
};

TEST_F(NodeServiceTest, Supervise_CarriesReportsUpAndOrdersDown) {
  Serve({.node = "a"});
  grpc::ClientContext context;
  const auto stream = stub_->Supervise(&context);
  stream->Write(Attach("token"));
  node::v1::WorkerOrder order;
  ASSERT_TRUE(stream->Read(&order));
  EXPECT_EQ(order.attached().session().size(), 32u);
  EXPECT_EQ(order.attached().node(), "a");
  node::v1::WorkerReport report;
  report.mutable_started()->set_pid(77);
  stream->Write(report);
  node::v1::WorkerOrder signal;
  signal.mutable_signal()->set_signal(10);
  EXPECT_TRUE(table_.Order("j-1", 0, signal));
  ASSERT_TRUE(stream->Read(&order));
  EXPECT_EQ(order.signal().signal(), 10);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&order));
  stream->Finish();
  EXPECT_THAT(notes_.WaitFor(3), ElementsAre("attached 0 me", "report 0 77", "detached 0"));
  EXPECT_FALSE(table_.Order("j-1", 0, signal));
}

TEST_F(NodeServiceTest, Supervise_WrongTokenOrNoAttach_IsRefused) {
  Serve({.node = "a"});
  {
    grpc::ClientContext context;
    const auto stream = stub_->Supervise(&context);
    stream->Write(Attach("wrong"));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  grpc::ClientContext context;
  const auto stream = stub_->Supervise(&context);
  stream->Write({});
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(NodeServiceTest, Supervise_JobIsRemoved_StreamEnds) {
  Serve({.node = "a"});
  grpc::ClientContext context;
  const auto stream = stub_->Supervise(&context);
  stream->Write(Attach("token"));
  node::v1::WorkerOrder order;
  ASSERT_TRUE(stream->Read(&order));
  table_.RemoveJob("j-1");
  EXPECT_FALSE(stream->Read(&order));
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(NodeServiceTest, SignIdentity_IsWhatTheNodesCertificateProves) {
  const KeyPair authority = CreateAuthority("test").value();
  const KeyPair pair = CreateCertificate(authority, "a", {"a"}, "ringd://node/a").value();
  Serve({.node = "a", .key_pem = pair.key_pem, .certificate_pem = pair.certificate_pem});
  node::v1::SignIdentityResponse response;
  ASSERT_TRUE(Sign(std::string(16, '\x01'), &response).ok());
  EXPECT_EQ(response.uid(), getuid());
  const std::string message =
      absl::StrCat("ringd-identity|", response.user(), "|", getuid(), "|", getgid(),
                   "|01010101010101010101010101010101|", response.time_us(), "|a");
  EXPECT_TRUE(VerifySignature(authority.certificate_pem, response.certificate(), message,
                              response.signature())
                  .ok());
  EXPECT_EQ(Sign("short", &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(NodeServiceTest, SignIdentity_WithoutAKeyOrOfASystemUser_IsRefused) {
  Serve({.node = "a", .shared = true, .min_uid = getuid() + 1});
  node::v1::SignIdentityResponse response;
  EXPECT_EQ(Sign(std::string(16, 'n'), &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(NodeServiceTest, SignIdentity_WithoutAKey_SaysWhatToSet) {
  Serve({.node = "a"});
  node::v1::SignIdentityResponse response;
  const grpc::Status status = Sign(std::string(16, 'n'), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("tls_key"));
}

}  // namespace
}  // namespace ringd::daemon
