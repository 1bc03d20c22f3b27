#include "scheduler/server/gatherings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringd::scheduler {
namespace {

using ringd::cluster::v1::JobSpec;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr uint32_t kUser = 1000;

Gatherings::Part MakePart(PartId id, const std::string& node, int first, int count, int size) {
  Gatherings::Part part{.id = id, .uid = kUser, .request = {}};
  part.request.set_name("srun-7-0");
  part.request.set_node(node);
  part.request.set_first_rank(first);
  part.request.set_rank_count(count);
  part.request.mutable_spec()->set_ranks(size);
  part.request.mutable_spec()->add_command("of node " + node);
  part.request.mutable_timeout()->set_seconds(30);
  return part;
}

std::string ErrorOf(const std::vector<Gatherings::Outcome>& outcomes) {
  return outcomes.size() == 1 ? std::string(outcomes[0].spec.status().message()) : "no outcome";
}

TEST(Gatherings, LastPart_AllGetRankZerosJobWithTheirNodesInRankOrder) {
  Gatherings gatherings;
  EXPECT_THAT(gatherings.Add(MakePart(1, "c", 3, 1, 4), absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(gatherings.Add(MakePart(2, "a", 0, 2, 4), absl::ZeroDuration()), IsEmpty());
  const auto outcomes = gatherings.Add(MakePart(3, "b", 2, 1, 4), absl::ZeroDuration());
  ASSERT_THAT(outcomes, SizeIs(1));
  EXPECT_THAT(outcomes[0].parts, ElementsAre(2, 3, 1));
  ASSERT_TRUE(outcomes[0].spec.ok()) << outcomes[0].spec.status();
  const JobSpec& spec = *outcomes[0].spec;
  EXPECT_EQ(spec.command(0), "of node a");
  ASSERT_EQ(spec.hosts_size(), 3);
  EXPECT_EQ(spec.hosts(0).node() + spec.hosts(1).node() + spec.hosts(2).node(), "abc");
  EXPECT_EQ(spec.hosts(0).slots(), 2);
  EXPECT_EQ(spec.hosts(1).slots(), 1);
  EXPECT_EQ(spec.hosts(2).slots(), 1);
}

TEST(Gatherings, OnePartWithAllRanks_IsAJob) {
  EXPECT_THAT(Gatherings().Add(MakePart(1, "a", 0, 4, 4), absl::ZeroDuration()), SizeIs(1));
}

TEST(Gatherings, PartsOfTwoUsersOrNames_DoNotMeet) {
  Gatherings gatherings;
  Gatherings::Part other_user = MakePart(2, "b", 2, 2, 4), other_name = other_user;
  other_user.uid = kUser + 1;
  other_name.id = 3;
  other_name.request.set_name("srun-7-1");
  EXPECT_THAT(gatherings.Add(MakePart(1, "a", 0, 2, 4), absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(gatherings.Add(other_user, absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(gatherings.Add(other_name, absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(gatherings.Add(MakePart(4, "b", 2, 2, 4), absl::ZeroDuration()), SizeIs(1));
}

TEST(Gatherings, PartThatContradicts_IsRefusedAloneAndTheOthersWaitOn) {
  Gatherings gatherings;
  EXPECT_THAT(gatherings.Add(MakePart(1, "a", 0, 2, 4), absl::ZeroDuration()), IsEmpty());
  const std::pair<Gatherings::Part, std::string> wrong[] = {
      {MakePart(2, "b", 1, 2, 4), "ranks 1 to 2 on node b and ranks 0 to 1 on node a are the same"},
      {MakePart(2, "b", 2, 2, 5), "sizes differ: ranks 2 to 3 on node b are of 5"},
      {MakePart(2, "a", 2, 2, 4), "meet one daemon"},
      {MakePart(2, "b", 3, 2, 4), "can't be"},
      {MakePart(2, "b", -1, 2, 4), "can't be"},
      {MakePart(2, "b", 2, 0, 4), "can't be"},
      {MakePart(2, "b", 2147483647, 2147483647, 4), "can't be"},
      {MakePart(2, "", 2, 2, 4), "can't be"},
  };
  for (const auto& [part, text] : wrong) {
    const auto outcomes = gatherings.Add(part, absl::ZeroDuration());
    EXPECT_THAT(ErrorOf(outcomes), HasSubstr(text));
    EXPECT_THAT(outcomes[0].parts, ElementsAre(2));
  }
  EXPECT_THAT(gatherings.Add(MakePart(3, "b", 2, 2, 4), absl::ZeroDuration()), SizeIs(1));
}

TEST(Gatherings, PartWhoseCallerHasGone_MayComeAgain) {
  Gatherings gatherings;
  EXPECT_THAT(gatherings.Add(MakePart(1, "a", 0, 2, 4), absl::ZeroDuration()), IsEmpty());
  gatherings.Remove(1);
  gatherings.Remove(1);
  EXPECT_THAT(gatherings.Add(MakePart(2, "a", 0, 2, 4), absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(gatherings.Add(MakePart(3, "b", 2, 2, 4), absl::ZeroDuration()), SizeIs(1));
}

TEST(Gatherings, TimeoutOfTheFirst_AllAreToldWhoIsMissing) {
  Gatherings gatherings;
  EXPECT_THAT(gatherings.Add(MakePart(1, "b", 2, 2, 8), absl::ZeroDuration()), IsEmpty());
  EXPECT_THAT(gatherings.Add(MakePart(2, "c", 4, 3, 8), absl::Seconds(20)), IsEmpty());
  EXPECT_THAT(gatherings.Expire(absl::Seconds(29)), IsEmpty());
  const auto outcomes = gatherings.Expire(absl::Seconds(30));
  EXPECT_THAT(ErrorOf(outcomes), HasSubstr("only ranks 2 to 3 on node b and ranks 4 to 6 on node c "
                                           "have come, ranks 0 to 1 and rank 7 of 8 are missing"));
  EXPECT_EQ(outcomes[0].spec.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(outcomes[0].parts, ElementsAre(1, 2));
  EXPECT_THAT(gatherings.Expire(absl::Seconds(100)), IsEmpty());
}

TEST(Gatherings, MoreThanTheirBound_AreRefused) {
  Gatherings gatherings;
  for (PartId id = 1; id <= kMaxParts; ++id) {
    Gatherings::Part part = MakePart(id, "a", 0, 1, 2);
    part.request.set_name(std::to_string(id));
    ASSERT_THAT(gatherings.Add(part, absl::ZeroDuration()), IsEmpty());
  }
  const auto outcomes = gatherings.Add(MakePart(kMaxParts + 1, "a", 0, 1, 2), absl::ZeroDuration());
  EXPECT_EQ(outcomes[0].spec.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ringd::scheduler
