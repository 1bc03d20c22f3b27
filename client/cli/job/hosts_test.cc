#include "client/cli/job/hosts.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const absl::StatusOr<std::vector<Host>>& hosts) {
  EXPECT_EQ(hosts.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(hosts.status().message());
}

TEST(ParseHosts, CountsAndBareNames_InOrder) {
  const auto hosts = ParseHosts("b:2, a:0,c");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(Host{"b", 2}, Host{"a", 0}, Host{"c", -1}));
}

TEST(ParseHosts, BadLists_AreNamed) {
  EXPECT_THAT(ErrorOf(ParseHosts("")), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf(ParseHosts("a:2,")), HasSubstr("names no node"));
  EXPECT_THAT(ErrorOf(ParseHosts(":2")), HasSubstr("names no node"));
  EXPECT_THAT(ErrorOf(ParseHosts("a b:2")), HasSubstr("names no node"));
  EXPECT_THAT(ErrorOf(ParseHosts("a:x")), HasSubstr("'x' is no count"));
  EXPECT_THAT(ErrorOf(ParseHosts("a:-1")), HasSubstr("'-1' is no count"));
  EXPECT_THAT(ErrorOf(ParseHosts("a:")), HasSubstr("'' is no count"));
  EXPECT_THAT(ErrorOf(ParseHosts("a:99999999999")), HasSubstr("no count"));
  EXPECT_THAT(ErrorOf(ParseHosts("a:1,b,a:1")), HasSubstr("node a is there twice"));
}

TEST(ParseHostFile, FormsCommentsAndBlankLines_AreUnderstood) {
  const auto hosts = ParseHostFile("# nodes\n\na:2\nb slots=3 # big\n  c\r\n", "h");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(Host{"a", 2}, Host{"b", 3}, Host{"c", -1}));
}

TEST(ParseHostFile, BadLines_AreNamedByNumber) {
  EXPECT_THAT(ErrorOf(ParseHostFile("a:2\nb slots=many\n", "h")), HasSubstr("h:2: 'many'"));
  EXPECT_THAT(ErrorOf(ParseHostFile("a two\n", "h")), HasSubstr("h:1: 'two' is not understood"));
  EXPECT_THAT(ErrorOf(ParseHostFile("\n# none\n", "h")), HasSubstr("names no node"));
  EXPECT_THAT(ErrorOf(ParseHostFile("a\na:1\n", "h")), HasSubstr("node a is there twice"));
}

TEST(ReadHostFile, Missing_SaysWhichFile) {
  EXPECT_THAT(ErrorOf(ReadHostFile("/nonexistent/hosts")), HasSubstr("/nonexistent/hosts"));
  EXPECT_THAT(ErrorOf(ReadHostFile("/dev/null")), HasSubstr("names no node"));
}

}  // namespace
}  // namespace ringd::cli
