#include "daemon/engine/arena/sigbus_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "common/base/fd.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

constexpr size_t kPage = 4096;

// Two pages of which the file has one: touching the other is a SIGBUS.
class Mapping {
 public:
  Mapping() : fd_(memfd_create("guarded", MFD_CLOEXEC)) {
    if (ftruncate(fd_.get(), kPage) != 0) abort();
    data_ = static_cast<char*>(
        mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  }
  ~Mapping() { munmap(data_, 2 * kPage); }
  char* data() { return data_; }

 private:
  UniqueFd fd_;
  char* data_;
};

TEST(SigbusGuardTest, MissingPage_ReadsZerosAndMarksTheRange) {
  Mapping bad, good;
  SigbusGuard bad_guard(bad.data(), 2 * kPage);
  SigbusGuard good_guard(good.data(), 2 * kPage);
  good.data()[0] = 1;
  bad.data()[0] = 2;
  const uint64_t faults = SigbusGuard::FaultCount();
  volatile char* missing = bad.data() + kPage + 100;
  EXPECT_EQ(*missing, 0);
  *missing = 7;
  EXPECT_EQ(*missing, 7);
  EXPECT_TRUE(bad_guard.bad());
  EXPECT_FALSE(good_guard.bad());
  EXPECT_EQ(SigbusGuard::FaultCount(), faults + 1);
  EXPECT_EQ(bad.data()[0], 2);
}

TEST(SigbusGuardTest, MovedGuard_StillGuards) {
  Mapping mapping;
  SigbusGuard guard(mapping.data(), 2 * kPage);
  SigbusGuard moved = std::move(guard);
  EXPECT_FALSE(guard.active());
  *static_cast<volatile char*>(mapping.data() + kPage) = 1;
  EXPECT_TRUE(moved.bad());
}

TEST(SigbusGuardDeathTest, UnguardedMemory_EndsTheProcess) {
  Mapping mapping;
  auto guard = std::make_unique<SigbusGuard>(mapping.data(), 2 * kPage);
  guard.reset();
  EXPECT_EXIT(*static_cast<volatile char*>(mapping.data() + kPage) = 1,
              testing::KilledBySignal(SIGBUS), "");
}

TEST(SigbusGuardTest, PlacesAreUsedAgain) {
  Mapping mapping;
  for (size_t i = 0; i < 2 * SigbusGuard::kMaxRanges; ++i) {
    ASSERT_TRUE(SigbusGuard(mapping.data(), 2 * kPage).active());
  }
}

}  // namespace
}  // namespace ringd::daemon
