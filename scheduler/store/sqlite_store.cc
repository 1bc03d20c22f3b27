#include "scheduler/store/sqlite_store.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/status/macros.h"

namespace ringd::scheduler {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kBusyMillis = 5000;

constexpr char kSchema[] = R"sql(
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY, record BLOB NOT NULL, spec BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (name TEXT PRIMARY KEY, record BLOB NOT NULL);
)sql";

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int index, int64_t value) {
    sqlite3_bind_int64(statement_, index, value);
    return *this;
  }
  Statement& BindBlob(int index, const std::string& bytes) {
    sqlite3_bind_blob64(statement_, index, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& BindText(int index, const std::string& text) {
    sqlite3_bind_text(statement_, index, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }
  int64_t Int(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Blob(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? std::string()
                           : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

class SqliteStore : public Store {
 public:
  SqliteStore(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  ~SqliteStore() override { sqlite3_close(db_); }

  absl::Status Open();
  absl::StatusOr<Snapshot> Load() override;
  absl::Status Commit(const Batch& batch) override;

 private:
  absl::Status Execute(const char* sql);
  absl::Status Done(int rc);
  absl::Status Write(const Batch& batch);
  absl::Status SetMeta(const std::string& key, uint64_t value);
  absl::StatusOr<uint64_t> GetMeta(const std::string& key);
  absl::Status LoadJobs(Snapshot* snapshot);
  absl::Status LoadNodes(Snapshot* snapshot);
  absl::Status Error() {
    return absl::UnavailableError(
        absl::StrCat(path_, ": ", db_ == nullptr ? "can't open" : sqlite3_errmsg(db_)));
  }

  const std::string path_;
  const UniqueFd lock_;  // Held while we live.
  sqlite3* db_ = nullptr;
};

absl::Status SqliteStore::Execute(const char* sql) {
  return sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus()
                                                                        : Error();
}

absl::Status SqliteStore::Done(int rc) { return rc == SQLITE_DONE ? absl::OkStatus() : Error(); }

absl::Status SqliteStore::Open() {
  // Made by us first: SQLite gives its other files the mode of this one.
  UniqueFd file(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid() || fchmod(file.get(), 0600) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", strerror(errno)));
  }
  file.reset();
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path_.c_str(), &db_, flags, nullptr) != SQLITE_OK) return Error();
  sqlite3_busy_timeout(db_, kBusyMillis);
  int64_t version = 0;
  {
    Statement pragma(db_, "PRAGMA user_version");
    if (pragma.Step() != SQLITE_ROW) {
      return absl::InvalidArgumentError(absl::StrCat(path_, " is no store of a scheduler (",
                                                     sqlite3_errmsg(db_), "); move it away"));
    }
    version = pragma.Int(0);
  }
  if (version > kSchemaVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, " was written by a newer ringd-scheduler (format ", version, "); use that"));
  }
  RINGD_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  RINGD_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  RINGD_RETURN_IF_ERROR(Execute(kSchema));
  return Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion).c_str());
}

absl::Status SqliteStore::SetMeta(const std::string& key, uint64_t value) {
  Statement statement(db_, "INSERT OR REPLACE INTO meta VALUES (?, ?)");
  return Done(statement.BindText(1, key).Bind(2, static_cast<int64_t>(value)).Step());
}

absl::StatusOr<uint64_t> SqliteStore::GetMeta(const std::string& key) {
  Statement statement(db_, "SELECT value FROM meta WHERE key = ?");
  const int rc = statement.BindText(1, key).Step();
  if (rc == SQLITE_DONE) return 0;
  if (rc != SQLITE_ROW) return Error();
  return static_cast<uint64_t>(statement.Int(0));
}

absl::StatusOr<Snapshot> SqliteStore::Load() {
  Snapshot snapshot;
  RINGD_ASSIGN_OR_RETURN(snapshot.term, GetMeta("term"));
  RINGD_RETURN_IF_ERROR(SetMeta("term", ++snapshot.term));
  RINGD_ASSIGN_OR_RETURN(snapshot.next_number, GetMeta("next_number"));
  RINGD_RETURN_IF_ERROR(LoadJobs(&snapshot));
  RINGD_RETURN_IF_ERROR(LoadNodes(&snapshot));
  return snapshot;
}

