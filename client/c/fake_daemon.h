// For tests: a daemon of one arena, on a thread, that sees descriptors and completes them as it is
// told.
#ifndef RINGD_CLIENT_C_FAKE_DAEMON_H_
#define RINGD_CLIENT_C_FAKE_DAEMON_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/c/arena_client.h"
#include "common/base/fd.h"
#include "proto/arena.h"

namespace ringd::client {

// It works on the client's mapping, so that ThreadSanitizer sees both sides. Thread-safe.
class FakeDaemon {
 public:
  struct Reply {
    arena::Code code = arena::Code::kOk;
    std::string message;
    int rank = -1;
    bool hold = false;  // Not completed until CompleteHeld.
  };
  using Handler = std::function<Reply(const arena::Descriptor&)>;

  FakeDaemon();
  ~FakeDaemon();

  // What a client is made of. Once.
  ArenaClientOptions Options(int rank = 0, int size = 1);
  // Runs `handler` on its own thread for each descriptor of the client. Once.
  void Serve(const ArenaClient& client, Handler handler);

  std::byte* Pointer(arena::Ref ref) const { return memory_->Pointer(ref); }
  std::vector<arena::Descriptor> seen();
  int doorbells() const { return doorbells_.load(); }
  void CompleteHeld();
  void Poison(arena::Code code, const std::string& message);

 private:
  void Run();
  void Handle(const arena::Descriptor& descriptor);
  void Complete(const arena::Descriptor& descriptor, const Reply& reply);
  uint32_t WriteError(const Reply& reply);

  Handler handler_;
  std::shared_ptr<ArenaMemory> memory_;
  UniqueFd segment_;
  UniqueFd doorbell_;
  std::atomic<int> doorbells_{0};
  std::atomic<bool> stop_{false};
  std::mutex mu_;
  std::vector<arena::Descriptor> seen_;
  std::vector<arena::Descriptor> held_;
  uint32_t error_serial_ = 0;
  std::thread thread_;
};

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_FAKE_DAEMON_H_
