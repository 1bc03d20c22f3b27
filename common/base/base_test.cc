#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/base/unix_socket.h"

namespace ringd {
namespace {

class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/ringd-base-XXXXXX";
    directory_ = mkdtemp(pattern);
    path_ = directory_ + "/s.sock";
  }
  void TearDown() override {
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
  std::string directory_, path_;
};

TEST_F(UnixSocketTest, ListenUnix_NobodyAcceptsOnStaleFile_ReplacesIt) {
  {
    UniqueFd first;
    ASSERT_EQ(ListenUnix(path_, SOCK_SEQPACKET, 0600, &first), 0);
  }
  UniqueFd second;
  EXPECT_EQ(ListenUnix(path_, SOCK_SEQPACKET, 0600, &second), 0);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(UnixSocketTest, ListenUnix_SomebodyListens_SaysInUse) {
  UniqueFd first, second;
  ASSERT_EQ(ListenUnix(path_, SOCK_SEQPACKET, 0600, &first), 0);
  EXPECT_EQ(ListenUnix(path_, SOCK_SEQPACKET, 0600, &second), -EADDRINUSE);
}

TEST_F(UnixSocketTest, ListenUnix_PathIsARegularFile_LeavesIt) {
  const int fd = open(path_.c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_GE(fd, 0);
  close(fd);
  UniqueFd listener;
  EXPECT_EQ(ListenUnix(path_, SOCK_SEQPACKET, 0600, &listener), -EADDRINUSE);
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

TEST_F(UnixSocketTest, ListenUnix_PathTooLong_SaysSo) {
  UniqueFd listener;
  EXPECT_EQ(ListenUnix("/tmp/" + std::string(120, 'x'), SOCK_STREAM, 0600, &listener),
            -ENAMETOOLONG);
}

TEST(PacketTest, SendPacket_WithDescriptors_ArriveCloseOnExec) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  UniqueFd reader(pipe_fds[0]), writer(pipe_fds[1]);
  const int sent = writer.get();
  ASSERT_EQ(SendPacket(a.get(), "hello", 5, &sent, 1), 0);
  char buffer[16];
  std::vector<UniqueFd> fds;
  ASSERT_EQ(ReceivePacket(b.get(), buffer, sizeof(buffer), &fds, 1'000'000), 5);
  ASSERT_EQ(fds.size(), 1u);
  EXPECT_NE(fcntl(fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(fds[0].get(), "x", 1), 1);
  ASSERT_EQ(read(reader.get(), buffer, 1), 1);
}

TEST(PacketTest, ReceivePacket_LongerThanCapacity_IsRefused) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  ASSERT_EQ(SendPacket(a.get(), "0123456789", 10, nullptr, 0), 0);
  char buffer[4];
  EXPECT_EQ(ReceivePacket(b.get(), buffer, sizeof(buffer), nullptr, 1'000'000), -EMSGSIZE);
}

TEST(PacketTest, ReceivePacket_NothingComes_TimesOut) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  char buffer[4];
  EXPECT_EQ(ReceivePacket(b.get(), buffer, sizeof(buffer), nullptr, 1000), -ETIMEDOUT);
  a.reset();
  EXPECT_EQ(ReceivePacket(b.get(), buffer, sizeof(buffer), nullptr, 1000), 0);
}

TEST(PacketTest, GetPeerCredentials_OwnPair_IsThisProcess) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  PeerCredentials peer;
  ASSERT_EQ(GetPeerCredentials(a.get(), &peer), 0);
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, getuid());
}

TEST(SealedMemoryTest, CreateSealedMemory_Resize_IsRefused) {
  UniqueFd memory;
  ASSERT_EQ(CreateSealedMemory("test", 1 << 20, &memory), 0);
  EXPECT_EQ(CheckSealedMemory(memory.get(), 1 << 20), 0);
  EXPECT_EQ(CheckSealedMemory(memory.get(), 1 << 21), -EINVAL);
  EXPECT_LT(ftruncate(memory.get(), 0), 0);
  EXPECT_LT(ftruncate(memory.get(), 1 << 21), 0);
}

TEST(SealedMemoryTest, CheckSealedMemory_HolePunched_IsRefused) {
  UniqueFd memory;
  ASSERT_EQ(CreateSealedMemory("test", 1 << 20, &memory), 0);
  ASSERT_EQ(fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 16), 0);
  EXPECT_EQ(CheckSealedMemory(memory.get(), 1 << 20), -EINVAL);
}

TEST(SealedMemoryTest, CheckSealedMemory_Unsealed_IsRefused) {
  UniqueFd memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fallocate(memory.get(), 0, 0, 4096), 0);
  EXPECT_EQ(CheckSealedMemory(memory.get(), 4096), -EINVAL);
}

TEST(FutexTest, FutexWait_ValueDiffers_ReturnsAtOnce) {
  std::atomic<uint32_t> word{1};
  EXPECT_EQ(FutexWait(&word, 0, -1), FutexResult::kValueChanged);
}

TEST(FutexTest, FutexWait_NobodyWakes_TimesOut) {
  std::atomic<uint32_t> word{1};
  EXPECT_EQ(FutexWait(&word, 1, 1000), FutexResult::kTimedOut);
}

TEST(FutexTest, FutexWakeAll_WaiterOnAnotherMapping_Wakes) {
  UniqueFd memory;
  ASSERT_EQ(CreateSealedMemory("test", 4096, &memory), 0);
  void* here = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  void* there = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  auto* mine = static_cast<std::atomic<uint32_t>*>(here);
  auto* other = static_cast<std::atomic<uint32_t>*>(there);
  std::thread waiter([&] {
    while (other->load() == 0) FutexWait(other, 0, 1'000'000);
  });
  mine->store(1);
  FutexWakeAll(mine);
  waiter.join();
  munmap(here, 4096);
  munmap(there, 4096);
}

}  // namespace
}  // namespace ringd
