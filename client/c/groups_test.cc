#include "client/c/groups.h"

#include <gtest/gtest.h>

#include "proto/arena.h"

namespace ringd::client {
namespace {

uint32_t Choose(Groups& groups, const std::vector<int32_t>& ranks) {
  uint32_t id = ~0u;
  EXPECT_TRUE(groups.Choose(ranks, &id));
  return id;
}

TEST(GroupsTest, Ids_CountFromOne_AndComeBackOldestFirst) {
  Groups groups(4);
  EXPECT_EQ(Choose(groups, {0, 1, 2, 3}), 0u);
  for (uint32_t i = 0; i < 3; ++i) {
    const std::vector<int32_t> ranks = {static_cast<int32_t>(i)};
    EXPECT_EQ(Choose(groups, ranks), i + 1);
    groups.Add(i + 1, ranks);
  }
  EXPECT_EQ(Choose(groups, {1}), 2u);  // It exists.
  groups.Remove(3);
  groups.Remove(1);
  EXPECT_EQ(Choose(groups, {2, 3}), 3u);
  EXPECT_EQ(Choose(groups, {1, 3}), 1u);
  EXPECT_EQ(Choose(groups, {0, 3}), 4u);
}

TEST(GroupsTest, FailedRegistration_ItsIdIsNotUsedAgain) {
  Groups groups(4);
  EXPECT_EQ(Choose(groups, {0}), 1u);
  EXPECT_EQ(Choose(groups, {0}), 2u);
}

TEST(GroupsTest, AddedTwice_IsGivenUpTwice) {
  Groups groups(4);
  const std::vector<int32_t> ranks = {1, 3};
  groups.Add(Choose(groups, ranks), ranks);
  groups.Add(Choose(groups, ranks), ranks);
  EXPECT_TRUE(groups.Release(1));
  EXPECT_FALSE(groups.Release(1));
  groups.Remove(1);
  EXPECT_FALSE(groups.Release(1));
  EXPECT_TRUE(groups.RanksOf(1).empty());
}

TEST(GroupsTest, Find_KnowsMembersAndStrangers) {
  Groups groups(4);
  groups.Add(Choose(groups, {1, 3}), {1, 3});
  int32_t rank = 0;
  int32_t size = 0;
  ASSERT_TRUE(groups.Find(1, 3, &rank, &size));
  EXPECT_EQ(rank, 1);
  EXPECT_EQ(size, 2);
  ASSERT_TRUE(groups.Find(1, 2, &rank, &size));
  EXPECT_EQ(rank, -1);
  EXPECT_FALSE(groups.Find(2, 3, &rank, &size));
  ASSERT_TRUE(groups.Find(0, 2, &rank, &size));
  EXPECT_EQ(rank, 2);
  EXPECT_EQ(size, 4);
}

TEST(GroupsTest, Limit_IsKept) {
  Groups groups(2);
  for (uint32_t i = 1; i <= arena::kMaxGroups; ++i) Choose(groups, {0});
  uint32_t id = 0;
  EXPECT_FALSE(groups.Choose({0}, &id));
}

}  // namespace
}  // namespace ringd::client
