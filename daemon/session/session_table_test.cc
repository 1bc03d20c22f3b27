#include "daemon/session/session_table.h"

#include <string>

#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/arena.h"

namespace ringd::daemon {
namespace {

using testing::HasSubstr;

const std::string kToken(32, 't');
constexpr PeerCredentials kWorker{100, 1234, 1234};

class SessionTableTest : public testing::Test {
 protected:
  SessionTableTest()
      : table_(
            {.node = "a", .arena_socket = "/r/arena.sock", .reattach_timeout = absl::Seconds(60)}) {
    cluster::v1::Prepare order;
    order.set_job("j-1");
    order.set_generation(3);
    order.set_uid(1234);
    order.set_token(kToken);
    for (int i = 0; i < 2; ++i) {
      auto* node = order.add_nodes();
      node->set_first_rank(i * 2);
      node->set_rank_count(2);
    }
    order.set_node_index(1);
    table_.AddJob(order);
  }
  static node::v1::AttachRequest Request(int rank) {
    node::v1::AttachRequest request;
    request.set_job("j-1");
    request.set_rank(rank);
    request.set_token(kToken);
    request.set_layout_version(arena::kLayoutVersion);
    request.set_version(kVersion);
    return request;
  }
  absl::StatusCode Attach(const PeerCredentials& peer, const node::v1::AttachRequest& request) {
    return table_.AttachWorker(peer, request, [] {}).status().code();
  }
  SessionTable table_;
};

TEST_F(SessionTableTest, AttachWorker_RightToken_GetsSessionAndLayout) {
  const auto attached = table_.AttachWorker(kWorker, Request(3), [] {});
  ASSERT_TRUE(attached.ok());
  const node::v1::AttachResponse& response = attached->response;
  EXPECT_EQ(response.session().size(), 32u);
  EXPECT_EQ(response.generation(), 3u);
  EXPECT_EQ(response.layout().rank(), 3);
  EXPECT_EQ(response.layout().size(), 4);
  EXPECT_EQ(response.layout().local_rank(), 1);
  EXPECT_EQ(response.layout().local_size(), 2);
  EXPECT_EQ(response.layout().node_rank(), 1);
  EXPECT_EQ(response.layout().node_count(), 2);
  EXPECT_EQ(response.reattach_timeout().seconds(), 60);
  EXPECT_EQ(table_.FindSession(response.session(), 1234)->rank, 3);
}

TEST_F(SessionTableTest, AttachWorker_WhatIsWrong_IsToldByCode) {
  node::v1::AttachRequest request = Request(2);
  request.set_token("wrong");
  EXPECT_EQ(Attach(kWorker, request), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Attach({100, 1235, 1235}, Request(2)), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Attach({100, 0, 0}, Request(2)), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Attach(kWorker, Request(1)), absl::StatusCode::kNotFound);  // Lives on the other node.
  request = Request(2);
  request.set_job("j-2");
  EXPECT_EQ(Attach(kWorker, request), absl::StatusCode::kNotFound);
  request = Request(2);
  request.set_version("9.9");
  EXPECT_EQ(Attach(kWorker, request), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(table_.AttachWorker(kWorker, request, [] {}).status().message()),
              HasSubstr("9.9"));
  request = Request(2);
  request.set_layout_version(arena::kLayoutVersion + 1);
  EXPECT_EQ(Attach(kWorker, request), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SessionTableTest, AttachWorker_AnotherProcessThanTheRanksWorker_IsDenied) {
  table_.SetWorker("j-1", 2, 100);
  EXPECT_EQ(Attach({101, 1234, 1234}, Request(2)), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Attach(kWorker, Request(2)), absl::StatusCode::kOk);
}

TEST_F(SessionTableTest, AttachWorker_Again_ClosesTheOlderStreamAndItsSession) {
  bool cancelled = false;
  const auto first = table_.AttachWorker(kWorker, Request(2), [&] { cancelled = true; });
  const auto second = table_.AttachWorker(kWorker, Request(2), [] {});
  EXPECT_TRUE(cancelled);
  EXPECT_TRUE(absl::IsNotFound(table_.FindSession(first->response.session(), 1234).status()));
  EXPECT_FALSE(table_.Detach("j-1", 2, *first->line));  // Late: it no longer is the rank's.
  node::v1::WorkerOrder order;
  order.mutable_signal()->set_signal(10);
  EXPECT_TRUE(table_.Order("j-1", 2, order));
  EXPECT_EQ(second->line->Pop()->signal().signal(), 10);
  EXPECT_TRUE(table_.Detach("j-1", 2, *second->line));
  EXPECT_FALSE(table_.Order("j-1", 2, order));
}

TEST_F(SessionTableTest, AttachProgram_ReplacesTheWorkersSessionButNotItsLine) {
  const auto worker = table_.AttachWorker(kWorker, Request(2), [] {});
  const auto program = table_.AttachProgram({500, 1234, 1234}, Request(2));
  ASSERT_TRUE(program.ok());
  EXPECT_FALSE(table_.FindSession(worker->response.session(), 1234).ok());
  EXPECT_TRUE(table_.FindSession(program->session(), 1234).ok());
  EXPECT_TRUE(table_.Order("j-1", 2, {}));
}

TEST_F(SessionTableTest, FindSession_OfAnotherUser_IsDenied) {
  const auto attached = table_.AttachWorker(kWorker, Request(2), [] {});
  EXPECT_TRUE(
      absl::IsPermissionDenied(table_.FindSession(attached->response.session(), 1235).status()));
}

TEST_F(SessionTableTest, RemoveJob_ClosesLinesAndForgetsSessions) {
  bool cancelled = false;
  const auto attached = table_.AttachWorker(kWorker, Request(2), [&] { cancelled = true; });
  EXPECT_TRUE(table_.HasJobOf(1234));
  table_.RemoveJob("j-1");
  EXPECT_TRUE(cancelled);
  EXPECT_FALSE(attached->line->Pop().has_value());
  EXPECT_FALSE(table_.FindSession(attached->response.session(), 1234).ok());
  EXPECT_FALSE(table_.HasJobOf(1234));
}

TEST(WorkerLineTest, Push_OrdersLeftUnread_ClosesTheLine) {
  bool cancelled = false;
  WorkerLine line(1, [&] { cancelled = true; });
  for (size_t i = 0; i < kMaxWaitingOrders; ++i) line.Push({});
  EXPECT_FALSE(cancelled);
  line.Push({});
  EXPECT_TRUE(cancelled);
  EXPECT_FALSE(line.Pop().has_value());
}

}  // namespace
}  // namespace ringd::daemon
