#include "daemon/main/daemon.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/crypto/crypto.h"
#include "common/log/log.h"
#include "common/process/process.h"
#include "common/status/macros.h"
#include "daemon/main/run_directory.h"
#include "daemon/main/socket_access.h"
#include "daemon/ranks/cgroup.h"

namespace ringd::daemon {
namespace {

constexpr absl::Duration kConnectTimeout =
    absl::Seconds(15);  // Embedded: the scheduler was started just before us.
constexpr absl::Duration kEndGrace =
    absl::Seconds(2);  // Of ranks when an embedded daemon is told to end.
constexpr absl::Duration kEndTimeout = absl::Seconds(15);
constexpr absl::Duration kServerGrace = absl::Milliseconds(200);
constexpr char kTlsProof[] = "ringd-tls-proof";
constexpr char kGroup[] = "ringd";  // May talk to a shared daemon.

absl::StatusOr<std::string> ReadFile(const std::string& key, const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text, '\0');  // Not by iterators: they throw on what is no file.
  if (file.fail()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": can't read ", path, ": ", strerror(errno)));
  }
  return text;
}

absl::StatusOr<UniqueFd> SignalDescriptor() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return absl::InternalError("no signalfd");
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(const Options& options) {
  std::unique_ptr<Daemon> daemon(new Daemon(options));
  RINGD_RETURN_IF_ERROR(daemon->SetUp());
  return daemon;
}

Daemon::~Daemon() {
  if (server_ != nullptr) server_->Shutdown(kServerGrace);
  if (driver_ != nullptr) driver_->Stop();
  arenas_.reset();
  watcher_.reset();
  if (engine_ != nullptr) engine_->Stop();
}

SpawnerOptions Daemon::MakeSpawnerOptions() const {
  SpawnerOptions spawner;
  spawner.node = options_.name;
  spawner.worker_program = options_.worker_program;
  spawner.run_directory = options_.run_directory;
  spawner.log_directory = options_.log_directory;
  spawner.daemon_socket = attach_socket_;
  spawner.shared = options_.shared;
  spawner.reattach_timeout = options_.reattach_timeout;
  spawner.arena_bytes = static_cast<uint64_t>(options_.arena_bytes);
  spawner.arena_max_bytes = static_cast<uint64_t>(options_.arena_max);
  absl::StatusOr<std::string> parent = FindCgroupParent();
  if (parent.ok()) {
    spawner.cgroup_parent = *std::move(parent);
    RemoveOldCgroups(spawner.cgroup_parent);
  } else {
    GetLogger("ranks")->debug("no cgroups for ranks reason={}",
                              std::string(parent.status().message()));
  }
  return spawner;
}

NodeDriver::Options Daemon::DriverOptions(uint64_t term) const {
  NodeDriver::Options driver;
  NodeMachineOptions& machine = driver.machine;
  machine.hello.set_name(options_.name);
  machine.hello.set_slots(options_.slot_count);
  machine.hello.set_data_address(
      AdvertisedAddress(options_.advertise_address, engine_->data_address(), options_.scheduler));
  machine.hello.set_version(kVersion);
  machine.hello.set_pid(getpid());
  machine.hello.set_shared(options_.shared);
  machine.hello.set_uid(geteuid());
  machine.term = term;
  machine.embedded = options_.embedded;
  machine.min_uid = static_cast<uint32_t>(options_.min_uid);
  machine.reattach_timeout = options_.reattach_timeout;
  driver.scheduler.address = options_.scheduler;
  if (!absl::StartsWith(options_.scheduler, "unix:")) driver.scheduler.tls = options_.tls;
  driver.logs.log_directory = options_.log_directory;
  driver.logs.folders_directory = absl::StrCat(options_.state_directory, "/log-folders");
  if (options_.embedded) driver.connect_timeout = kConnectTimeout;
  return driver;
}

