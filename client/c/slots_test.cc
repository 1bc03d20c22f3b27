#include "client/c/slots.h"

#include <gtest/gtest.h>

#include <set>

namespace ringd::client {
namespace {

TEST(SlotsTest, Acquire_UpToTheLimit_GivesEachSlotOnce) {
  Slots slots;
  std::set<uint32_t> seen;
  for (uint32_t i = 0; i < arena::kSlotCount; ++i) {
    ASSERT_TRUE(slots.Has(1));
    const ringd_handle handle = slots.Acquire({});
    EXPECT_EQ(Slots::NumberOf(handle), 1u);
    seen.insert(Slots::SlotOf(handle));
  }
  EXPECT_EQ(seen.size(), 65536u);
  EXPECT_EQ(*seen.rbegin(), 65535u);
  EXPECT_FALSE(slots.Has(1));
  EXPECT_TRUE(slots.Has(0));
}

TEST(SlotsTest, Acquire_RecycledSlot_CountsItsNumberOn) {
  Slots slots;
  const ringd_handle first = slots.Acquire({});
  Holdings holdings;
  ASSERT_TRUE(slots.Take(first, &holdings));
  slots.Release(first);
  const ringd_handle second = slots.Acquire({});
  EXPECT_EQ(Slots::SlotOf(second), Slots::SlotOf(first));
  EXPECT_EQ(Slots::NumberOf(second), Slots::NumberOf(first) + 1);
  EXPECT_FALSE(slots.IsLive(first));
  EXPECT_TRUE(slots.IsLive(second));
}

TEST(SlotsTest, Take_Twice_IsRefusedTheSecondTime) {
  Slots slots;
  const ringd_handle handle = slots.Acquire({.meta_block = 77});
  Holdings holdings;
  EXPECT_TRUE(slots.Take(handle, &holdings));
  EXPECT_EQ(holdings.meta_block, 77u);
  EXPECT_FALSE(slots.Take(handle, &holdings));
  EXPECT_EQ(slots.in_flight(), 1u);
  slots.Release(handle);
  EXPECT_EQ(slots.in_flight(), 0u);
}

TEST(SlotsTest, IsLive_HandlesThatNeverWere_AreNot) {
  Slots slots;
  for (const ringd_handle handle : {ringd_handle{0}, ringd_handle{1}, ringd_handle{1} << 32,
                                    ~ringd_handle{0}, ringd_handle{70000}}) {
    EXPECT_FALSE(slots.IsLive(handle));
  }
}

}  // namespace
}  // namespace ringd::client
