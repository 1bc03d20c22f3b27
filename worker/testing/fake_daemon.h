// A daemon for tests of the worker: the Node service and the arena socket, with everything that
// arrives written down.
#ifndef RINGD_WORKER_TESTING_FAKE_DAEMON_H_
#define RINGD_WORKER_TESTING_FAKE_DAEMON_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/rpc/rpc.h"
#include "common/sync/mutex.h"
#include "proto/node.grpc.pb.h"

namespace ringd::worker {

struct ArenaEvent {
  enum class Kind { kOffer, kAttached, kDetached } kind = Kind::kOffer;
  std::string session;
  uint64_t arena = 0;
  uint32_t segment = 0;
  uint64_t bytes = 0;
  bool sound = false;  // A sealed memfd of that size came along.
  int pid = 0;
  UniqueFd fd;  // The memfd or pidfd.
};

// Life: Start (again after Kill: the next incarnation); the destructor kills it.
// Thread-safe.
class FakeDaemon : public node::v1::Node::Service {
 public:
  explicit FakeDaemon(std::string directory);
  ~FakeDaemon() override;

  void Start();
  // Both sockets close at once, as if the process had been killed.
  void Kill();

  std::string socket() const { return directory_ + "/ringd.sock"; }
  std::string token() const { return "secret"; }
  int doorbell() const { return doorbell_.get(); }
  // Answers `attach` with this status from now on.
  void RefuseAttach(grpc::Status status);
  // Answers offers of segment 0 with this code from now on.
  void RefuseOffers(uint32_t code, const std::string& text);

  // The next report, "nothing" after the timeout.
  std::optional<node::v1::WorkerReport> NextReport(absl::Duration timeout = absl::Seconds(20));
  std::optional<ArenaEvent> NextArenaEvent(absl::Duration timeout = absl::Seconds(20));
  void Order(const node::v1::WorkerOrder& order);

  grpc::Status Attach(grpc::ServerContext* context, const node::v1::AttachRequest* request,
                      node::v1::AttachResponse* response) override;
  grpc::Status Supervise(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<node::v1::WorkerOrder, node::v1::WorkerReport>* stream) override;

 private:
  grpc::Status MakeSession(const node::v1::AttachRequest& request,
                           node::v1::AttachResponse* response);
  void ServeArenas();
  void HandleArenaPacket(int socket);

  const std::string directory_;
  UniqueFd doorbell_;
  std::unique_ptr<RpcServer> server_;
  UniqueFd arena_listener_;
  UniqueFd arena_stop_;
  std::thread arena_thread_;

  Mutex mu_;
  CondVar changed_;
  grpc::Status refuse_attach_ ABSL_GUARDED_BY(mu_);
  uint32_t offer_code_ ABSL_GUARDED_BY(mu_) = 0;
  std::string offer_text_ ABSL_GUARDED_BY(mu_);
  std::string session_ ABSL_GUARDED_BY(mu_);  // The last one: earlier ones are refused.
  int session_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<node::v1::WorkerReport> reports_ ABSL_GUARDED_BY(mu_);
  std::deque<ArenaEvent> arena_events_ ABSL_GUARDED_BY(mu_);
  grpc::ServerReaderWriter<node::v1::WorkerOrder, node::v1::WorkerReport>* stream_
      ABSL_GUARDED_BY(mu_) = nullptr;
  std::map<int, UniqueFd> arena_clients_;  // The arena thread's.
};

}  // namespace ringd::worker

#endif  // RINGD_WORKER_TESTING_FAKE_DAEMON_H_
