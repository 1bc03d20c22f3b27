#include "daemon/main/options.h"

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<ParsedOptions> Parse(std::vector<const char*> flags) {
  setenv("HOME", testing::TempDir().c_str(), 1);
  flags.insert(flags.begin(), "ringd");
  return ParseOptions(static_cast<int>(flags.size()), flags.data());
}

std::string Error(const std::vector<const char*>& flags) {
  const absl::StatusOr<ParsedOptions> parsed = Parse(flags);
  EXPECT_FALSE(parsed.ok());
  return std::string(parsed.status().message());
}

TEST(OptionsTest, Parse_OnlyAScheduler_FillsTheRest) {
  const Options options = Parse({"--scheduler", "unix:/s"})->options;
  EXPECT_FALSE(options.name.empty());
  EXPECT_GE(options.slot_count, 1);
  EXPECT_EQ(options.data_address, "127.0.0.1:0");
  EXPECT_EQ(options.reattach_timeout, absl::Seconds(60));
  EXPECT_EQ(options.min_uid, 1000);
  EXPECT_THAT(options.worker_program, HasSubstr("/ringd-worker"));
}

TEST(OptionsTest, Parse_Shared_HasTheSystemsPaths) {
  if (geteuid() != 0) GTEST_SKIP() << "a shared daemon needs root";
  const Options options = Parse({"--scheduler", "unix:/s", "--shared"})->options;
  EXPECT_EQ(options.run_directory, "/run/ringd");
  EXPECT_EQ(options.state_directory, "/var/lib/ringd");
  EXPECT_EQ(options.log_directory, "/var/log/ringd");
  EXPECT_EQ(options.data_address, "0.0.0.0:7472");
}

TEST(OptionsTest, Parse_Rubbish_IsRefusedByNameAndValue) {
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--slots", "8x"}),
              AllOf(HasSubstr("slots"), HasSubstr("'8x'")));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--slots", "0"}), HasSubstr("slots"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--slots", "-1"}), HasSubstr("slots"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--slots", "99999999999"}), HasSubstr("slots"));
  EXPECT_THAT(Error({"--scheduler", "host"}), AllOf(HasSubstr("scheduler"), HasSubstr("'host'")));
  EXPECT_THAT(Error({}), HasSubstr("scheduler"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--data-address", "1.2.3.4"}),
              HasSubstr("data_address"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--data-address", "::1:7472"}),
              HasSubstr("[::1]:7472"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--name", "a/b"}), HasSubstr("name"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--tls-key", "k"}), HasSubstr("tls_certificate"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--run-directory", "run"}),
              HasSubstr("run_directory"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--arena-max", "1MB", "--arena-bytes", "2MB"}),
              HasSubstr("arena_max"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "--slot", "1"}), HasSubstr("slots"));
  EXPECT_THAT(Error({"--scheduler", "unix:/s", "word"}), HasSubstr("'word'"));
}

TEST(OptionsTest, Parse_ConfigFile_IsReadAndItsMistakesNamed) {
  const std::string path = testing::TempDir() + "/ringd.toml";
  std::ofstream(path) << "scheduler = \"unix:/s\"\n[ringd]\nslots = 3\n";
  EXPECT_EQ(Parse({"--config", path.c_str()})->options.slot_count, 3);
  EXPECT_EQ(Parse({"--config", path.c_str(), "--slots", "5"})->options.slot_count, 5);
  std::ofstream(path) << "scheduler = \"unix:/s\"\nslotts = 3\n";
  EXPECT_THAT(Error({"--config", path.c_str()}), AllOf(HasSubstr(path), HasSubstr("slotts")));
}

TEST(OptionsTest, Parse_Version_IsOutput) {
  EXPECT_THAT(Parse({"--version"})->output, HasSubstr("0.1.0"));
  EXPECT_THAT(Parse({"--help"})->output, HasSubstr("reattach"));
}

TEST(AdvertisedAddressTest, TakesTheBestThatIsKnown) {
  EXPECT_EQ(AdvertisedAddress("", "127.0.0.1:41000", "unix:/s"), "127.0.0.1:41000");
  EXPECT_EQ(AdvertisedAddress("node-a", "0.0.0.0:7472", "unix:/s"), "node-a:7472");
  EXPECT_EQ(AdvertisedAddress("node-a:9000", "0.0.0.0:7472", "unix:/s"), "node-a:9000");
  EXPECT_EQ(AdvertisedAddress("", "0.0.0.0:7472", "127.0.0.1:7470"), "127.0.0.1:7472");
  EXPECT_THAT(AdvertisedAddress("", "0.0.0.0:7472", "unix:/s"), HasSubstr(":7472"));
}

}  // namespace
}  // namespace ringd::daemon
