#include <string>
#include <vector>

#include "client/cli/bench/bench_options.h"
#include "client/cli/bench/bench_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

BenchOptions Typed(const std::string& operation, const std::string& sizes) {
  BenchOptions options;
  options.operation = operation;
  options.sizes = sizes;
  return options;
}

std::string Error(const BenchOptions& options) {
  const auto command = BenchCommand(options);
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(command.status().message());
}

TEST(BenchOptionsTest, Command_NamesOperationsAndSizesInBytes) {
  BenchOptions options = Typed("alltoall", "8B,1KB,16MB");
  options.rounds = 3;
  options.peers = true;
  EXPECT_THAT(*BenchCommand(options),
              ElementsAre("-m", "ringd.bench", "--operations", "alltoall", "--sizes",
                          "8,1024,16777216", "--dtype", "float32", "--rounds", "3", "--peers"));
}

TEST(BenchOptionsTest, Command_WithoutOperation_RunsTheCollectives) {
  const auto command = BenchCommand(Typed("", ""));
  ASSERT_TRUE(command.ok());
  EXPECT_EQ(command->at(3), "allreduce,allgather,broadcast,reducescatter,alltoall,barrier");
}

TEST(BenchOptionsTest, Command_UnknownWords_AreNamed) {
  EXPECT_THAT(Error(Typed("alreduce", "")), HasSubstr("did you mean 'allreduce'?"));
  EXPECT_THAT(Error(Typed("allreduce", "1KB,big")), HasSubstr("'big'"));
  EXPECT_THAT(Error(Typed("allreduce", "0")), HasSubstr("'0'"));
  EXPECT_THAT(Error(Typed("allreduce", "65GB")), HasSubstr("64GB"));
  BenchOptions options = Typed("allreduce", "");
  options.dtype = "complex64";
  EXPECT_THAT(Error(options), HasSubstr("float64"));
}

TEST(BenchOptionsTest, Command_OneRank_IsRefused) {
  BenchOptions options = Typed("barrier", "");
  EXPECT_TRUE(TakesAllSlots(options));
  options.job.ranks = 1;
  EXPECT_FALSE(TakesAllSlots(options));
  EXPECT_THAT(Error(options), HasSubstr("-n 2"));
  options.job.ranks = 0;
  options.job.hosts = "a:2";
  EXPECT_THAT(Error(options), HasSubstr("-n"));
}

TEST(BenchOptionsTest, Python_IsTheOneThatRingctlLiesIn) {
  BenchOptions options;
  EXPECT_EQ(BenchPython(options, "/no/lib/python3.11/site-packages/ringd/bin/ringctl"), "python3");
  EXPECT_EQ(BenchPython(options, "ringctl"), "python3");
  options.python = "/opt/python";
  EXPECT_EQ(BenchPython(options, "ringctl"), "/opt/python");
}

constexpr char kRow[] =
    R"({"row": {"operation": "allreduce", "bytes": 1024, "ranks": 2, "nodes": 1, "median_us": 2.0,)"
    R"( "p99_us": 4.5, "algbw_gbps": 0.512, "busbw_gbps": 0.512, "limit_gbps": 2.048,)"
    R"( "implementation": "ringd"}})"
    "\n";

TEST(BenchRowsTest, Add_Row_BecomesALineWithItsShareOfTheLimit) {
  BenchRows rows;
  const std::string row(kRow);
  EXPECT_EQ(rows.Add(row.substr(0, 40)).out, "");
  const std::string table = rows.Add(row.substr(40)).out;
  EXPECT_THAT(table, HasSubstr("OF LIMIT"));
  EXPECT_THAT(table, HasSubstr("25 %"));
  EXPECT_THAT(rows.Add(row).out, Not(HasSubstr("OF LIMIT")));
  EXPECT_EQ(rows.rows().size(), 2u);
  EXPECT_EQ(rows.rows()[0].at("bytes"), 1024);
}

TEST(BenchRowsTest, Add_OtherLines_AreNotesOrIgnored) {
  BenchRows rows;
  EXPECT_EQ(rows.Add("{\"note\": \"busy\"}\n[Gloo] Rank 0\n").notes, "busy\n");
  EXPECT_THAT(rows.Add("{\"row\": {\"bytes\": \"many\"}}\n").notes, HasSubstr("not understood"));
  EXPECT_TRUE(rows.rows().empty());
}

}  // namespace
}  // namespace ringd::cli
