#include "worker/logs/log_lines.h"

#include "gtest/gtest.h"

namespace ringd::worker {
namespace {

TEST(LineSplitter, WholeLines_ReadyAtOnce) {
  LineSplitter lines;
  EXPECT_EQ(lines.Add("a\nb\nc"), "a\nb\n");
  EXPECT_TRUE(lines.has_pending());
  EXPECT_EQ(lines.Add("d"), "");
  EXPECT_EQ(lines.Add("\n"), "cd\n");
  EXPECT_FALSE(lines.has_pending());
}

TEST(LineSplitter, CarriageReturn_PassesProgressBars) {
  LineSplitter lines;
  EXPECT_EQ(lines.Add("10%\r"), "10%\r");
  EXPECT_EQ(lines.Add("\r20%"), "\r");
  EXPECT_EQ(lines.Flush(), "20%");
  EXPECT_EQ(lines.Flush(), "");
}

TEST(LineSplitter, LongLine_WrittenInParts) {
  LineSplitter lines;
  const std::string half(LineSplitter::kMaxPending / 2, 'x');
  EXPECT_EQ(lines.Add(half), "");
  EXPECT_EQ(lines.Add(half), half + half);
  EXPECT_EQ(lines.Add("end\n"), "end\n");
}

TEST(StderrTail, KeepsLastTwentyLines) {
  StderrTail tail;
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    tail.Add(line);
    if (i >= 980) expected += line;
  }
  expected.pop_back();
  EXPECT_EQ(tail.Text(), expected);
}

TEST(StderrTail, KeepsFourKilobytesOfWholeLines) {
  StderrTail tail;
  for (int i = 0; i < 30; ++i) tail.Add(std::string(999, 'a' + i % 26) + "\n");
  // Four lines of 1,000 bytes fit without the last newline.
  EXPECT_EQ(tail.Text(), std::string(999, 'a') + "\n" + std::string(999, 'b') + "\n" +
                             std::string(999, 'c') + "\n" + std::string(999, 'd'));
}

TEST(StderrTail, OneEndlessLine_ItsEnd) {
  StderrTail tail;
  for (int i = 0; i < 100; ++i) tail.Add(std::string(1000, 'x'));
  tail.Add("END");
  EXPECT_EQ(tail.Text(), std::string(4093, 'x') + "END");
}

TEST(StderrTail, OverwrittenLine_LastState) {
  StderrTail tail;
  tail.Add(" 10%\r 20%\r 30%\r\nValueError: x\n");
  EXPECT_EQ(tail.Text(), " 30%\nValueError: x");
}

TEST(StderrTail, Nothing_Empty) { EXPECT_EQ(StderrTail().Text(), ""); }

TEST(CleanUtf8, KeepsTextAndReplacesTheRest) {
  EXPECT_EQ(CleanUtf8("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(CleanUtf8("a\xff"
                      "b"),
            "a?b");
  EXPECT_EQ(CleanUtf8("\xc0\x80"), "??");       // Overlong.
  EXPECT_EQ(CleanUtf8("\xed\xa0\x80"), "???");  // A surrogate.
  EXPECT_EQ(CleanUtf8("\xe2\x82"), "??");       // Cut off.
  EXPECT_EQ(CleanUtf8(absl::string_view("a\0b", 3)), "a?b");
}

}  // namespace
}  // namespace ringd::worker
