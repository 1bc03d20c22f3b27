#include "daemon/ranks/rank_spawner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/status/macros.h"
#include "daemon/ranks/cgroup.h"

namespace ringd::daemon {
namespace {

constexpr absl::Duration kCheckTimeout = absl::Seconds(5);
constexpr int kBadInputCode = 2;  // Of ringd-worker --check-fd.
constexpr size_t kMaxReasonBytes = 1024;
constexpr char kWorkerPath[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
// MASTER_PORT of jobs: below the ports that Linux hands out by itself, above the well-known ones.
constexpr int kFirstMasterPort = 20000;
constexpr int kMasterPorts = 12000;

uint64_t Fnv1a(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

absl::StatusOr<UniqueFd> SpecMemory(const node::v1::WorkerSpec& spec) {
  UniqueFd fd(memfd_create("ringd-spec", MFD_CLOEXEC));
  if (!fd.valid())
    return absl::ResourceExhaustedError(absl::StrCat("memfd_create: ", strerror(errno)));
  if (!spec.SerializeToFileDescriptor(fd.get()) || lseek(fd.get(), 0, SEEK_SET) != 0) {
    return absl::ResourceExhaustedError("no memory for a worker's orders");
  }
  return fd;
}

// Reads until the writer is gone or `deadline` has come.
std::string ReadAll(int fd, absl::Time deadline) {
  std::string text;
  char buffer[512];
  while (text.size() < kMaxReasonBytes) {
    pollfd entry{fd, POLLIN, 0};
    const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    const int ready = poll(&entry, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes <= 0) break;
    text.append(buffer, static_cast<size_t>(bytes));
  }
  return std::string(absl::StripAsciiWhitespace(text));
}

// A folder that belongs to the job's user. One that is there already must be no link and be that
// user's.
absl::Status MakeUserDirectory(const std::string& path, mode_t mode,
                               const cluster::v1::Prepare& order, bool shared) {
  if (mkdir(path.c_str(), mode) != 0) {
    if (errno != EEXIST)
      return absl::UnavailableError(absl::StrCat("can't make ", path, ": ", strerror(errno)));
    struct stat info;
    if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != order.uid()) {
      return absl::UnavailableError(absl::StrCat(
          path, " is there already and is not a folder of uid ", order.uid(), "; remove it"));
    }
    return absl::OkStatus();
  }
  if (shared && lchown(path.c_str(), order.uid(), order.gid()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("can't give ", path, " to uid ", order.uid(), ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

std::string MasterAddress(const cluster::v1::Prepare& order) {
  if (order.nodes_size() == 1) return "127.0.0.1";
  const std::string& address = order.nodes(0).data_address();
  std::string host = address.substr(0, address.rfind(':'));
  return absl::StrReplaceAll(host, {{"[", ""}, {"]", ""}});
}

}  // namespace

RankSpawner::RankSpawner(SpawnerOptions options) : options_(std::move(options)) {}

std::string RankSpawner::SocketDirectory(const std::string& job) const {
  return absl::StrCat(options_.run_directory, "/w/", job);
}

std::string RankSpawner::CgroupName(const std::string& job, int rank) const {
  // The run directory tells the daemons of one host apart, and stays the same when one restarts.
  return absl::StrCat("ringd-",
                      absl::Hex(Fnv1a(options_.run_directory) & 0xffffffff, absl::kZeroPad8), "-",
                      job, "-", rank);
}

std::string RankSpawner::LogDirectory(const cluster::v1::Prepare& order) const {
  if (!order.spec().output_directory().empty()) return order.spec().output_directory();
  return absl::StrCat(options_.log_directory, "/", order.job());
}

std::string RankSpawner::LogPath(const cluster::v1::Prepare& order, int rank) const {
  return absl::StrCat(LogDirectory(order), "/rank-", rank, ".log");
}

node::v1::WorkerSpec RankSpawner::MakeSpec(const cluster::v1::Prepare& order, int rank) const {
  const cluster::v1::GenerationNode& here = order.nodes(order.node_index());
  const cluster::v1::GenerationNode& last = order.nodes(order.nodes_size() - 1);
  node::v1::WorkerSpec spec;
  spec.set_job(order.job());
  spec.set_token(order.token());
  node::v1::RankLayout* layout = spec.mutable_layout();
  layout->set_rank(rank);
  layout->set_size(last.first_rank() + last.rank_count());
  layout->set_local_rank(rank - here.first_rank());
  layout->set_local_size(here.rank_count());
  layout->set_node_rank(order.node_index());
  layout->set_node_count(order.nodes_size());
  spec.set_node(options_.node);
  spec.set_daemon_socket(absl::StrCat("unix:", options_.daemon_socket));
  spec.set_worker_socket(absl::StrCat(SocketDirectory(order.job()), "/", rank, ".sock"));
  *spec.mutable_command() = order.spec().command();
  *spec.mutable_environment() = order.spec().environment();
  spec.set_working_directory(order.spec().working_directory());
  spec.set_log_path(LogPath(order, rank));
  spec.set_uid(order.uid());
  spec.set_gid(order.gid());
  spec.set_user(order.user());
  spec.set_switch_user(options_.shared);
  spec.set_embedded(order.embedded());
  const absl::Duration reattach =
      order.embedded() ? absl::ZeroDuration() : options_.reattach_timeout;
  spec.mutable_reattach_timeout()->set_seconds(absl::ToInt64Seconds(reattach));
  spec.mutable_reattach_timeout()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(reattach % absl::Seconds(1))));
  if (order.spec().has_grace()) *spec.mutable_grace() = order.spec().grace();
  spec.set_arena_bytes(options_.arena_bytes);
  spec.set_arena_max_bytes(options_.arena_max_bytes);
  spec.set_slots_used(here.rank_count());
  spec.set_cpus_per_rank(order.spec().cpus_per_rank());
  spec.set_umask(order.spec().umask());
  spec.set_master_address(MasterAddress(order));
  // From the token: two jobs of the same name (embedded runs) on one host get different ports.
  spec.set_master_port(kFirstMasterPort + static_cast<int>(Fnv1a(order.token()) % kMasterPorts));
  return spec;
}

SweepOptions RankSpawner::MakeSweep(const cluster::v1::Prepare& order, int rank) const {
  SweepOptions options;
  options.uid = order.uid();
  options.worker_socket = absl::StrCat(SocketDirectory(order.job()), "/", rank, ".sock");
  if (!options_.cgroup_parent.empty()) {
    options.cgroup = absl::StrCat(options_.cgroup_parent, "/", CgroupName(order.job(), rank));
  }
  return options;
}

absl::Status RankSpawner::MakeDirectories(const cluster::v1::Prepare& order) const {
  RINGD_RETURN_IF_ERROR(
      MakeUserDirectory(SocketDirectory(order.job()), 0700, order, options_.shared));
  if (!order.spec().output_directory().empty())
    return absl::OkStatus();  // The worker makes it, as the user.
  return MakeUserDirectory(LogDirectory(order), 0700, order, options_.shared);
}

absl::Status RankSpawner::CheckCommand(const cluster::v1::Prepare& order) const {
  const cluster::v1::GenerationNode& here = order.nodes(order.node_index());
  const int rank = here.first_rank() + here.rank_count() - 1;  // Has the longest socket path.
  node::v1::WorkerSpec spec = MakeSpec(order, rank);
  if (spec.worker_socket().size() >= sizeof(sockaddr_un{}.sun_path)) {
    return absl::UnavailableError(absl::StrCat("the path of a rank's socket, ",
                                               spec.worker_socket(),
                                               ", is too long; choose a shorter run_directory"));
  }
  spec.set_check_log_folder(!order.spec().output_directory().empty());
  RINGD_ASSIGN_OR_RETURN(const UniqueFd memory, SpecMemory(spec));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError("no descriptors left");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  SpawnOptions spawn;
  spawn.argv = {options_.worker_program, "--check-fd", "3"};
  spawn.environment = {kWorkerPath};
  spawn.new_session = true;
  spawn.fds = {{1, writer.get()}, {2, writer.get()}, {3, memory.get()}};
  absl::StatusOr<Child> child = ringd::Spawn(spawn);
  if (!child.ok()) return absl::UnavailableError(child.status().message());
  writer.reset();
  const absl::Time deadline = absl::Now() + kCheckTimeout;
  const std::string reason = ReadAll(reader.get(), deadline);
  absl::StatusOr<ExitStatus> exit = WaitForExit(*child, deadline - absl::Now());
  if (!exit.ok()) {
    kill(child->pid, SIGKILL);
    exit = WaitForExit(*child, absl::InfiniteDuration());
    return absl::UnavailableError(absl::StrCat("checking the command took longer than ",
                                               absl::FormatDuration(kCheckTimeout),
                                               "; does its folder's file system answer?"));
  }
  if (exit->signal == 0 && exit->exit_code == 0) return absl::OkStatus();
  if (exit->signal == 0 && exit->exit_code == kBadInputCode)
    return absl::InvalidArgumentError(reason);
  return absl::UnavailableError(
      absl::StrCat("the command could not be checked: ringd-worker ended with ",
                   exit->signal != 0 ? "signal " : "code ",
                   exit->signal != 0 ? exit->signal : exit->exit_code, " ", reason));
}

absl::StatusOr<Child> RankSpawner::Spawn(const cluster::v1::Prepare& order, int rank) const {
  RINGD_RETURN_IF_ERROR(MakeDirectories(order));
  node::v1::WorkerSpec spec = MakeSpec(order, rank);
  const bool own_log_directory = order.spec().output_directory().empty();
  if (order.generation() <= 1 && (own_log_directory || !options_.shared)) {
    // Of an older job of this name: a new one begins with empty logs.
    unlink(spec.log_path().c_str());
    unlink(absl::StrCat(spec.log_path(), ".index").c_str());
  }
  if (!options_.cgroup_parent.empty()) {
    const absl::StatusOr<std::string> cgroup =
        MakeCgroup(options_.cgroup_parent, CgroupName(order.job(), rank));
    if (cgroup.ok()) {
      spec.set_cgroup(*cgroup);
    } else {
      GetLogger("ranks")->debug("no cgroup job={} rank={} reason={}", order.job(), rank,
                                std::string(cgroup.status().message()));
    }
  }
  RINGD_ASSIGN_OR_RETURN(const UniqueFd memory, SpecMemory(spec));
  SpawnOptions spawn;
  spawn.argv = {options_.worker_program, "--spec-fd", "3"};
  spawn.environment = {kWorkerPath};
  spawn.new_session = true;
  spawn.fds = {{2, STDERR_FILENO}, {3, memory.get()}};
  return ringd::Spawn(spawn);
}

void RankSpawner::RemoveSockets(const std::string& job) const {
  rmdir(SocketDirectory(job).c_str());
}

}  // namespace ringd::daemon
