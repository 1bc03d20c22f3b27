#include "scheduler/store/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"

namespace ringd::scheduler {
namespace {

using testing::HasSubstr;

class SqliteStoreTest : public testing::Test {
 protected:
  SqliteStoreTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/store-XXXXXX");
    root_ = mkdtemp(pattern.data());
    directory_ = root_ + "/state";
  }
  ~SqliteStoreTest() override { std::filesystem::remove_all(root_); }

  static v1::JobRecord Record(uint64_t number) {
    v1::JobRecord record;
    record.set_number(number);
    record.mutable_job()->set_id(absl::StrCat("j-", number));
    return record;
  }
  static absl::Status CommitJob(Store* store, const v1::JobRecord& record,
                                const ringd::cluster::v1::JobSpec* spec) {
    Store::Batch batch;
    batch.next_number = record.number() + 1;
    batch.jobs.push_back({&record, spec});
    return store->Commit(batch);
  }

  std::string root_;
  std::string directory_;
};

TEST_F(SqliteStoreTest, Commit_ThenLoad_GivesTheSameBack) {
  ringd::cluster::v1::JobSpec spec;
  spec.add_command("train");
  v1::JobRecord record = Record(7);
  {
    auto store = OpenSqliteStore(directory_);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->Load()->term, 1u);
    Store::Batch batch;
    batch.next_number = 8;
    batch.jobs.push_back({&record, &spec});
    batch.nodes.emplace_back().set_name("a");
    ASSERT_TRUE((*store)->Commit(batch).ok());
    record.set_passed(3);  // An update leaves the spec as it was.
    ASSERT_TRUE(CommitJob(store->get(), record, nullptr).ok());
  }
  auto store = OpenSqliteStore(directory_);
  ASSERT_TRUE(store.ok());
  const auto snapshot = (*store)->Load();
  ASSERT_TRUE(snapshot.ok());
  EXPECT_EQ(snapshot->term, 2u);
  EXPECT_EQ(snapshot->next_number, 8u);
  ASSERT_EQ(snapshot->jobs.size(), 1u);
  EXPECT_EQ(snapshot->jobs[0].record.passed(), 3);
  EXPECT_EQ(snapshot->jobs[0].spec.command(0), "train");
  ASSERT_EQ(snapshot->nodes.size(), 1u);
  EXPECT_EQ(snapshot->nodes[0].name(), "a");
}

TEST_F(SqliteStoreTest, Commit_DeletedJob_IsGone) {
  const ringd::cluster::v1::JobSpec spec;
  auto store = OpenSqliteStore(directory_);
  ASSERT_TRUE(CommitJob(store->get(), Record(1), &spec).ok());
  Store::Batch batch;
  batch.next_number = 2;
  batch.deleted_jobs = {1};
  ASSERT_TRUE((*store)->Commit(batch).ok());
  EXPECT_TRUE((*store)->Load()->jobs.empty());
}

TEST_F(SqliteStoreTest, Open_Files_AreTheOwnersAlone) {
  auto store = OpenSqliteStore(directory_);
  const ringd::cluster::v1::JobSpec spec;
  ASSERT_TRUE(CommitJob(store->get(), Record(1), &spec).ok());
  struct stat info;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << entry.path();
  }
  ASSERT_EQ(stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(SqliteStoreTest, Open_DirectoryInUse_NamesThePid) {
  auto store = OpenSqliteStore(directory_);
  ASSERT_TRUE(store.ok());
  const auto second = OpenSqliteStore(directory_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("pid ", getpid())));
}

TEST_F(SqliteStoreTest, Open_BadDirectoryOrFile_IsInvalid) {
  EXPECT_EQ(OpenSqliteStore("/proc/nothing").status().code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::create_directories(directory_);
  std::filesystem::permissions(directory_, std::filesystem::perms::all);
  EXPECT_THAT(std::string(OpenSqliteStore(directory_).status().message()),
              HasSubstr("others can write"));
  std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
  std::ofstream(directory_ + "/scheduler.db") << std::string(5000, 'x');
  EXPECT_EQ(OpenSqliteStore(directory_).status().code(), absl::StatusCode::kInvalidArgument);
}

// A child commits and says so until it is killed in the middle of it: what it has said is there.
TEST_F(SqliteStoreTest, Commit_ProcessKilled_LosesNothingAcknowledged) {
  uint64_t expected = 0;
  for (int round = 0; round < 5; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = OpenSqliteStore(directory_);
      if (!store.ok() || !(*store)->Load().ok()) _exit(1);
      ringd::cluster::v1::JobSpec spec;
      spec.add_command(std::string(5000, 'x'));
      for (uint64_t number = expected + 1;; ++number) {
        if (!CommitJob(store->get(), Record(number), &spec).ok()) _exit(1);
        if (write(ends[1], &number, sizeof(number)) != sizeof(number)) _exit(1);
      }
    }
    UniqueFd reader(ends[0]);
    close(ends[1]);
    uint64_t said = 0;
    while (said < expected + 20 + static_cast<uint64_t>(round)) {
      ASSERT_EQ(read(reader.get(), &said, sizeof(said)), static_cast<ssize_t>(sizeof(said)));
    }
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    for (uint64_t more; read(reader.get(), &more, sizeof(more)) == sizeof(more);) said = more;

    auto store = OpenSqliteStore(directory_);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto snapshot = (*store)->Load();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    ASSERT_GE(snapshot->jobs.size(), said);
    ASSERT_GE(snapshot->next_number, said + 1);
    for (uint64_t i = 0; i < said; ++i) ASSERT_EQ(snapshot->jobs[i].record.number(), i + 1);
    expected = snapshot->jobs.size();
    EXPECT_EQ(snapshot->term, static_cast<uint64_t>(2 * round + 2));
  }
}

}  // namespace
}  // namespace ringd::scheduler
