#include "daemon/transport/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/fd.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

UniqueFd Event(uint64_t value) { return UniqueFd(eventfd(value, EFD_NONBLOCK | EFD_CLOEXEC)); }

TEST(EventLoop, Poll_NothingReady_RunsNothing) {
  EventLoop loop;
  const UniqueFd event = Event(0);
  ASSERT_TRUE(loop.Watch(event.get(), EPOLLIN, [](uint32_t) { FAIL(); }).ok());
  EXPECT_EQ(loop.Poll(absl::ZeroDuration()), 0);
  EXPECT_EQ(loop.Poll(absl::Milliseconds(1)), 0);
}

TEST(EventLoop, Poll_DescriptorReady_RunsItsCallback) {
  EventLoop loop;
  const UniqueFd event = Event(1);
  uint32_t seen = 0;
  ASSERT_TRUE(loop.Watch(event.get(), EPOLLIN, [&](uint32_t events) { seen = events; }).ok());
  EXPECT_EQ(loop.Poll(absl::Seconds(10)), 1);
  EXPECT_EQ(seen, EPOLLIN);
}

TEST(EventLoop, Poll_EdgeTriggered_RunsOnceForEachWrite) {
  EventLoop loop;
  const UniqueFd event = Event(1);
  int count = 0;
  ASSERT_TRUE(loop.Watch(event.get(), EPOLLIN | EPOLLET, [&](uint32_t) { ++count; }).ok());
  loop.Poll(absl::ZeroDuration());
  loop.Poll(absl::ZeroDuration());
  EXPECT_EQ(count, 1);
  ASSERT_EQ(eventfd_write(event.get(), 1), 0);
  loop.Poll(absl::ZeroDuration());
  EXPECT_EQ(count, 2);
}

TEST(EventLoop, Unwatch_ByAnotherCallbackOfTheSamePoll_SkipsTheRemoved) {
  EventLoop loop;
  const UniqueFd a = Event(1);
  const UniqueFd b = Event(1);
  int count = 0;
  ASSERT_TRUE(loop.Watch(a.get(), EPOLLIN,
                         [&](uint32_t) {
                           ++count;
                           loop.Unwatch(b.get());
                         })
                  .ok());
  ASSERT_TRUE(loop.Watch(b.get(), EPOLLIN,
                         [&](uint32_t) {
                           ++count;
                           loop.Unwatch(a.get());
                         })
                  .ok());
  EXPECT_EQ(loop.Poll(absl::ZeroDuration()), 1);
  EXPECT_EQ(count, 1);
}

TEST(EventLoop, Unwatch_InOwnCallback_KeepsTheCallbackAliveUntilItReturns) {
  EventLoop loop;
  const UniqueFd event = Event(1);
  std::vector<int> kept = {7, 8, 9};
  int seen = 0;
  ASSERT_TRUE(loop.Watch(event.get(), EPOLLIN,
                         [&loop, &seen, kept, fd = event.get()](uint32_t) {
                           loop.Unwatch(fd);
                           seen = kept[2];
                         })
                  .ok());
  loop.Poll(absl::ZeroDuration());
  EXPECT_EQ(seen, 9);
  EXPECT_EQ(loop.Poll(absl::ZeroDuration()), 0);
}

TEST(EventLoop, Modify_ToNoEvents_SilencesTheDescriptor) {
  EventLoop loop;
  const UniqueFd event = Event(1);
  ASSERT_TRUE(loop.Watch(event.get(), EPOLLIN, [](uint32_t) {}).ok());
  ASSERT_TRUE(loop.Modify(event.get(), 0).ok());
  EXPECT_EQ(loop.Poll(absl::ZeroDuration()), 0);
  ASSERT_TRUE(loop.Modify(event.get(), EPOLLIN).ok());
  EXPECT_EQ(loop.Poll(absl::ZeroDuration()), 1);
  EXPECT_EQ(loop.Modify(12345, EPOLLIN).code(), absl::StatusCode::kInternal);
}

TEST(EventLoop, Watch_ClosedDescriptor_IsInternal) {
  EventLoop loop;
  EXPECT_EQ(loop.Watch(12345, EPOLLIN, [](uint32_t) {}).code(), absl::StatusCode::kInternal);
}

TEST(EventLoop, Watch_NumberUsedAgainAfterClose_RunsTheNewCallback) {
  EventLoop loop;
  UniqueFd event = Event(1);
  const int number = event.get();
  ASSERT_TRUE(loop.Watch(number, EPOLLIN, [](uint32_t) { FAIL(); }).ok());
  event.reset();
  event = Event(1);
  ASSERT_EQ(event.get(), number);
  int count = 0;
  ASSERT_TRUE(loop.Watch(number, EPOLLIN, [&](uint32_t) { ++count; }).ok());
  loop.Poll(absl::ZeroDuration());
  EXPECT_EQ(count, 1);
}

TEST(EventLoop, AddTimer_Several_RunByDeadlineNotBefore) {
  EventLoop loop;
  std::vector<int> order;
  const absl::Time start = absl::Now();
  loop.AddTimer(absl::Milliseconds(20), [&] { order.push_back(2); });
  loop.AddTimer(absl::Milliseconds(5), [&] { order.push_back(1); });
  while (order.size() < 2) loop.Poll(absl::Seconds(10));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(19));
}

TEST(EventLoop, AddTimer_ZeroDelayFromItsOwnCallback_RunsInTheNextPoll) {
  EventLoop loop;
  int count = 0;
  std::function<void()> again = [&] {
    ++count;
    loop.AddTimer(absl::ZeroDuration(), again);
  };
  loop.AddTimer(absl::ZeroDuration(), again);
  EXPECT_EQ(loop.Poll(absl::ZeroDuration()), 1);
  EXPECT_EQ(loop.Poll(absl::ZeroDuration()), 1);
  EXPECT_EQ(count, 2);
}

TEST(EventLoop, CancelTimer_BeforeItIsDue_NeverRuns) {
  EventLoop loop;
  const uint64_t id = loop.AddTimer(absl::ZeroDuration(), [] { FAIL(); });
  loop.CancelTimer(id);
  loop.CancelTimer(id);
  EXPECT_EQ(loop.Poll(absl::Milliseconds(1)), 0);
}

TEST(EventLoop, Wake_FromAnotherThread_EndsTheWait) {
  EventLoop loop;
  std::thread waker([&] { loop.Wake(); });
  const absl::Time start = absl::Now();
  loop.Poll(absl::Seconds(60));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  waker.join();
}

}  // namespace
}  // namespace ringd::daemon
