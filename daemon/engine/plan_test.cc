// Plans: reading hostile records, and agreeing on them between ranks.
#include "daemon/engine/order/plan.h"

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "daemon/engine/testing/engine_fixture.h"
#include "daemon/engine/testing/plan_record.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;

PlanRecord TwoBuckets() {
  PlanRecord record;
  record.buckets = {MakePlanBucket(32), MakePlanBucket(4)};
  record.tensors = {{"layer1.weight", 0, {10, 3}, 0},
                    {"layer1.bias", 0, {2}, 30},
                    {"layer2.weight", 1, {2, 2}, 0}};
  return record;
}

TEST(PlanParseTest, SoundRecord_HasBucketsAndCanonicalText) {
  const auto plan = Plan::Parse(TwoBuckets().Bytes());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->id(), 1u);
  EXPECT_EQ((*plan)->buckets().size(), 2u);
  EXPECT_EQ((*plan)->canonical_text(),
            "plan 1 with 2 buckets and 3 tensors\n"
            "bucket\t0\tfloat32[32] sum\n"
            "bucket\t1\tfloat32[4] sum\n"
            "tensor\tlayer1.weight\tfloat32[10, 3]\t0\t0\n"
            "tensor\tlayer1.bias\tfloat32[2]\t0\t30\n"
            "tensor\tlayer2.weight\tfloat32[2, 2]\t1\t0\n");
}

TEST(PlanParseTest, WireOfABucket_IsInTheText) {
  PlanRecord record = TwoBuckets();
  record.buckets[0].wire = 3;
  const auto plan = Plan::Parse(record.Bytes());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE((*plan)->canonical_text().find("bucket\t0\tfloat32[32] sum wire fp8_e4m3\n"),
            std::string::npos);
}

TEST(PlanParseTest, PlacesInTheArena_AreNotPartOfTheText) {
  PlanRecord other = TwoBuckets();
  other.buckets[0] = MakePlanBucket(32, 4096);
  EXPECT_EQ((*Plan::Parse(TwoBuckets().Bytes()))->hash(), (*Plan::Parse(other.Bytes()))->hash());
  other.tensors[2].name = "x";
  EXPECT_NE((*Plan::Parse(TwoBuckets().Bytes()))->hash(), (*Plan::Parse(other.Bytes()))->hash());
}

TEST(PlanParseTest, NamesWithTabsAndLines_AreEscaped) {
  PlanRecord record = TwoBuckets();
  record.tensors[0].name = "a\tb\nc\\";
  EXPECT_NE((*Plan::Parse(record.Bytes()))->canonical_text().find("tensor\ta\\tb\\nc\\\\\t"),
            std::string::npos);
}

