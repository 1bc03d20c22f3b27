#include "client/c/launch/socket_exchange.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "common/base/fd.h"

namespace ringd::client {
namespace {

using testing::HasSubstr;

constexpr int64_t kPatience = 20'000'000;
constexpr int64_t kShort = 300'000;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

UniqueFd ConnectTo(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Loopback(port);
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    std::this_thread::yield();
  }
  return fd;
}

SocketExchange::Options Of(int port, bool is_host, int64_t timeout_us = kPatience,
                           const std::string& job = "mpirun-7") {
  return {
      .job = job, .host = "127.0.0.1", .port = port, .is_host = is_host, .timeout_us = timeout_us};
}

struct Answer {
  int rc;
  std::string text;
};

Answer Call(SocketExchange* exchange, const std::string& key, const char* text = nullptr) {
  char answer[16384] = "";
  const Exchange call = exchange->exchange();
  const int rc = call.call(call.context, key.c_str(), text, answer, sizeof(answer));
  return {rc, answer};
}

// What a guest hears.
Answer Join(int port, const std::string& rank, const char* size, int64_t timeout_us = kPatience,
            const std::string& job = "mpirun-7") {
  SocketExchange guest(Of(port, false, timeout_us, job));
  const Answer put = Call(&guest, "size/" + rank, size);
  return put.rc == 0 ? Call(&guest, "invitation/" + rank) : put;
}

TEST(SocketExchange, HostHearsSizesInAnyOrder_EachGuestGetsItsOwnLine) {
  const int port = FreePort();
  std::vector<Answer> heard(2);
  std::thread late([&] { heard[0] = Join(port, "2", "3"); });
  std::thread early([&] { heard[1] = Join(port, "5", "1"); });
  {
    SocketExchange host(Of(port, true));
    EXPECT_EQ(Call(&host, "size/2").text, "3");
    EXPECT_EQ(Call(&host, "size/5").text, "1");
    const std::string longest(8000, 'x');
    EXPECT_EQ(Call(&host, "invitation/2", longest.c_str()).rc, 0);
    EXPECT_EQ(Call(&host, "invitation/5", "").rc, 0);
    late.join();
    early.join();
    EXPECT_EQ(heard[0].text, longest);
    EXPECT_EQ(heard[1].text, "");
    EXPECT_EQ(heard[0].rc + heard[1].rc, 0);
  }
  SocketExchange second(Of(port, true));  // The port is free again.
  std::thread guest([&] { heard[0] = Join(port, "1", "1"); });
  EXPECT_EQ(Call(&second, "size/1").text, "1");
  EXPECT_EQ(Call(&second, "invitation/1", "again").rc, 0);
  guest.join();
  EXPECT_EQ(heard[0].text, "again");
}

TEST(SocketExchange, StrangersAndOtherJobs_AreNotTaken) {
  const int port = FreePort();
  Answer other, right;
  std::thread guest([&] {
    const UniqueFd silent = ConnectTo(port);
    const UniqueFd rubbish = ConnectTo(port);
    const std::string text(5000, 'x');
    EXPECT_GT(send(rubbish.get(), text.data(), text.size(), MSG_NOSIGNAL), 0);
    other = Join(port, "2", "2", kPatience, "mpirun-8");
    right = Join(port, "2", "2");
  });
  SocketExchange host(Of(port, true));
  EXPECT_EQ(Call(&host, "size/2").text, "2");
  EXPECT_EQ(Call(&host, "invitation/2", "come").rc, 0);
  guest.join();
  EXPECT_THAT(other.text, HasSubstr("is not rank 0 of this job"));
  EXPECT_EQ(right.text, "come");
}

TEST(SocketExchange, NobodyComes_BothSaySo) {
  const int port = FreePort();
  SocketExchange host(Of(port, true, kShort));
  const Answer waited = Call(&host, "size/2");
  EXPECT_EQ(waited.rc, 1);
  EXPECT_THAT(waited.text, HasSubstr("nobody has called"));
  const int closed = FreePort();
  const Answer alone = Join(closed, "2", "2", kShort);
  EXPECT_EQ(alone.rc, 1);
  EXPECT_THAT(alone.text, HasSubstr("reaching 127.0.0.1:" + std::to_string(closed)));
}

TEST(SocketExchange, PortThatIsTaken_IsNamed) {
  const int port = FreePort();
  const UniqueFd other(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Loopback(port);
  ASSERT_EQ(bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  SocketExchange host(Of(port, true));
  EXPECT_THAT(Call(&host, "size/2").text, HasSubstr("set another MASTER_PORT"));
}

}  // namespace
}  // namespace ringd::client
