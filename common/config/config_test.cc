#include "common/config/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace ringd {
namespace {

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() : config_("ringd") {
    config_.Add("slots", &slots_, "ranks that fit");
    config_.Add("name", &name_, "node name");
    config_.Add("arena_bytes", &arena_bytes_, "bytes");
    config_.Add("shared", &shared_, "many users");
    config_.Add("grace", &grace_, "time");
    config_.Add("listen", &listen_, "addresses");
    path_ = testing::TempDir() + "/ringd-config-test.toml";
  }
  void TearDown() override { unlink(path_.c_str()); }

  absl::Status Parse(std::vector<const char*> words) {
    words.insert(words.begin(), "ringd");
    auto rest = config_.Parse(static_cast<int>(words.size()), words.data(), path_, &output_);
    if (rest.ok()) rest_ = *rest;
    return rest.status();
  }
  void WriteFile(const std::string& text) { std::ofstream(path_) << text; }

  Config config_;
  int slots_ = 4;
  std::string name_ = "a";
  int64_t arena_bytes_ = 0;
  bool shared_ = false;
  absl::Duration grace_ = absl::Seconds(30);
  std::vector<std::string> listen_, rest_;
  std::string path_, output_;
};

TEST_F(ConfigTest, Parse_EachSourceOverridesTheOneBefore) {
  WriteFile("slots = 5\nname = 'file'\n[ringd]\ngrace = '5s'\n[ringd-scheduler]\nunknown = 1\n");
  setenv("RINGD_NAME", "environment", 1);
  const absl::Status status = Parse({"--slots", "7", "--arena-bytes=1MB", "--shared", "--listen",
                                     "x", "--listen", "y", "--", "rest"});
  unsetenv("RINGD_NAME");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(slots_, 7);
  EXPECT_EQ(name_, "environment");
  EXPECT_EQ(arena_bytes_, 1 << 20);
  EXPECT_TRUE(shared_);
  EXPECT_EQ(grace_, absl::Seconds(5));
  EXPECT_EQ(listen_, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(rest_, std::vector<std::string>{"rest"});
  EXPECT_NE(config_.Dump().find("slots = 7  # flag"), std::string::npos);
  EXPECT_NE(config_.Dump().find("name = \"environment\"  # RINGD_NAME"), std::string::npos);
}

TEST_F(ConfigTest, Parse_UnknownKeyInFile_IsNamedWithItsFile) {
  WriteFile("slot = 5\n");
  const absl::Status status = Parse({});
  EXPECT_EQ(status.message(), path_ + ": unknown key 'slot' (did you mean 'slots'?)");
}

TEST_F(ConfigTest, Parse_UnknownFlag_IsNamed) {
  EXPECT_EQ(Parse({"--slotz", "3"}).message(),
            "unknown option '--slotz' (did you mean '--slots'?)");
  EXPECT_EQ(Parse({"--nothing-like-it"}).message(),
            "unknown option '--nothing-like-it' (see --help)");
}

TEST_F(ConfigTest, Parse_BadValues_AreNamedWithTheirSource) {
  EXPECT_EQ(Parse({"--slots", "many"}).message(), "--slots: 'many' is not a whole number");
  EXPECT_EQ(Parse({"--slots"}).message(), "--slots needs a value");
  WriteFile("grace = 'soon'\n");
  EXPECT_EQ(Parse({}).message(),
            path_ + ": key 'grace': 'soon' is not a duration such as 30s, 5m or 250ms");
  WriteFile("slots = = 3\n");
  EXPECT_EQ(Parse({}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConfigTest, Parse_MissingConfigFile_IsRefused) {
  EXPECT_EQ(Parse({"--config", "/nowhere.toml"}).message(),
            "/nowhere.toml: can't read this configuration file");
}

TEST(ParseTest, ParseBytes_Units_Are1024Based) {
  EXPECT_EQ(*ParseBytes("1KB"), 1024);
  EXPECT_EQ(*ParseBytes("1.5 mb"), 3 << 19);
  EXPECT_EQ(*ParseBytes("4096"), 4096);
  EXPECT_FALSE(ParseBytes("-1").ok());
  EXPECT_FALSE(ParseBytes("big").ok());
  EXPECT_FALSE(ParseBytes("").ok());
}

TEST(ParseTest, NearestWord_NothingNear_IsEmpty) {
  EXPECT_EQ(NearestWord("submti", {"submit", "list"}), "submit");
  EXPECT_EQ(NearestWord("xyz", {"submit", "list"}), "");
}

}  // namespace
}  // namespace ringd