absl::Status Daemon::SetUp() {
  RINGD_ASSIGN_OR_RETURN(signals_, SignalDescriptor());
  exit_event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (options_.lifeline_fd >= 0 && fcntl(options_.lifeline_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("lifeline_fd: ", options_.lifeline_fd, " is not open"));
  }
  RINGD_ASSIGN_OR_RETURN(lock_, SetUpDirectories(options_));
  if (access(options_.worker_program.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker_program: can't run ", options_.worker_program, ": ", strerror(errno)));
  }
  const std::string& run = options_.run_directory;
  attach_socket_ = absl::StrCat(run, options_.shared ? "/attach.sock" : "/ringd.sock");
  EngineOptions engine;
  engine.reduce_threads = options_.reduce_threads;
  engine.gather_bytes = options_.gather_bytes;
  engine.data_address = options_.data_address;
  RINGD_ASSIGN_OR_RETURN(engine_, Engine::Create(engine));
  SessionOptions session;
  session.node = options_.name;
  session.arena_socket = absl::StrCat(run, "/arena.sock");
  session.reattach_timeout = options_.embedded ? absl::ZeroDuration() : options_.reattach_timeout;
  if (options_.shared)
    session.users = [this](const std::set<uint32_t>& users) { ShareSockets(users); };
  table_ = std::make_unique<SessionTable>(session);
  records_ = std::make_unique<RecordStore>(absl::StrCat(run, "/jobs"),
                                           absl::StrCat(options_.state_directory, "/term"));
  RINGD_ASSIGN_OR_RETURN(const uint64_t term, records_->ReadTerm());
  spawner_ = std::make_unique<RankSpawner>(MakeSpawnerOptions());
  RINGD_ASSIGN_OR_RETURN(watcher_, ProcessWatcher::Create());
  ArenaServerOptions arenas;
  arenas.path = session.arena_socket;
  arenas.mode = 0600;
  arenas.arena_max_bytes = static_cast<uint64_t>(options_.arena_max);
  arenas.inherited = [this](const std::string& job, const std::string& reason) {
    driver_->FailJob(job, reason);
  };
  RINGD_ASSIGN_OR_RETURN(arenas_, ArenaServer::Create(arenas, engine_.get(), table_.get()));
  const NodeDriverParts parts{engine_.get(),  table_.get(),   arenas_.get(),
                              spawner_.get(), watcher_.get(), records_.get()};
  driver_ = std::make_unique<NodeDriver>(
      DriverOptions(term), parts, [this](std::string reason) { RequestExit(std::move(reason)); });
  driver_->Restore();
  RINGD_RETURN_IF_ERROR(SetUpServer());
  driver_->Start();
  return absl::OkStatus();
}

absl::Status Daemon::ReadKeys(NodeServiceOptions* service) const {
  if (options_.tls.key.empty()) return absl::OkStatus();
  RINGD_ASSIGN_OR_RETURN(service->key_pem, ReadFile("tls_key", options_.tls.key));
  RINGD_ASSIGN_OR_RETURN(service->certificate_pem,
                         ReadFile("tls_certificate", options_.tls.certificate));
  RINGD_ASSIGN_OR_RETURN(const std::string authority,
                         ReadFile("tls_authority", options_.tls.authority));
  const absl::StatusOr<std::vector<std::string>> uris = CertificateUris(service->certificate_pem);
  const std::string wanted = absl::StrCat("ringd://node/", options_.name);
  if (!uris.ok() || std::find(uris->begin(), uris->end(), wanted) == uris->end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tls_certificate: ", options_.tls.certificate, " is not node ", options_.name,
                     "'s: it does not carry ", wanted, " (ringctl certs init makes one)"));
  }
  // Found here, where it can be said: who refuses a certificate just closes the connection.
  RINGD_ASSIGN_OR_RETURN(const std::string signature, Sign(service->key_pem, kTlsProof));
  const absl::Status sound =
      VerifySignature(authority, service->certificate_pem, kTlsProof, signature);
  if (sound.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tls_certificate: ", options_.tls.certificate, " does not go with tls_key ",
                   options_.tls.key, " and tls_authority ", options_.tls.authority, ": ",
                   sound.message(), " (ringctl certs init makes all three)"));
}

void Daemon::ShareSockets(const std::set<uint32_t>& users) const {
  for (const std::string& path :
       {attach_socket_, absl::StrCat(options_.run_directory, "/arena.sock")}) {
    const absl::Status granted = GrantSocket(path, users);
    if (granted.ok() || absl::IsNotFound(granted)) continue;  // Not there yet: SetUp comes here.
    GetLogger("main")->warn("{}: open to all users, whom the daemon tells apart",
                            std::string(granted.message()));
    chmod(path.c_str(), 0666);
  }
}

