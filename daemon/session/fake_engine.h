// An Engine that remembers what it was told, for tests.
#ifndef RINGD_DAEMON_SESSION_FAKE_ENGINE_H_
#define RINGD_DAEMON_SESSION_FAKE_ENGINE_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sync/mutex.h"
#include "daemon/engine/engine.h"

namespace ringd::daemon {

// Thread-safe.
class FakeEngine : public Engine {
 public:
  std::string data_address() const override { return "127.0.0.1:1"; }
  void PrepareJob(const JobGeneration& generation,
                  std::function<void(absl::Status)> done) override {
    Note(absl::StrCat("prepare ", generation.job));
    done(absl::OkStatus());
  }
  void RemoveJob(const std::string& job, const Outcome&, std::function<void()> done) override {
    Note(absl::StrCat("remove ", job));
    done();
  }
  absl::StatusOr<int> AddClient(const std::string& job, int rank, uint64_t arena,
                                ArenaSegment segment) override {
    close(segment.fd);
    Note(absl::StrCat("client ", job, " ", rank, " ", arena, " ", segment.bytes));
    return eventfd(0, EFD_CLOEXEC);
  }
  absl::StatusOr<int> ShareSegment(const std::string&) override { return -1; }
  absl::Status AddSegment(const std::string& job, int rank, uint64_t arena, uint32_t index,
                          ArenaSegment segment) override {
    close(segment.fd);
    Note(absl::StrCat("segment ", job, " ", rank, " ", arena, " ", index, " ", segment.bytes));
    return absl::OkStatus();
  }
  absl::Status SetClientProcess(const std::string& job, int rank, uint64_t arena, int pid,
                                int pidfd) override {
    close(pidfd);
    Note(absl::StrCat("process ", job, " ", rank, " ", arena, pid == getpid() ? " me" : " other"));
    return absl::OkStatus();
  }
  void RemoveClient(const std::string& job, int rank, uint64_t arena) override {
    Note(absl::StrCat("gone ", job, " ", rank, " ", arena));
  }
  void RankEnded(const std::string& job, int rank, const Outcome&) override {
    Note(absl::StrCat("ended ", job, " ", rank));
  }
  void FailJob(const std::string& job, const Outcome& outcome) override {
    Note(absl::StrCat("fail ", job, " ", outcome.message));
  }
  void SetEvents(Events) override {}
  void Stop() override {}

  std::vector<std::string> Take() {
    MutexLock lock(&mu_);
    return std::exchange(notes_, {});
  }

 private:
  void Note(std::string note) {
    MutexLock lock(&mu_);
    notes_.push_back(std::move(note));
  }
  Mutex mu_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_SESSION_FAKE_ENGINE_H_
