#include "scheduler/main/scheduler.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/crypto/crypto.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "common/status/macros.h"
#include "scheduler/server/core.h"
#include "scheduler/server/identity.h"
#include "scheduler/server/loop.h"
#include "scheduler/server/service.h"
#include "scheduler/state/machine.h"
#include "scheduler/store/sqlite_store.h"

namespace ringd::scheduler {
namespace {

constexpr absl::Duration kShutdownGrace = absl::Milliseconds(100);
constexpr mode_t kPrivateMode = 0600;
constexpr mode_t kSharedMode = 0660;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream stream(path);
  std::stringstream text;
  if (!stream || !(text << stream.rdbuf()))
    return absl::InvalidArgumentError(absl::StrCat(path, ": can't read"));
  return text.str();
}

class SchedulerImpl : public Scheduler {
 public:
  explicit SchedulerImpl(Options options)
      : options_(std::move(options)),
        address_file_(options_.state_directory + "/scheduler.address"),
        machine_(options_.MachineOptions(), RandomBytes),
        loop_({[this] { core_->Flush(); }, [this] { core_->Tick(); }}, kTickInterval),
        rpc_server_(RpcServer::Create()) {}

  ~SchedulerImpl() override {
    if (serving_) {
      unlink(address_file_.c_str());
      loop_.Post([this] { core_->Close(); });
    }
    // Streams end on the state thread: it stops last.
    rpc_server_->Shutdown(kShutdownGrace);
    loop_.Stop();
  }

  absl::Status Open();

  const std::vector<std::string>& addresses() const override { return addresses_; }

 private:
  absl::Status Listen();
  absl::Status WriteAddresses() const;

  const Options options_;
  const std::string address_file_;
  Machine machine_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Identities> identities_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<grpc::Service> service_;
  Loop loop_;
  std::unique_ptr<RpcServer> rpc_server_;
  std::vector<std::string> addresses_;
  bool serving_ = false;
};

absl::Status SchedulerImpl::Open() {
  RINGD_ASSIGN_OR_RETURN(store_, OpenSqliteStore(options_.state_directory));
  Identities::Options identities;
  identities.insecure = options_.insecure;
  identities.own_uid = geteuid();
  if (!options_.tls_authority.empty()) {
    RINGD_ASSIGN_OR_RETURN(identities.authority_pem, ReadFile(options_.tls_authority));
  }
  identities_ = std::make_unique<Identities>(std::move(identities));
  core_ = std::make_unique<Core>(&machine_, store_.get(), identities_.get());
  service_ = CreateClusterService(core_.get(), &loop_, identities_.get(), rpc_server_.get());
  rpc_server_->AddService(service_.get());
  RINGD_RETURN_IF_ERROR(core_->Restore());
  return Listen();
}

absl::Status SchedulerImpl::Listen() {
  std::vector<int> ports(options_.listen.size());
  for (size_t i = 0; i < options_.listen.size(); ++i) {
    const std::string& address = options_.listen[i];
    if (absl::StartsWith(address, "unix:")) {
      const bool shared = options_.shared;
      RINGD_RETURN_IF_ERROR(
          rpc_server_->ListenUnixSocket(address.substr(5), shared ? kSharedMode : kPrivateMode,
                                        [shared](const PeerCredentials& peer) {
                                          return shared || peer.uid == 0 || peer.uid == geteuid();
                                        }));
    } else {
      RINGD_RETURN_IF_ERROR(
          rpc_server_->ListenTcp(address, options_.Tls(), options_.insecure, &ports[i]));
    }
  }
  loop_.Start();
  RINGD_RETURN_IF_ERROR(rpc_server_->Start());
  for (size_t i = 0; i < options_.listen.size(); ++i) {
    const std::string& address = options_.listen[i];
    addresses_.push_back(absl::StartsWith(address, "unix:")
                             ? address
                             : absl::StrCat(address.substr(0, address.rfind(':')), ":", ports[i]));
  }
  RINGD_RETURN_IF_ERROR(WriteAddresses());
  serving_ = true;
  GetLogger("scheduler")
      ->info("scheduler serves address={} term={} pid={} state_directory={}",
             absl::StrJoin(addresses_, ","), machine_.term(), getpid(), options_.state_directory);
  return absl::OkStatus();
}

absl::Status SchedulerImpl::WriteAddresses() const {
  const std::string temporary = address_file_ + ".new";
  {
    std::ofstream stream(temporary, std::ios::trunc);
    for (const std::string& address : addresses_) stream << address << "\n";
    stream.close();
    if (!stream) return absl::InvalidArgumentError(absl::StrCat(temporary, ": can't write"));
  }
  chmod(temporary.c_str(), kPrivateMode);
  if (rename(temporary.c_str(), address_file_.c_str()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(address_file_, ": can't write"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Start(Options options) {
  auto scheduler = std::make_unique<SchedulerImpl>(std::move(options));
  RINGD_RETURN_IF_ERROR(scheduler->Open());
  return std::unique_ptr<Scheduler>(std::move(scheduler));
}

}  // namespace ringd::scheduler
