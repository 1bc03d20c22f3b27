#include "client/cli/verb.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the last verb that ran has seen.
struct Seen {
  std::string verb;
  std::vector<std::string> command;
  int number = 0;
  std::string word;
  Settings settings;
};

class VerbTest : public ::testing::Test {
 protected:
  VerbTest() {
    setenv("RINGD_CONFIG", "/dev/null", 1);
    unsetenv("RINGD_SCHEDULER");
  }

  int Run(const std::vector<std::string>& words) {
    seen_ = {};
    const auto note = [this](const std::string& name) {
      return [this, name](const Invocation& invocation) -> absl::StatusOr<int> {
        seen_.verb = name;
        seen_.command = invocation.command;
        seen_.settings = invocation.settings;
        return 7;
      };
    };
    const auto options = [this](CLI::App* app) {
      app->add_option("-n", seen_.number, "");
      app->add_option("--name", seen_.word, "");
    };
    const std::vector<Verb> verbs = {
        {.name = "run", .takes_command = true, .add_options = options, .run = note("run")},
        {.name = "list", .run = note("list")},
        {.name = "broken",
         .run = [](const Invocation&) { return absl::NotFoundError("no job x"); }},
        {.group = "local",
         .name = "exec",
         .takes_command = true,
         .positionals = 1,
         .add_options = [this](CLI::App* app) { app->add_option("NODE", seen_.word)->required(); },
         .run = note("exec")},
    };
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    const int code = RunCommandLine({{"local", ""}}, verbs, words);
    error_ = ::testing::internal::GetCapturedStderr();
    output_ = ::testing::internal::GetCapturedStdout();
    return code;
  }

  Seen seen_;
  std::string error_;
  std::string output_;
};

TEST_F(VerbTest, Command_IsWhatFollowsTheDashes) {
  EXPECT_EQ(Run({"run", "-n", "2", "--", "prog", "-n", "--name", "--"}), 7);
  EXPECT_THAT(seen_.command, ElementsAre("prog", "-n", "--name", "--"));
  EXPECT_EQ(seen_.number, 2);
}

TEST_F(VerbTest, Command_BeginsAtTheFirstWordWithoutDashesToo) {
  EXPECT_EQ(Run({"run", "-n", "2", "--name=x", "--scheduler", "h:1", "prog", "-n", "--", "y"}), 7);
  EXPECT_THAT(seen_.command, ElementsAre("prog", "-n", "--", "y"));
  EXPECT_EQ(seen_.word, "x");
  EXPECT_EQ(seen_.settings.scheduler, "h:1");
  EXPECT_EQ(Run({"run", "-n2", "prog"}), 7);
  EXPECT_THAT(seen_.command, ElementsAre("prog"));
  EXPECT_EQ(Run({"run", "-n", "2"}), 7);
  EXPECT_THAT(seen_.command, ElementsAre());
}

TEST_F(VerbTest, PositionalWords_ComeBeforeTheCommand) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"local", "exec", "a", "--", "ip", "-br"}, {"local", "exec", "a", "ip", "-br"}}) {
    EXPECT_EQ(Run(words), 7);
    EXPECT_EQ(seen_.verb, "exec");
    EXPECT_EQ(seen_.word, "a");
    EXPECT_THAT(seen_.command, ElementsAre("ip", "-br"));
  }
}

TEST_F(VerbTest, GlobalOptions_StandAnywhereBeforeTheCommand) {
  EXPECT_EQ(Run({"--output", "json", "list"}), 7);
  EXPECT_TRUE(seen_.settings.IsJson());
  EXPECT_EQ(Run({"list", "--output=json", "-v"}), 7);
  EXPECT_TRUE(seen_.settings.IsJson());
  EXPECT_TRUE(seen_.settings.verbose);
}

TEST_F(VerbTest, BadInput_ExitsTwoAndSaysWhatIsRight) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> table = {
      {{"lst"}, "unknown command 'lst' (did you mean 'list'?)"},
      {{"local", "exce"}, "unknown command 'exce' (did you mean 'exec'?)"},
      {{"zzzzzz"}, "'ringctl --help' lists the commands"},
      {{"run", "--nmae", "x", "--", "y"}, "unknown option '--nmae' (did you mean '--name'?)"},
      {{"list", "--zzzzzz"}, "'ringctl list --help' lists the options"},
      {{"list", "extra"}, "'extra' is not expected here"},
      {{"run", "-n"}, "-n"},
      {{"local", "exec"}, "NODE is required"},
      {{"--output", "xml", "list"}, "'xml' is neither table nor json"},
      {{"--scheduler", "nowhere", "list"}, "'nowhere' is no address"},
      {{"--scheduler", "unix:/" + std::string(107, 'x'), "list"}, "107 bytes at most"},
      {{"--config", "/nonexistent.toml", "list"}, "/nonexistent.toml"},
      {{"broken"}, "ringctl: no job x"},
  };
  for (const auto& [words, message] : table) {
    EXPECT_EQ(Run(words), 2) << message;
    EXPECT_THAT(error_, HasSubstr(message));
    EXPECT_EQ(seen_.verb, "");
  }
}

TEST_F(VerbTest, NoVerb_ShowsHelp) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(error_, HasSubstr("ringctl run -n 4"));
  EXPECT_EQ(Run({"local"}), 2);
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_EQ(Run({"run", "--help"}), 0);
  EXPECT_THAT(output_, HasSubstr("--name"));
  EXPECT_EQ(Run({"--version"}), 0);
}

}  // namespace
}  // namespace ringd::cli