TEST(PlanParseTest, BadRecords_AreRefused) {
  const std::vector<std::function<void(PlanRecord*)>> changes = {
      [](PlanRecord* r) { r->plan = 0; },
      [](PlanRecord* r) { r->plan = 65536; },
      [](PlanRecord* r) { r->buckets.clear(); },
      [](PlanRecord* r) { r->buckets.resize(4097, MakePlanBucket(1)); },
      [](PlanRecord* r) { r->buckets[0].dtype = DType{0}; },
      [](PlanRecord* r) { r->buckets[0].dtype = DType{200}; },
      [](PlanRecord* r) { r->buckets[0].reduction = Reduction::kNone; },
      [](PlanRecord* r) { r->buckets[0].reduction = Reduction{99}; },
      [](PlanRecord* r) { r->buckets[0].count = uint64_t{1} << 60; },
      [](PlanRecord* r) { r->buckets[0].count = 31; },
      [](PlanRecord* r) { r->buckets[0].prescale = NAN; },
      [](PlanRecord* r) { r->buckets[0].wire = 5; },
      [](PlanRecord* r) { r->buckets[0].dtype = DType::kInt32, r->buckets[0].wire = 1; },
      [](PlanRecord* r) { r->tensors[0].bucket = 2; },
      [](PlanRecord* r) { r->tensors[0].shape = {-1}; },
      [](PlanRecord* r) {
        r->tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
      },
      [](PlanRecord* r) { r->tensors[0].shape.resize(33, 1); },
      [](PlanRecord* r) { r->tensors[0].offset = ~uint64_t{0}; },
      [](PlanRecord* r) { r->tensors[0].name.resize(4097, 'x'); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    PlanRecord record = TwoBuckets();
    changes[i](&record);
    EXPECT_EQ(Plan::Parse(record.Bytes()).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

// 64 MB of tensors that all have the same 4 KB as their name would be a text of 8 GB.
TEST(PlanParseTest, TensorsThatShareNamesOrDims_AreRefused) {
  const std::vector<char> sound = TwoBuckets().Bytes();
  const size_t second =
      sizeof(arena::PlanHeader) + 2 * sizeof(arena::PlanBucket) + sizeof(arena::PlanTensor);
  const auto parse_with = [&](const std::function<void(arena::PlanTensor*)>& change) {
    std::vector<char> bytes = sound;
    arena::PlanTensor tensor;
    std::memcpy(&tensor, bytes.data() + second, sizeof(tensor));
    change(&tensor);
    std::memcpy(bytes.data() + second, &tensor, sizeof(tensor));
    return std::string(Plan::Parse(bytes).status().message());
  };
  EXPECT_EQ(parse_with([](arena::PlanTensor*) {}), "");
  EXPECT_EQ(parse_with([](arena::PlanTensor* tensor) {
              tensor->name_offset = 0;
              tensor->name_bytes = 13;  // layer1.weight, two bytes more than its own.
            }),
            "bad plan record: name of tensor 2");
  EXPECT_EQ(parse_with([](arena::PlanTensor* tensor) {
              tensor->first_dim = 0;
              tensor->ndim = 2;
              tensor->offset = 0;
            }),
            "bad plan record: first_dim of tensor 2");
}

TEST(PlanParseTest, TruncatedAndRandomRecords_NeverCrash) {
  const std::vector<char> sound = TwoBuckets().Bytes();
  for (size_t size = 0; size < sound.size(); ++size) {
    EXPECT_FALSE(Plan::Parse(absl::MakeSpan(sound.data(), size)).ok());
  }
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<char> bytes = sound;
    for (uint32_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Plan::Parse(bytes).status().IgnoreError();
  }
}

// Puts the record and its buckets' memory into the client's arena; `data` gets the buckets' places.
arena::Descriptor Register(FakeClient* client, PlanRecord record, std::vector<arena::Ref>* data) {
  for (arena::PlanBucket& bucket : record.buckets) {
    data->push_back(client->Allocate(bucket.count * 4));
    bucket.input = bucket.output = data->back();
  }
  const std::vector<char> bytes = record.Bytes();
  arena::Descriptor descriptor = client->Describe(Operation::kPlanRegister);
  descriptor.root = static_cast<int32_t>(record.plan);
  descriptor.meta = client->Put(bytes);
  descriptor.meta_bytes = static_cast<uint32_t>(bytes.size());
  return descriptor;
}

arena::Descriptor Bucket(FakeClient* client, uint32_t index) {
  arena::Descriptor descriptor = client->Describe(Operation::kPlanBucket);
  descriptor.root = 1;
  descriptor.bucket = index;
  return descriptor;
}

TEST(PlanEngineTest, Steps_ReduceEveryBucketInAnyOrder) {
  TestNode node(3);
  node.ForEachRank([&](int rank, FakeClient& client) {
    std::vector<arena::Ref> data;
    PlanRecord record = TwoBuckets();
    record.buckets[1].reduction = Reduction::kAverage;
    ASSERT_EQ(client.Run(Register(&client, record, &data)).code, Code::kOk);
    for (int step = 0; step < 50; ++step) {
      auto* first = static_cast<float*>(client.At(data[0]));
      auto* second = static_cast<float*>(client.At(data[1]));
      for (int i = 0; i < 32; ++i) first[i] = static_cast<float>(rank + step + i);
      for (int i = 0; i < 4; ++i) second[i] = static_cast<float>(3 * rank + step);
      const uint32_t early = static_cast<uint32_t>(rank + step) % 2;
      const auto a = client.Submit(Bucket(&client, early));
      const auto b = client.Submit(Bucket(&client, 1 - early));
      ASSERT_EQ(client.Wait(a).code, Code::kOk);
      ASSERT_EQ(client.Wait(b).code, Code::kOk);
      for (int i = 0; i < 32; ++i) ASSERT_EQ(first[i], static_cast<float>(3 + 3 * step + 3 * i));
      for (int i = 0; i < 4; ++i) ASSERT_EQ(second[i], static_cast<float>(3 + step));
    }
    arena::Descriptor unregister = client.Describe(Operation::kPlanUnregister);
    unregister.root = 1;
    EXPECT_EQ(client.Run(unregister).code, Code::kOk);
    EXPECT_EQ(client.Run(Bucket(&client, 0)).code, Code::kInvalidArgument);
  });
}

std::string MessageOf(const std::function<void(PlanRecord*)>& change) {
  TestNode node(2);
  std::string message;
  node.ForEachRank([&](int rank, FakeClient& client) {
    PlanRecord record = TwoBuckets();
    if (rank == 1) change(&record);
    std::vector<arena::Ref> data;
    const auto result = client.Run(Register(&client, record, &data));
    EXPECT_EQ(result.code, Code::kMismatch);
    if (rank == 0) message = result.message;
    EXPECT_EQ(client.Run(client.Describe(Operation::kBarrier)).code, Code::kOk);
  });
  return message;
}

TEST(PlanEngineTest, PlansThatDiffer_NameTensorRankAndBothValues) {
  EXPECT_NE(MessageOf([](PlanRecord* r) {
              r->tensors.pop_back();
            }).find("tensor layer2.weight: rank 0 has float32[2, 2], rank 1 does not have it"),
            std::string::npos);
  const std::string shape = MessageOf([](PlanRecord* r) { r->tensors[0].shape = {5, 6}; });
  EXPECT_NE(shape.find("tensor layer1.weight: "), std::string::npos) << shape;
  EXPECT_NE(shape.find("rank 0 has float32[10, 3]"), std::string::npos) << shape;
  EXPECT_NE(shape.find("rank 1 has float32[5, 6]"), std::string::npos) << shape;
  const std::string dtype = MessageOf([](PlanRecord* r) { r->buckets[1].dtype = DType::kInt32; });
  EXPECT_NE(dtype.find("tensor layer2.weight: "), std::string::npos) << dtype;
  EXPECT_NE(dtype.find("rank 1 has int32[2, 2]"), std::string::npos) << dtype;
  const std::string bucket = MessageOf([](PlanRecord* r) { r->tensors[2].bucket = 0; });
  EXPECT_NE(bucket.find("rank 0 has it in bucket 1"), std::string::npos) << bucket;
  const std::string scale = MessageOf([](PlanRecord* r) { r->buckets[1].prescale = 0.5; });
  EXPECT_NE(scale.find("float32[4] sum prescale 0.5"), std::string::npos) << scale;
}

TEST(PlanEngineTest, NextClientsPlanWithTheSameId_StartsAnew) {
  TestNode node(2);
  node.ForEachRank([&](int rank, FakeClient& client) {
    std::vector<arena::Ref> data;
    ASSERT_EQ(client.Run(Register(&client, TwoBuckets(), &data)).code, Code::kOk);
    if (rank == 0) client.Submit(Bucket(&client, 1));  // A step that is never finished.
  });
  for (int rank = 0; rank < 2; ++rank) node.engine().RemoveClient("job", rank, 1);
  FakeClient next[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_TRUE(next[rank].Attach(&node.engine(), "job", rank, 2).ok());
      std::vector<arena::Ref> data;
      ASSERT_EQ(next[rank].Run(Register(&next[rank], TwoBuckets(), &data)).code, Code::kOk);
      for (uint32_t i = 0; i < 2; ++i)
        EXPECT_EQ(next[rank].Run(Bucket(&next[rank], i)).code, Code::kOk);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(PlanEngineTest, PlanTooOftenOrOutsideTheArena_Poisons) {
  {
    TestNode node(1);
    FakeClient& client = node.client(0);
    std::vector<arena::Ref> data;
    ASSERT_EQ(client.Run(Register(&client, TwoBuckets(), &data)).code, Code::kOk);
    EXPECT_NE(client.Run(Register(&client, TwoBuckets(), &data)).message.find("registered already"),
              std::string::npos);
  }
  TestNode node(1);
  FakeClient& client = node.client(0);
  const std::vector<char> bytes = TwoBuckets().Bytes();  // Buckets at offset 0: the header.
  arena::Descriptor descriptor = client.Describe(Operation::kPlanRegister);
  descriptor.root = 1;
  descriptor.meta = client.Put(bytes);
  descriptor.meta_bytes = static_cast<uint32_t>(bytes.size());
  EXPECT_NE(client.Run(descriptor).message.find("input outside the arena"), std::string::npos);
}

TEST(PlanEngineTest, BucketTwiceInAStep_Poisons) {
  TestNode node(2);
  node.ForEachRank([&](int, FakeClient& client) {
    std::vector<arena::Ref> data;
    ASSERT_EQ(client.Run(Register(&client, TwoBuckets(), &data)).code, Code::kOk);
  });
  FakeClient& client = node.client(0);
  client.Submit(Bucket(&client, 0));
  EXPECT_NE(client.Run(Bucket(&client, 0)).message.find("submitted twice in one step"),
            std::string::npos);
}

}  // namespace
}  // namespace ringd::daemon
