#include "client/c/plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/arena_client.h"
#include "client/c/error.h"
#include "client/c/fake_daemon.h"
#include "common/base/types.h"

namespace ringd::client {
namespace {

using Reply = FakeDaemon::Reply;

constexpr ringd_plan_bucket kSum{.dtype = static_cast<uint32_t>(DType::kFloat32),
                                 .reduction = static_cast<uint32_t>(Reduction::kSum),
                                 .prescale = 1.0,
                                 .postscale = 1.0};

class PlanTest : public ::testing::Test {
 protected:
  // Two buckets: "a" (5) and "b" (2x2) in the first, "c" (3) in the second.
  int Register(ringd_plan* plan) {
    static constexpr int64_t kFive[] = {5};
    static constexpr int64_t kSquare[] = {2, 2};
    static constexpr int64_t kThree[] = {3};
    const ringd_plan_bucket buckets[] = {kSum, kSum};
    const ringd_plan_tensor tensors[] = {
        {"a", kFive, 1, 0}, {"b", kSquare, 2, 0}, {"c", kThree, 1, 1}};
    return client_->RegisterPlan(0, buckets, 2, tensors, 3, -1, plan);
  }
  void Start(FakeDaemon::Handler handler, int node_count = 1) {
    daemon_ = std::make_unique<FakeDaemon>();
    ArenaClientOptions options = daemon_->Options();
    options.info.node_count = node_count;
    ASSERT_EQ(ArenaClient::Create(std::move(options), &client_), RINGD_OK);
    daemon_->Serve(*client_, std::move(handler));
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<ArenaClient> client_;
};

TEST_F(PlanTest, Register_Record_IsAsTheArenaSays) {
  std::vector<char> record;
  Start([&](const arena::Descriptor& d) {
    const auto* const bytes = reinterpret_cast<const char*>(daemon_->Pointer(d.meta));
    record.assign(bytes, bytes + d.meta_bytes);
    return Reply{};
  });
  ringd_plan plan = 0;
  ASSERT_EQ(Register(&plan), RINGD_OK);
  EXPECT_EQ(plan, 1u);
  const arena::Descriptor descriptor = daemon_->seen().at(0);
  EXPECT_EQ(descriptor.operation, Operation::kPlanRegister);
  EXPECT_EQ(descriptor.root, 1);
  ASSERT_EQ(record.size(), 24u + 2 * 48 + 3 * 32 + 4 * 8 + 3);
  arena::PlanHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  EXPECT_EQ(header.bucket_count, 2u);
  EXPECT_EQ(header.tensor_count, 3u);
  arena::PlanBucket bucket;
  std::memcpy(&bucket, record.data() + 24, sizeof(bucket));
  EXPECT_EQ(bucket.count, 12u);  // 5 elements padded to 8, then 4.
  arena::PlanTensor tensor;
  std::memcpy(&tensor, record.data() + 24 + 96 + 32, sizeof(tensor));
  EXPECT_EQ(tensor.offset, 8u);
  EXPECT_EQ(std::string(record.data() + record.size() - 3, 3), "abc");
}

// Blocks of 32 elements have a scale each: tensors share none.
TEST_F(PlanTest, Register_Narrow_TensorsBeginAtBlocks_OnSeveralNodesOnly) {
  for (const int node_count : {1, 2}) {
    std::vector<char> record;
    Start(
        [&](const arena::Descriptor& d) {
          const auto* const bytes = reinterpret_cast<const char*>(daemon_->Pointer(d.meta));
          record.assign(bytes, bytes + d.meta_bytes);
          return Reply{};
        },
        node_count);
    ringd_plan_bucket narrow = kSum;
    narrow.wire = 3;
    constexpr int64_t kFive[] = {5};
    const ringd_plan_tensor tensors[] = {{"a", kFive, 1, 0}, {"b", kFive, 1, 0}};
    ringd_plan plan = 0;
    ASSERT_EQ(client_->RegisterPlan(0, &narrow, 1, tensors, 2, -1, &plan), RINGD_OK);
    arena::PlanBucket bucket;
    std::memcpy(&bucket, record.data() + 24, sizeof(bucket));
    arena::PlanTensor tensor;
    std::memcpy(&tensor, record.data() + 24 + 48 + 32, sizeof(tensor));
    EXPECT_EQ(bucket.wire, node_count == 1 ? 0 : 3);
    EXPECT_EQ(tensor.offset, node_count == 1 ? 8u : 32u);
    client_.reset();
  }
}

TEST_F(PlanTest, Register_WireThatDoesNotFit_IsRefused) {
  Start([](const arena::Descriptor&) { return Reply{}; });
  constexpr int64_t kFive[] = {5};
  const ringd_plan_tensor tensor = {"a", kFive, 1, 0};
  for (const auto& [dtype, wire] : {std::pair{DType::kInt32, 1u}, {DType::kFloat32, 5u}}) {
    ringd_plan_bucket bucket = kSum;
    bucket.dtype = static_cast<uint32_t>(dtype);
    bucket.wire = wire;
    ringd_plan plan = 0;
    EXPECT_EQ(client_->RegisterPlan(0, &bucket, 1, &tensor, 1, -1, &plan), RINGD_INVALID_ARGUMENT);
    EXPECT_NE(std::string(LastError().message).find("can't travel as"), std::string::npos);
  }
}

TEST_F(PlanTest, Ready_LastTensorOfABucket_SubmitsIt) {
  Start([](const arena::Descriptor&) { return Reply{}; });
  ringd_plan id = 0;
  ASSERT_EQ(Register(&id), RINGD_OK);
  Plan* const plan = client_->FindPlan(id);
  ASSERT_NE(plan, nullptr);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(plan->MarkReady(2), RINGD_OK);
    EXPECT_EQ(plan->MarkReady(0), RINGD_OK);
    EXPECT_EQ(plan->MarkReady(0), RINGD_INVALID_ARGUMENT);
    EXPECT_EQ(plan->Wait(-1), RINGD_INVALID_ARGUMENT);
    EXPECT_NE(std::string(LastError().message).find("\"b\""), std::string::npos);
    EXPECT_EQ(plan->MarkReady(1), RINGD_OK);
    EXPECT_EQ(plan->Wait(-1), RINGD_OK);
  }
  const std::vector<arena::Descriptor> seen = daemon_->seen();
  ASSERT_EQ(seen.size(), 7u);
  EXPECT_EQ(seen[1].operation, Operation::kPlanBucket);
  EXPECT_EQ(seen[1].bucket, 1u);
  EXPECT_EQ(seen[2].bucket, 0u);
  EXPECT_EQ(client_->UnregisterPlan(id), RINGD_OK);
  EXPECT_EQ(client_->FindPlan(id), nullptr);
  EXPECT_EQ(client_->memory()->caller_blocks(), 0u);
}

TEST_F(PlanTest, Flush_UnusedTensors_AreZerosAndReady) {
  Start([](const arena::Descriptor&) { return Reply{}; });
  ringd_plan id = 0;
  ASSERT_EQ(Register(&id), RINGD_OK);
  Plan* const plan = client_->FindPlan(id);
  auto* const c = static_cast<float*>(plan->TensorData(2));
  c[0] = 7;
  ASSERT_EQ(plan->MarkReady(0), RINGD_OK);
  EXPECT_EQ(client_->UnregisterPlan(id), RINGD_INVALID_ARGUMENT);
  uint32_t count = 0;
  EXPECT_EQ(plan->Flush(&count), RINGD_OK);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(c[0], 0);
  EXPECT_EQ(plan->Wait(-1), RINGD_OK);
}

TEST_F(PlanTest, Wait_AFailedBucket_IsReportedAndTheNextStepWorks) {
  int buckets = 0;
  Start([&](const arena::Descriptor& d) {
    const bool fails = d.operation == Operation::kPlanBucket && buckets++ == 0;
    return fails ? Reply{.code = arena::Code::kPeerFailed, .message = "gone"} : Reply{};
  });
  ringd_plan id = 0;
  ASSERT_EQ(Register(&id), RINGD_OK);
  Plan* const plan = client_->FindPlan(id);
  ASSERT_EQ(plan->Flush(nullptr), RINGD_OK);
  EXPECT_EQ(plan->Wait(-1), RINGD_PEER_FAILED);
  EXPECT_STREQ(LastError().message, "gone");
  ASSERT_EQ(plan->Flush(nullptr), RINGD_OK);
  EXPECT_EQ(plan->Wait(-1), RINGD_OK);
}

TEST_F(PlanTest, Register_Mismatch_GivesTheMemoryBack) {
  Start([](const arena::Descriptor&) {
    return Reply{.code = arena::Code::kMismatch, .message = "tensor 'b' differs"};
  });
  ringd_plan id = 0;
  EXPECT_EQ(Register(&id), RINGD_MISMATCH);
  EXPECT_EQ(client_->memory()->caller_blocks(), 0u);
}

TEST_F(PlanTest, Register_WrongArguments_AreRefusedHere) {
  Start([](const arena::Descriptor&) { return Reply{}; });
  ringd_plan id = 0;
  const int64_t shape[] = {-1};
  const ringd_plan_tensor negative{"n", shape, 1, 0};
  const ringd_plan_tensor lost{"l", nullptr, 0, 1};
  EXPECT_EQ(client_->RegisterPlan(0, &kSum, 1, &negative, 1, -1, &id), RINGD_INVALID_ARGUMENT);
  EXPECT_EQ(client_->RegisterPlan(0, &kSum, 1, &lost, 1, -1, &id), RINGD_INVALID_ARGUMENT);
  EXPECT_EQ(client_->RegisterPlan(0, &kSum, 1, nullptr, 0, -1, &id), RINGD_INVALID_ARGUMENT);
  EXPECT_EQ(client_->RegisterPlan(0, &kSum, 0, nullptr, 0, -1, &id), RINGD_INVALID_ARGUMENT);
  EXPECT_TRUE(daemon_->seen().empty());
}

}  // namespace
}  // namespace ringd::client
