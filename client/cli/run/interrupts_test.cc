#include "client/cli/run/interrupts.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

TEST(Interrupts, SignalBeforeTheHandler_IsDeliveredToIt) {
  Interrupts interrupts;
  EXPECT_EQ(interrupts.first_signal(), 0);
  kill(getpid(), SIGTERM);
  while (interrupts.first_signal() == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(interrupts.first_signal(), SIGTERM);
  absl::Notification first, second;
  interrupts.SetHandler([&](int count) { (count == 1 ? first : second).Notify(); });
  ASSERT_TRUE(first.WaitForNotificationWithTimeout(absl::Seconds(10)));
  kill(getpid(), SIGINT);
  ASSERT_TRUE(second.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(interrupts.first_signal(), SIGTERM);
  interrupts.SetHandler(nullptr);
}

TEST(Interrupts, RemovingTheHandler_WaitsForIt) {
  Interrupts interrupts;
  absl::Notification entered;
  std::atomic<bool> returned = false;
  interrupts.SetHandler([&](int) {
    entered.Notify();
    absl::SleepFor(absl::Milliseconds(50));
    returned = true;
  });
  kill(getpid(), SIGINT);
  ASSERT_TRUE(entered.WaitForNotificationWithTimeout(absl::Seconds(10)));
  interrupts.SetHandler(nullptr);
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace ringd::cli
