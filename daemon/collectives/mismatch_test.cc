#include "daemon/collectives/mismatch.h"

#include <string>

#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

TEST(MismatchMessageTest, Operations_HasNumberRanksAndSignatures) {
  EXPECT_EQ(MismatchMessage({0, 5}, "rank 0: allreduce float32[10] sum",
                            "rank 3: allreduce float32[11] sum"),
            "operation s.5 is not the same on all ranks: rank 0 called allreduce float32[10] sum, "
            "rank 3 called allreduce float32[11] sum");
}

TEST(MismatchMessageTest, EqualTexts_SaysThatArgumentsDiffer) {
  EXPECT_EQ(MismatchMessage({0, 1}, "rank 0: barrier", "rank 1: barrier"),
            "operation s.1 is not the same on all ranks: rank 0 called barrier, rank 1 called "
            "barrier (with other arguments, or in another group of operations)");
}

std::string Plan(const std::string& rank, const std::string& tensors) {
  return "rank " + rank + ": plan 1 with 2 buckets and 2 tensors\nbucket\t0\tfloat32[30] sum\n" +
         "bucket\t1\tfloat32[4] sum\n" + tensors;
}
constexpr char kA[] = "tensor\ta\tfloat32[30]\t0\t0\n";
constexpr char kB[] = "tensor\tb\tfloat32[4]\t1\t0\n";
constexpr char kPrefix[] = "operation s.2 is not the same on all ranks: ";

TEST(MismatchMessageTest, Plan_MissingTensor_NamesIt) {
  const std::string full = Plan("0", std::string(kA) + kB);
  const std::string part = Plan("1", kA);
  const std::string expected =
      std::string(kPrefix) + "tensor b: rank 0 has float32[4], rank 1 does not have it";
  EXPECT_EQ(MismatchMessage({0, 2}, full, part), expected);
  EXPECT_EQ(MismatchMessage({0, 2}, part, full), expected);
}

TEST(MismatchMessageTest, Plan_OtherShapeDtypeBucketOffset_NamesTensorAndBothValues) {
  const std::string mine = Plan("0", std::string(kA) + kB);
  const auto message = [&](const char* b) {
    return MismatchMessage({0, 2}, mine, Plan("1", std::string(kA) + b));
  };
  EXPECT_EQ(message("tensor\tb\tfloat32[2, 2]\t1\t0\n"),
            std::string(kPrefix) + "tensor b: rank 0 has float32[4], rank 1 has float32[2, 2]");
  EXPECT_EQ(message("tensor\tb\tfloat16[4]\t1\t0\n"),
            std::string(kPrefix) + "tensor b: rank 0 has float32[4], rank 1 has float16[4]");
  EXPECT_EQ(
      message("tensor\tb\tfloat32[4]\t0\t0\n"),
      std::string(kPrefix) + "tensor b: rank 0 has it in bucket 1, rank 1 has it in bucket 0");
  EXPECT_EQ(
      message("tensor\tb\tfloat32[4]\t1\t8\n"),
      std::string(kPrefix) + "tensor b: rank 0 has it at element 0, rank 1 has it at element 8");
}

TEST(MismatchMessageTest, Plan_OtherBucket_NamesBothValues) {
  const std::string tensors = std::string(kA) + kB;
  std::string other = Plan("1", tensors);
  other.replace(other.find("[4] sum"), 7, "[4] max");
  EXPECT_EQ(
      MismatchMessage({0, 2}, Plan("0", tensors), other),
      std::string(kPrefix) + "bucket 1: rank 0 has float32[4] sum, rank 1 has float32[4] max");
}

TEST(MismatchMessageTest, PlanAgainstOperation_ShowsHeadlineOnly) {
  EXPECT_EQ(MismatchMessage({0, 2}, Plan("0", kA), "rank 1: barrier"),
            std::string(kPrefix) +
                "rank 0 called plan 1 with 2 buckets and 2 tensors, rank 1 called barrier");
}

}  // namespace
}  // namespace ringd::daemon
