#include "client/session/arena_keeper.h"

#include <sys/mman.h>

#include "common/base/sealed_memory.h"
#include "gtest/gtest.h"
#include "proto/arena.h"

namespace ringd::session {
namespace {

constexpr uint64_t kMegabyte = 1048576;

MemoryLimit Limit(uint64_t limit, uint64_t available) {
  return {limit, available, "memory cgroup"};
}

TEST(ChooseArenaSizes, Defaults) {
  const ArenaSizes sizes = ChooseArenaSizes(0, 0, Limit(16384 * kMegabyte, 8192 * kMegabyte));
  EXPECT_EQ(sizes.first_bytes, 256 * kMegabyte);
  EXPECT_EQ(sizes.max_bytes, 8192 * kMegabyte);
}

TEST(ChooseArenaSizes, LittleLeft_FirstSegmentShrinks) {
  EXPECT_EQ(ChooseArenaSizes(0, 0, Limit(1024 * kMegabyte, 200 * kMegabyte)).first_bytes,
            50 * kMegabyte);
  EXPECT_EQ(ChooseArenaSizes(0, 0, Limit(1024 * kMegabyte, 20 * kMegabyte)).first_bytes,
            16 * kMegabyte);
}

TEST(ChooseArenaSizes, RanksTakeTheirsAtOnce_AllFitAndLeaveMost) {
  const MemoryLimit limit = Limit(2048 * kMegabyte, 1600 * kMegabyte);
  EXPECT_EQ(ChooseArenaSizes(0, 0, limit, 4).first_bytes, 100 * kMegabyte);
  EXPECT_EQ(ChooseArenaSizes(0, 0, limit, 1).first_bytes, 256 * kMegabyte);
}

TEST(ChooseArenaSizes, AskedFor_RoundedAndBounded) {
  const MemoryLimit limit = Limit(16384 * kMegabyte, 8192 * kMegabyte);
  EXPECT_EQ(ChooseArenaSizes(33 * kMegabyte, 0, limit).first_bytes, 34 * kMegabyte);
  EXPECT_EQ(ChooseArenaSizes(1, 1, limit).first_bytes, 16 * kMegabyte);
  EXPECT_EQ(ChooseArenaSizes(64 * kMegabyte, 32 * kMegabyte, limit).first_bytes, 32 * kMegabyte);
}

TEST(ArenaKeeper, CreateFirst_HeaderAsTheContractSays) {
  ArenaKeeper keeper(16 * kMegabyte, 64 * kMegabyte,
                     [] { return Limit(1024 * kMegabyte, 512 * kMegabyte); });
  ASSERT_TRUE(keeper.CreateFirst().ok());
  ASSERT_EQ(keeper.segments().size(), 1u);
  const auto& segment = keeper.segments()[0];
  EXPECT_EQ(segment.bytes, 16 * kMegabyte);
  EXPECT_EQ(CheckSealedMemory(segment.fd.get(), 16 * kMegabyte), 0);
  void* memory = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, segment.fd.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto* header = static_cast<const arena::ArenaHeader*>(memory);
  EXPECT_EQ(header->magic, 0x616e657261676e72u);
  EXPECT_EQ(header->layout_version, arena::kLayoutVersion);
  EXPECT_EQ(header->header_bytes, 4096u);
  EXPECT_EQ(header->segment_bytes, 16 * kMegabyte);
  EXPECT_EQ(header->queue_offset, 4096u);
  EXPECT_EQ(header->slots_offset, 4096u + 65536u * 128);
  EXPECT_EQ(header->errors_offset, 4096u + 65536u * 144);
  EXPECT_EQ(header->slab_offset, 4096u + 65536u * 144 + 64 * 4096u);
  EXPECT_EQ(header->slot_count, 65536u);
  EXPECT_EQ(header->error_record_count, 64u);
  EXPECT_EQ(header->head.load(), 0u);
  EXPECT_EQ(header->poison.load(), 0u);
  munmap(memory, 4096);
}

TEST(ArenaKeeper, Grow_AmpleWhereThereIsRoom) {
  ArenaKeeper keeper(16 * kMegabyte, 1024 * kMegabyte,
                     [] { return Limit(4096 * kMegabyte, 2048 * kMegabyte); });
  ASSERT_TRUE(keeper.CreateFirst().ok());
  EXPECT_EQ(*keeper.Grow(1), 1u);
  EXPECT_EQ(keeper.segments()[1].bytes, 64 * kMegabyte);
  EXPECT_EQ(*keeper.Grow(100 * kMegabyte + 1), 2u);
  EXPECT_EQ(keeper.segments()[2].bytes, 102 * kMegabyte);
  EXPECT_EQ(keeper.total_bytes(), 182 * kMegabyte);
}

TEST(ArenaKeeper, Grow_LittleRoom_OnlyWhatIsNeeded) {
  ArenaKeeper keeper(16 * kMegabyte, 20 * kMegabyte,
                     [] { return Limit(4096 * kMegabyte, 2048 * kMegabyte); });
  ASSERT_TRUE(keeper.CreateFirst().ok());
  EXPECT_EQ(*keeper.Grow(4097), 1u);
  EXPECT_EQ(keeper.segments()[1].bytes, 8192u);
}

TEST(ArenaKeeper, Grow_BeyondArenaMax_BothNumbers) {
  ArenaKeeper keeper(16 * kMegabyte, 32 * kMegabyte,
                     [] { return Limit(4096 * kMegabyte, 2048 * kMegabyte); });
  ASSERT_TRUE(keeper.CreateFirst().ok());
  const auto grown = keeper.Grow(100 * kMegabyte);
  EXPECT_EQ(grown.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(grown.status().message(),
            "the arena holds 16 MB and 100 MB more were asked for, but its most is 32 MB "
            "(arena_max); raise "
            "--arena-max or free memory");
  EXPECT_FALSE(keeper.Grow(~uint64_t{0}).ok());
  EXPECT_EQ(keeper.segments().size(), 1u);
}

TEST(ArenaKeeper, Grow_BeyondMemoryLimit_RefusedBeforeItIsTaken) {
  uint64_t available = 512 * kMegabyte;
  ArenaKeeper keeper(16 * kMegabyte, 1024 * kMegabyte,
                     [&] { return Limit(600 * kMegabyte, available); });
  ASSERT_TRUE(keeper.CreateFirst().ok());
  available = 50 * kMegabyte;
  const auto grown = keeper.Grow(100 * kMegabyte);
  EXPECT_EQ(grown.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(grown.status().message(),
            "100 MB more for the arena don't fit: 50 MB of 600 MB (memory cgroup) are free; raise "
            "the memory limit or "
            "use less");
}

TEST(ArenaKeeper, CreateFirst_NoRoomAtAll_Refused) {
  ArenaKeeper keeper(0, 0, [] { return Limit(64 * kMegabyte, 8 * kMegabyte); });
  EXPECT_EQ(keeper.CreateFirst().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(keeper.segments().empty());
}

}  // namespace
}  // namespace ringd::session
