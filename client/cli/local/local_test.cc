#include <unistd.h>

#include <fstream>
#include <string>

#include "client/cli/local/cluster_file.h"
#include "client/cli/local/network.h"
#include "client/cli/local/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using ::testing::HasSubstr;

TEST(LocalNodeNameOf, RunsThroughTheAlphabet) {
  EXPECT_EQ(LocalNodeNameOf(0), "a");
  EXPECT_EQ(LocalNodeNameOf(25), "z");
  EXPECT_EQ(LocalNodeNameOf(26), "aa");
  EXPECT_EQ(LocalNodeNameOf(27), "ab");
  EXPECT_EQ(LocalNodeNameOf(52), "ba");
}

LocalCluster Example() {
  return {.directory = "/tmp/c",
          .id = "12ab",
          .slots = 2,
          .rate = "1gbit",
          .bridge = "rgd-br-12ab",
          .bridge_address = "10.1.2.1",
          .scheduler_tcp = "10.1.2.1:7470",
          .nodes = {{"a", "ringd-12ab-a", "rgd-12ab-a", "10.1.2.2", "10.1.2.2:7472"}}};
}

TEST(ClusterFile, WhatIsWritten_IsRead) {
  const auto read = ParseLocalCluster(ToJsonText(Example()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->slots, 2);
  EXPECT_EQ(read->rate, "1gbit");
  EXPECT_TRUE(read->has_netns());
  EXPECT_EQ(read->scheduler_tcp, "10.1.2.1:7470");
  ASSERT_EQ(read->nodes.size(), 1u);
  EXPECT_EQ(read->nodes[0].netns, "ringd-12ab-a");
  EXPECT_EQ(read->nodes[0].data_address, "10.1.2.2:7472");
}

TEST(ClusterFile, Rubbish_IsRefused) {
  for (const char* text : {"", "{", "[]", "{\"nodes\": 1}", "{\"nodes\": [], \"slots\": \"x\"}",
                           "{\"nodes\": [1], \"slots\": 1}", "{\"nodes\": [{}], \"slots\": 1}"}) {
    EXPECT_FALSE(ParseLocalCluster(text).ok()) << text;
  }
}

TEST(FindNode, UnknownName_ListsThoseThereAre) {
  EXPECT_TRUE(Example().FindNode("a").ok());
  EXPECT_THAT(std::string(Example().FindNode("z").status().message()),
              HasSubstr("its nodes are a"));
}

TEST(CheckDirectoryLength, LongPath_IsRefused) {
  EXPECT_TRUE(CheckDirectoryLength("/tmp/c").ok());
  EXPECT_FALSE(CheckDirectoryLength("/" + std::string(90, 'x')).ok());
}

TEST(TokenBucketArguments, BurstHoldsFourMilliseconds) {
  EXPECT_EQ(*TokenBucketArguments("1gbit"), "rate 1000000000bit burst 500000 latency 20ms");
  EXPECT_EQ(*TokenBucketArguments("0.5mbit"), "rate 500000bit burst 32768 latency 20ms");
  for (const char* rate : {"", "1", "fast", "-1gbit", "0gbit", "1 gb", "nangbit", "1bit"}) {
    EXPECT_FALSE(TokenBucketArguments(rate).ok()) << rate;
  }
}

TEST(IsNetworkTaken, MasksCount) {
  // 10.65.0.0/16, 10.70.3.0/24, a default route; addresses are in the byte order of
  // /proc/net/route.
  const std::string routes =
      "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
      "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
      "eth1\t0000410A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
      "br0\t0003460A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
  EXPECT_TRUE(IsNetworkTaken(routes, 65, 9));
  EXPECT_TRUE(IsNetworkTaken(routes, 70, 3));
  EXPECT_FALSE(IsNetworkTaken(routes, 70, 4));
  EXPECT_FALSE(IsNetworkTaken("", 70, 3));
}

TEST(ParseProcessStat, NameWithBracketsAndSpaces) {
  const auto stat = ParseProcessStat(
      "42 (a) b) S 7 42 42 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 1 0 123456 1000 10 "
      "18446744073709551615\n");
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->start_time, 123456u);
  EXPECT_FALSE(ParseProcessStat("").ok());
  EXPECT_FALSE(ParseProcessStat("42 (x) S 7").ok());
}

class ProcessesTest : public ::testing::Test {
 protected:
  const std::string folder_ = ::testing::TempDir();
  const std::string pid_file_ = folder_ + "/x.pid";
};

TEST_F(ProcessesTest, DetachedProcess_IsFoundAndStopped) {
  ASSERT_TRUE(StartDetached({{"/bin/sleep", "100"}, folder_ + "/x.log", pid_file_, ""}).ok());
  const pid_t pid = RunningPid(pid_file_);
  ASSERT_GT(pid, 0);
  EXPECT_EQ(getsid(pid), pid);
  StopProcesses({pid_file_, folder_ + "/none.pid"}, absl::Seconds(10));
  EXPECT_EQ(RunningPid(pid_file_), 0);
  EXPECT_NE(access(pid_file_.c_str(), F_OK), 0);
}

TEST_F(ProcessesTest, ProcessThatIgnoresTerm_IsKilled) {
  const std::string script =
      "trap '' TERM; touch " + folder_ + "/ready; while :; do sleep 0.05; done";
  ASSERT_TRUE(StartDetached({{"/bin/sh", "-c", script}, folder_ + "/x.log", pid_file_, ""}).ok());
  while (access((folder_ + "/ready").c_str(), F_OK) != 0) usleep(1000);
  const pid_t pid = RunningPid(pid_file_);
  StopProcesses({pid_file_}, absl::Milliseconds(50));
  EXPECT_EQ(RunningPid(pid_file_), 0);
  EXPECT_GT(pid, 0);
}

TEST_F(ProcessesTest, PidFileOfAnEarlierProcess_IsNotBelieved) {
  std::ofstream(pid_file_) << getpid() << " 1\n";  // Our pid, another's start time.
  EXPECT_EQ(RunningPid(pid_file_), 0);
  std::ofstream(pid_file_) << "rubbish\n";
  EXPECT_EQ(RunningPid(pid_file_), 0);
}

TEST_F(ProcessesTest, MissingProgram_IsNamed) {
  const auto status = StartDetached({{"/nonexistent/ringd"}, folder_ + "/x.log", pid_file_, ""});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/ringd"));
}

}  // namespace
}  // namespace ringd::cli