absl::Status SqliteStore::LoadJobs(Snapshot* snapshot) {
  Statement statement(db_, "SELECT number, record, spec FROM jobs ORDER BY number");
  int rc = SQLITE_ROW;
  while ((rc = statement.Step()) == SQLITE_ROW) {
    Snapshot::StoredJob& job = snapshot->jobs.emplace_back();
    if (!job.record.ParseFromString(statement.Blob(1)) ||
        !job.spec.ParseFromString(statement.Blob(2)) ||
        static_cast<int64_t>(job.record.number()) != statement.Int(0)) {
      return absl::DataLossError(
          absl::StrCat(path_, ": the record of j-", statement.Int(0), " is damaged"));
    }
  }
  return Done(rc);
}

absl::Status SqliteStore::LoadNodes(Snapshot* snapshot) {
  Statement statement(db_, "SELECT record FROM nodes ORDER BY name");
  int rc = SQLITE_ROW;
  while ((rc = statement.Step()) == SQLITE_ROW) {
    if (!snapshot->nodes.emplace_back().ParseFromString(statement.Blob(0))) {
      return absl::DataLossError(absl::StrCat(path_, ": the record of a node is damaged"));
    }
  }
  return Done(rc);
}

absl::Status SqliteStore::Write(const Batch& batch) {
  RINGD_RETURN_IF_ERROR(SetMeta("next_number", batch.next_number));
  for (const Batch::Job& job : batch.jobs) {
    const auto number = static_cast<int64_t>(job.record->number());
    if (job.spec != nullptr) {
      Statement statement(db_, "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)");
      statement.Bind(1, number).BindBlob(2, job.record->SerializeAsString());
      RINGD_RETURN_IF_ERROR(Done(statement.BindBlob(3, job.spec->SerializeAsString()).Step()));
    } else {
      Statement statement(db_, "UPDATE jobs SET record = ? WHERE number = ?");
      RINGD_RETURN_IF_ERROR(
          Done(statement.BindBlob(1, job.record->SerializeAsString()).Bind(2, number).Step()));
    }
  }
  for (uint64_t number : batch.deleted_jobs) {
    Statement statement(db_, "DELETE FROM jobs WHERE number = ?");
    RINGD_RETURN_IF_ERROR(Done(statement.Bind(1, static_cast<int64_t>(number)).Step()));
  }
  for (const v1::NodeRecord& node : batch.nodes) {
    Statement statement(db_, "INSERT OR REPLACE INTO nodes VALUES (?, ?)");
    RINGD_RETURN_IF_ERROR(
        Done(statement.BindText(1, node.name()).BindBlob(2, node.SerializeAsString()).Step()));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::Commit(const Batch& batch) {
  RINGD_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status = Write(batch);
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok()) Execute("ROLLBACK").IgnoreError();
  return status;
}

absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(directory, error);
  if (error)
    return absl::InvalidArgumentError(
        absl::StrCat("state_directory ", directory, ": ", error.message()));
  if (made) chmod(directory.c_str(), 0700);
  struct stat info;
  if (stat(directory.c_str(), &info) != 0 || info.st_uid != geteuid() ||
      (info.st_mode & 022) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("state_directory ", directory,
                     " is another user's, or others can write to it: chown and chmod "
                     "700 it, or choose another"));
  }
  const std::string path = directory + "/scheduler.lock";
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char pid[16] = {};
    const ssize_t count = pread(lock.get(), pid, sizeof(pid) - 1, 0);
    return absl::AlreadyExistsError(absl::StrCat(
        "another ringd-scheduler (pid ", count > 0 ? pid : "unknown", ") uses state_directory ",
        directory, "; stop it or choose another directory"));
  }
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
  }
  return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& directory) {
  RINGD_ASSIGN_OR_RETURN(UniqueFd lock, LockDirectory(directory));
  auto store = std::make_unique<SqliteStore>(directory + "/scheduler.db", std::move(lock));
  RINGD_RETURN_IF_ERROR(store->Open());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace ringd::scheduler
