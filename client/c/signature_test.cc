#include "client/c/signature.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "common/base/types.h"

namespace ringd::client {
namespace {

constexpr int64_t kShape[] = {10, 3};
constexpr int64_t kOtherFirst[] = {11, 3};
constexpr int64_t kOtherLast[] = {10, 4};

ringd_operation Allreduce() {
  return ringd_operation{.size = sizeof(ringd_operation),
                         .operation = static_cast<uint32_t>(Operation::kAllreduce),
                         .dtype = static_cast<uint32_t>(DType::kFloat32),
                         .reduction = static_cast<uint32_t>(Reduction::kSum),
                         .count = 30,
                         .output_count = 30,
                         .shape = kShape,
                         .ndim = 2,
                         .prescale = 1.0,
                         .postscale = 1.0};
}

TEST(SignatureTest, SignatureOf_EverythingRanksAgreeOn_ChangesIt) {
  const std::vector<std::function<void(ringd_operation&)>> changes = {
      [](auto&) {},
      [](auto& o) { o.operation = static_cast<uint32_t>(Operation::kBroadcast); },
      [](auto& o) { o.dtype = static_cast<uint32_t>(DType::kInt32); },
      [](auto& o) { o.reduction = static_cast<uint32_t>(Reduction::kMax); },
      [](auto& o) { o.shape = kOtherFirst; },
      [](auto& o) { o.shape = kOtherLast; },
      [](auto& o) { o.ndim = 1; },
      [](auto& o) { o.root = 1; },
      [](auto& o) { o.prescale = 0.5; },
      [](auto& o) { o.postscale = 0.5; },
      [](auto& o) { o.name = "weight"; },
      [](auto& o) { o.name = "weight2"; },
      [](auto& o) { o.tag = 1; },
      [](auto& o) { o.wire = 1; },
      [](auto& o) { o.wire = 2; },
  };
  std::set<uint64_t> signatures;
  for (const auto& change : changes) {
    ringd_operation operation = Allreduce();
    change(operation);
    signatures.insert(SignatureOf(operation));
  }
  EXPECT_EQ(signatures.size(), changes.size());
}

TEST(SignatureTest, SignatureOf_WhatMayDiffer_LeavesIt) {
  ringd_operation operation = Allreduce();
  const uint64_t signature = SignatureOf(operation);
  float data[30];
  operation.input = data;
  operation.output = data;
  operation.site = "train.py:41";
  EXPECT_EQ(SignatureOf(operation), signature);
}

TEST(SignatureTest, SignatureOf_UnevenOperations_IgnoresTheFirstDimension) {
  for (const Operation kind : {Operation::kAllgather, Operation::kAlltoall}) {
    ringd_operation operation = Allreduce();
    operation.operation = static_cast<uint32_t>(kind);
    const uint64_t signature = SignatureOf(operation);
    operation.shape = kOtherFirst;
    EXPECT_EQ(SignatureOf(operation), signature);
    operation.shape = kOtherLast;
    EXPECT_NE(SignatureOf(operation), signature);
  }
  ringd_operation operation = Allreduce();
  operation.operation = static_cast<uint32_t>(Operation::kReduceScatter);
  const uint64_t signature = SignatureOf(operation);
  operation.shape = kOtherFirst;
  EXPECT_NE(SignatureOf(operation), signature);
}

// Ranks with different builds must find the same number. Worked out by an implementation in Python.
TEST(SignatureTest, Finish_FixedInput_IsStable) {
  Hasher hasher;
  hasher.Add(uint64_t{1});
  hasher.Add(std::string_view("abcdefghi"));
  EXPECT_EQ(hasher.Finish(), 0x29dfd27a70048344u);
}

}  // namespace
}  // namespace ringd::client
