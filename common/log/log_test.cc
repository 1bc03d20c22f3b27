#include "common/log/log.h"

#include <gtest/gtest.h>

namespace ringd {
namespace {

TEST(LogTest, GetLogger_Twice_IsTheSame) { EXPECT_EQ(GetLogger("a"), GetLogger("a")); }

TEST(LogTest, SetLogLevels_RoomLevel_AppliesToThatRoomAlone) {
  ASSERT_TRUE(SetLogLevels("warning,engine=debug").ok());
  EXPECT_EQ(GetLogger("engine")->level(), spdlog::level::debug);
  EXPECT_EQ(GetLogger("made-later")->level(), spdlog::level::warn);
  ASSERT_TRUE(SetLogLevels("info").ok());
}

TEST(LogTest, SetLogLevels_UnknownWord_IsNamed) {
  const absl::Status status = SetLogLevels("loud");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("'loud'"), std::string::npos);
}

}  // namespace
}  // namespace ringd
