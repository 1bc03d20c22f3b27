#include "client/c/slab.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace ringd::client {
namespace {

using arena::kNullRef;
using arena::MakeRef;
using Holder = Slab::Holder;

TEST(SlabTest, Allocate_AnySize_IsAlignedAndDisjoint) {
  Slab slab;
  slab.AddSegment(0, 4096, 1 << 20);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (uint64_t bytes : {1, 127, 128, 129, 5000, 0}) {
    const arena::Ref ref = slab.Allocate(bytes, Holder::kCaller);
    ASSERT_NE(ref, kNullRef);
    EXPECT_EQ(ref % 128, 0u);
    EXPECT_GE(ref, 4096u);
    for (const auto& [first, length] : ranges) {
      EXPECT_TRUE(ref >= first + length || ref + bytes <= first);
    }
    ranges.emplace_back(ref, bytes);
  }
}

TEST(SlabTest, Allocate_MoreThanThereIs_IsNull) {
  Slab slab;
  slab.AddSegment(0, 0, 1024);
  EXPECT_EQ(slab.Allocate(1025, Holder::kCaller), kNullRef);
  EXPECT_EQ(slab.Allocate(~uint64_t{0}, Holder::kCaller), kNullRef);
  EXPECT_EQ(slab.Allocate(1024, Holder::kCaller), MakeRef(0, 0));
  EXPECT_EQ(slab.Allocate(1, Holder::kCaller), kNullRef);
  slab.AddSegment(3, 0, 1024);
  EXPECT_EQ(slab.Allocate(1, Holder::kCaller), MakeRef(3, 0));
}

TEST(SlabTest, Free_AllInAnyOrder_CoalescesToOneRange) {
  std::mt19937 random(20240501);
  Slab slab;
  slab.AddSegment(0, 0, 1 << 20);
  for (int round = 0; round < 20; ++round) {
    std::vector<arena::Ref> refs;
    while (true) {
      const arena::Ref ref = slab.Allocate(random() % 9000, Holder::kCaller);
      if (ref == kNullRef) break;
      refs.push_back(ref);
    }
    std::shuffle(refs.begin(), refs.end(), random);
    for (const arena::Ref ref : refs) ASSERT_TRUE(slab.Free(ref));
    EXPECT_EQ(slab.largest_free(), 1u << 20);
    EXPECT_EQ(slab.free_bytes(), 1u << 20);
    EXPECT_EQ(slab.live_blocks(), 0u);
  }
}

TEST(SlabTest, Free_TwiceOrInside_IsRefused) {
  Slab slab;
  slab.AddSegment(0, 0, 4096);
  const arena::Ref ref = slab.Allocate(256, Holder::kCaller);
  EXPECT_FALSE(slab.Free(ref + 128));
  EXPECT_TRUE(slab.Free(ref));
  EXPECT_FALSE(slab.Free(ref));
  const arena::Ref staging = slab.Allocate(256, Holder::kOperation);
  EXPECT_FALSE(slab.Free(staging));
}

TEST(SlabTest, Free_WhileAnOperationUsesIt_IsDeferred) {
  Slab slab;
  slab.AddSegment(0, 0, 1024);
  const arena::Ref ref = slab.Allocate(1024, Holder::kCaller);
  EXPECT_EQ(slab.Acquire(ref + 100, 924), ref);
  EXPECT_EQ(slab.Acquire(ref, 1), ref);
  EXPECT_TRUE(slab.Free(ref));
  EXPECT_EQ(slab.caller_blocks(), 0u);
  slab.Release(ref);
  EXPECT_EQ(slab.Allocate(1, Holder::kCaller), kNullRef);
  slab.Release(ref);
  EXPECT_EQ(slab.Allocate(1, Holder::kCaller), ref);
}

TEST(SlabTest, Acquire_OutsideOfOneLiveBlock_IsNull) {
  Slab slab;
  slab.AddSegment(0, 0, 4096);
  const arena::Ref first = slab.Allocate(128, Holder::kCaller);
  const arena::Ref second = slab.Allocate(128, Holder::kCaller);
  ASSERT_EQ(second, first + 128);
  EXPECT_EQ(slab.Acquire(first, 129), kNullRef);
  EXPECT_EQ(slab.Acquire(MakeRef(1, 0), 1), kNullRef);
  slab.Free(second);
  EXPECT_EQ(slab.Acquire(second, 1), kNullRef);
}

}  // namespace
}  // namespace ringd::client
