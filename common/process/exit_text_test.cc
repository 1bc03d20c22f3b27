#include "common/process/exit_text.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace ringd {
namespace {

TEST(SignalName, KnownAndUnknown) {
  EXPECT_EQ(SignalName(SIGKILL), "SIGKILL");
  EXPECT_EQ(SignalName(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(SignalName(99), "signal 99");
}

TEST(LastLine, SkipsWhatIsBlank) {
  EXPECT_EQ(LastLine(""), "");
  EXPECT_EQ(LastLine(" \n\n"), "");
  EXPECT_EQ(LastLine("one"), "one");
  EXPECT_EQ(LastLine("one\n  two \n\n"), "two");
  EXPECT_EQ(LastLine("one\n 10%\r 20%"), "20%");
}

TEST(RankEndSentence, SaysRankNodeHowAndWhy) {
  EXPECT_EQ(
      RankEndSentence(
          {.rank = 1, .node = "b", .exit_code = 3, .stderr_tail = "Traceback\nValueError: x\n"}),
      "rank 1 (node b) exited with code 3: ValueError: x");
  EXPECT_EQ(RankEndSentence({.rank = 0, .node = "a", .signal = SIGKILL, .reason = "OOM-killed"}),
            "rank 0 (node a) was killed by SIGKILL (OOM-killed)");
  EXPECT_EQ(RankEndSentence({.rank = 2, .node = "c", .start_failed = true, .reason = "no memory"}),
            "rank 2 (node c) could not be started: no memory");
}

}  // namespace
}  // namespace ringd