absl::Status Daemon::SetUpServer() {
  NodeServiceOptions service;
  service.node = options_.name;
  service.shared = options_.shared;
  service.min_uid = static_cast<uint32_t>(options_.min_uid);
  RINGD_RETURN_IF_ERROR(ReadKeys(&service));
  server_ = RpcServer::Create();
  service_ = std::make_unique<NodeService>(service, server_.get(), table_.get(), driver_.get(),
                                           [this] { return GetInfo(); });
  server_->AddService(service_.get());
  const std::string path = absl::StrCat(options_.run_directory, "/ringd.sock");
  if (!options_.shared) {
    const auto own = [uid = geteuid()](const PeerCredentials& peer) { return peer.uid == uid; };
    RINGD_RETURN_IF_ERROR(server_->ListenUnixSocket(path, 0600, own));
    return server_->Start();
  }
  RINGD_RETURN_IF_ERROR(
      server_->ListenUnixSocket(path, 0660, [](const PeerCredentials&) { return true; }));
  const group* group = getgrnam(kGroup);  // Before there are other threads that ask.
  if (group == nullptr) {
    GetLogger("main")->warn("there is no group {}: only root can talk to {}", kGroup, path);
  } else if (chown(path.c_str(), static_cast<uid_t>(-1), group->gr_gid) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("can't give ", path, " to group ", kGroup));
  }
  // Workers run as their users, who need not be in the group.
  RINGD_RETURN_IF_ERROR(server_->ListenUnixSocket(
      attach_socket_, 0600,
      [this](const PeerCredentials& peer) { return table_->HasJobOf(peer.uid); }));
  ShareSockets(table_->Users());
  return server_->Start();
}

node::v1::GetInfoResponse Daemon::GetInfo() {
  node::v1::GetInfoResponse info;
  info.set_version(kVersion);
  info.set_node(options_.name);
  info.set_pid(getpid());
  info.set_slots(options_.slot_count);
  for (std::string& job : driver_->Jobs()) info.add_jobs(std::move(job));
  info.set_data_address(engine_->data_address());
  info.set_scheduler(options_.scheduler);
  info.set_scheduler_connected(driver_->scheduler_connected());
  info.set_shared(options_.shared);
  return info;
}

void Daemon::RequestExit(std::string reason) {
  {
    MutexLock lock(&mu_);
    if (exit_reason_.empty()) exit_reason_ = std::move(reason);
  }
  eventfd_write(exit_event_.get(), 1);
}

void Daemon::EndRanks(absl::Duration grace, const std::string& reason) {
  if (!driver_->EndRanks(grace, reason, kEndTimeout)) {
    GetLogger("main")->error("ranks are left that can't be ended");
  }
}

bool Daemon::HasRanksToLeave() { return !options_.embedded && !driver_->Jobs().empty(); }

void Daemon::LeaveRanks() {
  server_->Shutdown(kServerGrace);
  driver_->Stop();
  arenas_.reset();
  _exit(0);
}

absl::Status Daemon::Run() {
  NotifySystemd("READY=1");
  GetLogger("main")->info("daemon runs node={} pid={} slots={} run_directory={} data_address={}",
                          options_.name, getpid(), options_.slot_count, options_.run_directory,
                          engine_->data_address());
  Watchdog watchdog;
  while (true) {
    pollfd entries[] = {{signals_.get(), POLLIN, 0},
                        {exit_event_.get(), POLLIN, 0},
                        {options_.lifeline_fd, POLLIN, 0}};
    const int ready = poll(entries, 3, watchdog.TimeoutMillis());
    if (ready < 0 && errno != EINTR)
      return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    watchdog.TellIfDue();
    if (ready <= 0) continue;
    if (entries[2].revents != 0) {
      GetLogger("main")->info("lifeline closed: ending with all ranks");
      EndRanks(absl::ZeroDuration(), "ringctl is gone");
      return absl::OkStatus();
    }
    if (entries[1].revents != 0) {
      NotifySystemd("STOPPING=1");
      std::string reason;
      {
        MutexLock lock(&mu_);
        reason = exit_reason_;
      }
      if (options_.embedded) EndRanks(kEndGrace, reason);
      return absl::UnavailableError(reason);
    }
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGHUP)
      continue;
    NotifySystemd("STOPPING=1");
    GetLogger("main")->info("daemon ends signal={}{}", info.ssi_signo,
                            HasRanksToLeave() ? ": ranks go on and wait for the next daemon" : "");
    if (options_.embedded) EndRanks(kEndGrace, "the daemon was told to end");
    return absl::OkStatus();
  }
}

}  // namespace ringd::daemon
