#include "common/rpc/rpc.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/crypto/crypto.h"
#include "common/rpc/whoami_test.grpc.pb.h"

namespace ringd {
namespace {

namespace pb = ::ringd::test;

class WhoAmIService : public pb::WhoAmI::Service {
 public:
  explicit WhoAmIService(const RpcServer* server) : server_(server) {}
  grpc::Status Ask(grpc::ServerContext* context, const pb::Question*,
                   pb::Answer* response) override {
    const auto peer = server_->Peer(*context);
    response->set_pid(peer.ok() ? peer->pid : -1);
    for (const std::string& uri : PeerUris(*context)) response->set_uri(uri);
    return grpc::Status::OK;
  }

 private:
  const RpcServer* server_;
};

class RpcTest : public testing::Test {
 protected:
  RpcTest() : server_(RpcServer::Create()), service_(server_.get()) {
    server_->AddService(&service_);
    path_ = absl::StrCat("/tmp/ringd-rpc-", getpid(), ".sock");
  }
  ~RpcTest() override { server_->Shutdown(absl::ZeroDuration()); }

  absl::StatusOr<pb::Answer> Call(const std::string& address, const TlsFiles& tls = {}) {
    auto channel = Connect(address, tls);
    if (!channel.ok()) return channel.status();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    pb::Answer response;
    const grpc::Status status = pb::WhoAmI::NewStub(*channel)->Ask(&context, {}, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }
  std::string WriteTemporary(const std::string& name, const std::string& content) {
    const std::string path = testing::TempDir() + "/" + name;
    std::ofstream(path) << content;
    return path;
  }

  std::unique_ptr<RpcServer> server_;
  WhoAmIService service_;
  std::string path_;
};

TEST_F(RpcTest, Peer_UnixSocket_IsTheCallersProcess) {
  ASSERT_TRUE(server_->ListenUnixSocket(path_, 0600, nullptr).ok());
  ASSERT_TRUE(server_->Start().ok());
  const auto response = Call("unix:" + path_);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->pid(), getpid());
}

TEST_F(RpcTest, ListenUnixSocket_PeerNotAdmitted_CallsFail) {
  ASSERT_TRUE(
      server_->ListenUnixSocket(path_, 0600, [](const PeerCredentials&) { return false; }).ok());
  ASSERT_TRUE(server_->Start().ok());
  EXPECT_FALSE(Call("unix:" + path_).ok());
}

TEST_F(RpcTest, ListenUnixSocket_InUse_IsSaid) {
  ASSERT_TRUE(server_->ListenUnixSocket(path_, 0600, nullptr).ok());
  const absl::Status status = RpcServer::Create()->ListenUnixSocket(path_, 0600, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(std::string(status.message()).find(path_), std::string::npos);
}

TEST_F(RpcTest, ListenTcp_WithoutTlsBeyondLoopback_IsRefused) {
  EXPECT_EQ(server_->ListenTcp("0.0.0.0:0", {}, false, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RpcTest, ListenTcp_MutualTls_NamesThePeerAndRefusesStrangers) {
  const KeyPair authority = *CreateAuthority("test");
  const KeyPair node = *CreateCertificate(authority, "a", {"127.0.0.1"}, "ringd://node/a");
  const KeyPair stranger =
      *CreateCertificate(*CreateAuthority("other"), "x", {"127.0.0.1"}, "ringd://node/a");
  const TlsFiles tls{WriteTemporary("a.crt", node.certificate_pem),
                     WriteTemporary("a.key", node.key_pem),
                     WriteTemporary("ca.crt", authority.certificate_pem)};
  int port = 0;
  ASSERT_TRUE(server_->ListenTcp("127.0.0.1:0", tls, false, &port).ok());
  ASSERT_TRUE(server_->Start().ok());
  ASSERT_GT(port, 0);
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const auto response = Call(address, tls);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->uri(), "ringd://node/a");
  TlsFiles wrong = tls;
  wrong.certificate = WriteTemporary("x.crt", stranger.certificate_pem);
  wrong.key = WriteTemporary("x.key", stranger.key_pem);
  EXPECT_FALSE(Call(address, wrong).ok());
  EXPECT_FALSE(Call(address).ok());
  TlsFiles server_only;
  server_only.authority = tls.authority;
  const auto anonymous = Call(address, server_only);
  ASSERT_TRUE(anonymous.ok()) << anonymous.status();
  EXPECT_EQ(anonymous->uri(), "");
}

TEST(StatusTest, ToGrpc_AndBack_KeepsCodeAndText) {
  const absl::Status status = absl::PermissionDeniedError("no");
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

}  // namespace
}  // namespace ringd
