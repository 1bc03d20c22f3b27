#include "daemon/membership/record_store.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

class RecordStoreTest : public testing::Test {
 protected:
  RecordStoreTest() : directory_(testing::TempDir() + "/records-XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }
  static v1::JobRecord Record(const std::string& job, uint64_t generation) {
    v1::JobRecord record;
    record.mutable_order()->set_job(job);
    record.mutable_order()->set_generation(generation);
    return record;
  }
  std::string directory_;
};

TEST_F(RecordStoreTest, Write_Again_ReplacesAndIsPrivate) {
  const RecordStore store(directory_, directory_ + "/.term");
  ASSERT_TRUE(store.Write(Record("j-1", 1)).ok());
  ASSERT_TRUE(store.Write(Record("j-1", 2)).ok());
  ASSERT_TRUE(store.Write(Record("j-2", 5)).ok());
  EXPECT_EQ(store.LoadAll().size(), 2u);
  store.Remove("j-2");
  const std::vector<v1::JobRecord> records = store.LoadAll();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].order().generation(), 2u);
  struct stat info;
  ASSERT_EQ(stat((directory_ + "/j-1").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(RecordStoreTest, LoadAll_FilesOfOthersAndDamagedOnes_AreLeftOut) {
  const RecordStore store(directory_, directory_ + "/.term");
  ASSERT_TRUE(store.Write(Record("good", 1)).ok());
  ASSERT_TRUE(store.Write(Record("open", 1)).ok());
  chmod((directory_ + "/open").c_str(), 0644);
  ASSERT_TRUE(store.Write(Record("renamed", 1)).ok());
  rename((directory_ + "/renamed").c_str(), (directory_ + "/other").c_str());
  std::ofstream(directory_ + "/damaged") << "\xff\xff\xff";
  chmod((directory_ + "/damaged").c_str(), 0600);
  ASSERT_EQ(symlink((directory_ + "/good").c_str(), (directory_ + "/link").c_str()), 0);
  const std::vector<v1::JobRecord> records = store.LoadAll();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].order().job(), "good");
}

TEST_F(RecordStoreTest, Term_IsZeroAtFirstAndKept) {
  const RecordStore store(directory_, directory_ + "/.term");
  EXPECT_EQ(store.ReadTerm().value(), 0u);
  ASSERT_TRUE(store.WriteTerm(18).ok());
  EXPECT_EQ(RecordStore(directory_, directory_ + "/.term").ReadTerm().value(), 18u);
  std::ofstream(directory_ + "/.term") << "eighteen";
  EXPECT_TRUE(absl::IsDataLoss(store.ReadTerm().status()));
}

}  // namespace
}  // namespace ringd::daemon
