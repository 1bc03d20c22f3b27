#include "common/base/spread_map.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <vector>

#include "common/base/fd.h"
#include "common/base/sealed_memory.h"

namespace ringd {
namespace {

constexpr uint64_t kWindowBytes = 1 << 28;

UniqueFd MakeMemory(uint64_t bytes) {
  UniqueFd memory;
  EXPECT_EQ(CreateSealedMemory("spread", bytes, &memory), 0);
  return memory;
}

TEST(SpreadMapTest, MapSpread_SixtyFourPlaces_NoTwoAlikeInTheLower28Bits) {
  const UniqueFd memory = MakeMemory(1 << 20);
  std::set<uint64_t> tags;
  std::vector<void*> mapped;
  for (uint32_t place = 0; place < 64; ++place) {
    mapped.push_back(MapSpread(memory.get(), 1 << 20, place));
    ASSERT_NE(mapped.back(), MAP_FAILED);
    tags.insert(reinterpret_cast<uintptr_t>(mapped.back()) % kWindowBytes / kSpreadBytes);
  }
  EXPECT_EQ(tags.size(), 64u);
  for (void* each : mapped) munmap(each, 1 << 20);
}

TEST(SpreadMapTest, MapSpread_TwoMappingsOfOneDescriptor_ShareTheirMemory) {
  const UniqueFd memory = MakeMemory(8192);
  auto* const one = static_cast<char*>(MapSpread(memory.get(), 8192, 1));
  auto* const two = static_cast<char*>(MapSpread(memory.get(), 8192, 2));
  ASSERT_NE(one, MAP_FAILED);
  ASSERT_NE(two, MAP_FAILED);
  one[8191] = 7;
  EXPECT_EQ(two[8191], 7);
  munmap(one, 8192);
  two[0] = 3;  // The other's end has left it alone.
  munmap(two, 8192);
}

uint64_t AddressSpacePages() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(SpreadMapTest, MapSpread_RepeatedAndUnmapped_LeavesNoAddressSpaceBehind) {
  const UniqueFd memory = MakeMemory(4096);
  const uint64_t before = AddressSpacePages();
  ASSERT_GT(before, 0u);
  for (int i = 0; i < 20; ++i) {
    void* const mapped = MapSpread(memory.get(), 4096, 5);
    ASSERT_NE(mapped, MAP_FAILED);
    munmap(mapped, 4096);
  }
  EXPECT_LT(AddressSpacePages(), before + kWindowBytes / 4096);
}

TEST(SpreadMapTest, MapSpread_BadDescriptor_FailsAsMmapDoes) {
  EXPECT_EQ(MapSpread(-1, 4096, 0), MAP_FAILED);
  EXPECT_EQ(errno, EBADF);
  const UniqueFd memory = MakeMemory(4096);
  EXPECT_EQ(MapSpread(memory.get(), 0, 0), MAP_FAILED);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace ringd
