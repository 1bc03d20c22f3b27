// The example programs under `ringctl run`, as a user starts them.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/node/test_cluster.h"

namespace ringd::tests {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Result {
  int code = -1;
  std::string output;
};

class ExamplesTest : public testing::TestWithParam<const char*> {
 protected:
  // The four programs beside one another, as an installation has them.
  void SetUp() override {
    char name[] = "/tmp/re-XXXXXX";  // Short: sockets live below it.
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    for (const char* program : {"client/cli/ringctl", "daemon/ringd", "worker/ringd-worker",
                                "scheduler/ringd-scheduler"}) {
      const std::filesystem::path source = TestCluster::Program(program);
      std::filesystem::copy_file(source, directory_ / source.filename());
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Example() const { return TestCluster::Program(GetParam()); }

  Result Run(const std::string& command) const {
    const std::string home = directory_.string();
    const std::string line = absl::StrCat("env -u XDG_RUNTIME_DIR TMPDIR=", home, " HOME=", home,
                                          " ", home, "/ringctl run -n 2 -- ", command, " 2>&1");
    FILE* pipe = popen(line.c_str(), "r");
    Result result;
    char buffer[512];
    while (fgets(buffer, sizeof(buffer), pipe) != nullptr) result.output += buffer;
    const int status = pclose(pipe);
    if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
    return result;
  }

  std::filesystem::path directory_;
};

TEST_P(ExamplesTest, TwoRanks_BothPrintTheSum) {
  const Result result = Run(Example());
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("[0] rank 0 of 2: sum 3 3 3 3\n"),
                                   HasSubstr("[1] rank 1 of 2: sum 3 3 3 3\n")));
}

TEST_P(ExamplesTest, PeerEndsEarly_ItsCodeIsTheJobsAndTheOtherSaysWhy) {
  const Result result = Run(absl::StrCat("sh -c '[ $RINGD_RANK = 0 ] || exit 7; ", Example(), "'"));
  EXPECT_EQ(result.code, 7) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("rank 1"), HasSubstr("code 7")));
}

INSTANTIATE_TEST_SUITE_P(Programs, ExamplesTest,
                         testing::Values("examples/c_client/c_client",
                                         "examples/cc_client/cc_client"),
                         [](const auto& info) {
                           return std::string(std::filesystem::path(info.param).filename());
                         });

}  // namespace
}  // namespace ringd::tests
