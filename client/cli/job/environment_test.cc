#include "client/cli/job/environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(ChooseEnvironment, OnACluster_PassesTheListAndNamesTheRest) {
  const Variables environment = {
      {"PATH", "/bin"},      {"LC_ALL", "C"},     {"OMP_NUM_THREADS", "2"}, {"http_proxy", "p"},
      {"NCCL_DEBUG", "1"},   {"AWS_SECRET", "s"}, {"MYLC_X", "1"},          {"SHLVL", "1"},
      {"RINGD_SOCKET", "x"}, {"PYTHONPATH", "q"}, {"PYTHONHASHSEED", "0"},
  };
  const auto choice = ChooseEnvironment(environment, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->passed,
              UnorderedElementsAre(Pair("PATH", "/bin"), Pair("LC_ALL", "C"),
                                   Pair("OMP_NUM_THREADS", "2"), Pair("http_proxy", "p"),
                                   Pair("NCCL_DEBUG", "1"), Pair("PYTHONPATH", "q")));
  EXPECT_THAT(choice->left_out, ElementsAre("AWS_SECRET", "MYLC_X", "PYTHONHASHSEED"));
}

TEST(ChooseEnvironment, EnvOption_PassesOrSets) {
  const auto choice = ChooseEnvironment({{"A", "1"}, {"B", "2"}, {"PATH", "/bin"}},
                                        {.env = {"A", "C=x=y", "PATH="}});
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->passed,
              UnorderedElementsAre(Pair("A", "1"), Pair("C", "x=y"), Pair("PATH", "")));
  EXPECT_THAT(choice->left_out, ElementsAre("B"));
}

TEST(ChooseEnvironment, All_PassesEverythingThatCanBeCarried) {
  const auto choice =
      ChooseEnvironment({{"A", "1"}, {"SHLVL", "1"}, {"BAD", "\xff"}}, {.all = true});
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->passed, UnorderedElementsAre(Pair("A", "1"), Pair("SHLVL", "1")));
  EXPECT_THAT(choice->left_out, ElementsAre("BAD"));
}

TEST(ChooseEnvironment, BadEnvOption_SaysWhatIsRight) {
  EXPECT_THAT(std::string(ChooseEnvironment({}, {.env = {"NOPE"}}).status().message()),
              HasSubstr("--env NOPE=VALUE"));
  EXPECT_THAT(std::string(ChooseEnvironment({}, {.env = {"=x"}}).status().message()),
              HasSubstr("has no name"));
}

TEST(IsUtf8, TellsTextFromBytes) {
  for (const char* good : {"", "abc", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x99\x82"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  // Cut short, overlong, a surrogate, above U+10FFFF, a lone tail.
  for (const char* bad :
       {"\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xe2\x82"}) {
    EXPECT_FALSE(IsUtf8(bad));
  }
}

}  // namespace
}  // namespace ringd::cli
