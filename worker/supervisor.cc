#include "worker/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/memory_limit.h"
#include "common/base/futex.h"
#include "common/base/version.h"
#include "common/log/log.h"
#include "proto/arena.h"
#include "worker/process/descendants.h"

namespace ringd::worker {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr absl::Duration kOrphanGrace = absl::Seconds(2);  // When the daemon is gone for good.
constexpr absl::Duration kHelperGrace = absl::Seconds(2);  // For what the rank left behind.
constexpr int64_t kKillAgainMicros = 50'000;       // A process may fork while it is being killed.
constexpr int64_t kUnkillableMicros = 10'000'000;  // Then it hangs in the kernel.
constexpr int64_t kAcknowledgeMicros = 60'000'000;

int64_t After(absl::Duration duration) {
  return MonotonicMicros() + absl::ToInt64Microseconds(std::max(duration, absl::ZeroDuration()));
}

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

node::v1::AttachRequest MakeAttach(const node::v1::WorkerSpec& spec) {
  node::v1::AttachRequest attach;
  attach.set_job(spec.job());
  attach.set_rank(spec.layout().rank());
  attach.set_token(spec.token());
  attach.set_layout_version(arena::kLayoutVersion);
  attach.set_version(kVersion);
  return attach;
}

}  // namespace

sigset_t SupervisedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&set, signal);
  return set;
}

Supervisor::Supervisor(const node::v1::WorkerSpec& spec, PreparedRank rank)
    : spec_(spec),
      rank_(std::move(rank)),
      oom_(OwnMemoryCgroup()),
      signals_([] {
        const sigset_t set = SupervisedSignals();
        return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
      }()),
      kill_at_us_(kNever),
      give_up_at_us_(kNever) {}

int Supervisor::Run() {
  DaemonLine::Options options;
  options.address = spec_.daemon_socket();
  options.attach = MakeAttach(spec_);
  if (!spec_.embedded()) options.reattach_timeout = ToDuration(spec_.reattach_timeout());
  line_ = std::make_unique<DaemonLine>(options,
                                       [this](LineEvent event) { events_.Post(std::move(event)); });
  while (state_ != State::kDone) {
    PollOnce();
    HandleSignals();
    HandleEvents();
    HandleTimers();
  }
  if (clients_ != nullptr) clients_->Stop();
  unlink(spec_.worker_socket().c_str());
  line_.reset();
  return acknowledged_ ? 0 : 1;
}

void Supervisor::PollOnce() {
  pollfd entries[] = {{signals_.get(), POLLIN, 0}, {events_.event_fd(), POLLIN, 0}};
  const int64_t deadline_us = std::min(kill_at_us_, give_up_at_us_);
  int timeout_ms = -1;
  if (deadline_us != kNever) {
    const int64_t left_us = std::max<int64_t>(0, deadline_us - MonotonicMicros());
    timeout_ms = static_cast<int>(std::min<int64_t>(left_us / 1000 + 1, INT32_MAX));
  }
  poll(entries, 2, timeout_ms);
}

void Supervisor::HandleSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (state_ == State::kAttaching) state_ = State::kDone;
    Terminate(ToDuration(spec_.grace()), absl::StrCat("ringd-worker got signal ", info.ssi_signo));
  }
  Reap();
}

void Supervisor::HandleEvents() {
  for (LineEvent& event : events_.Take()) {
    switch (event.kind) {
      case LineEvent::Kind::kAttached:
        OnAttached(event.attached);
        break;
      case LineEvent::Kind::kOrder:
        OnOrder(event.order);
        break;
      case LineEvent::Kind::kLost:
        GetLogger("worker")->warn("daemon lost error={}", std::string(event.status.message()));
        if (clients_ != nullptr) clients_->LoseSession();
        break;
      case LineEvent::Kind::kGivenUp:
        OnGivenUp(event.status);
        break;
    }
  }
}

void Supervisor::HandleTimers() {
  const int64_t now_us = MonotonicMicros();
  if ((state_ == State::kRunning || state_ == State::kSweeping) && now_us >= kill_at_us_) {
    if (state_ == State::kRunning) killed_by_us_ = true;
    SignalDescendants(SIGKILL, spec_.cgroup());
    kill_at_us_ = now_us + kKillAgainMicros;
    if (give_up_at_us_ == kNever) give_up_at_us_ = now_us + kUnkillableMicros;
  }
  if (now_us < give_up_at_us_) return;
  if (state_ == State::kSweeping) {
    GetLogger("worker")->error("processes left behind that can't be killed");
    FinishRank();
  } else if (state_ == State::kReporting) {
    state_ = State::kDone;
  } else {
    give_up_at_us_ = kNever;  // The rank's own process hangs in the kernel: nothing is over yet.
  }
}

void Supervisor::OnAttached(const node::v1::AttachResponse& session) {
  if (clients_ != nullptr) clients_->SetSession(session);
  if (state_ == State::kAttaching) {
    StartRank(session);
  } else if (state_ == State::kRunning) {
    node::v1::WorkerReport report;
    report.mutable_started()->set_pid(rank_.process->pid());
    line_->Send(report);
  } else if (state_ == State::kReporting) {
    Report();
  }
}

void Supervisor::OnOrder(const node::v1::WorkerOrder& order) {
  switch (order.order_case()) {
    case node::v1::WorkerOrder::kSignal:
      return SendSignal(order.signal().signal());
    case node::v1::WorkerOrder::kTerminate:
      return Terminate(ToDuration(order.terminate().grace()), order.terminate().reason());
    case node::v1::WorkerOrder::kAcknowledge:
      if (state_ != State::kReporting) return;
      acknowledged_ = true;
      state_ = State::kDone;
      return;
    case node::v1::WorkerOrder::kAttached:
    case node::v1::WorkerOrder::ORDER_NOT_SET:
      return;
  }
}

void Supervisor::OnGivenUp(const absl::Status& status) {
  line_gone_ = true;
  GetLogger("worker")->warn("daemon given up error={}", std::string(status.message()));
  if (clients_ != nullptr) clients_->LoseSession();
  if (state_ == State::kAttaching || state_ == State::kReporting) {
    state_ = State::kDone;
    return;
  }
  Terminate(std::min(kOrphanGrace, ToDuration(spec_.grace())), "the daemon is gone");
}

void Supervisor::StartRank(const node::v1::AttachResponse& session) {
  if (rank_.problem.ok() && reaped_early_)
    rank_.problem = absl::InternalError("the process ended before its start");
  if (rank_.problem.ok()) {
    RankArena::Options arena;
    arena.arena_bytes = spec_.arena_bytes();
    arena.arena_max_bytes = spec_.arena_max_bytes();
    arena.read_limit = [cgroup = spec_.cgroup()] { return session::ReadMemoryLimit(cgroup); };
    arena.local_ranks = spec_.layout().local_size();
    arena.attach = [this] { return line_->Attach(); };
    clients_ = std::make_unique<ClientServer>(spec_, std::move(rank_.listener), std::move(arena));
    clients_->SetSession(session);
    logs_ = std::make_unique<LogPump>(rank_.process->TakeStdout(), rank_.process->TakeStderr(),
                                      std::move(rank_.log));
    rank_.problem = rank_.process->Start();
  }
  if (!rank_.problem.ok()) {
    report_.mutable_failed()->set_reason(std::string(rank_.problem.message()));
    rank_.process.reset();
    state_ = State::kReporting;
    return Report();
  }
  state_ = State::kRunning;
  GetLogger("worker")->info("rank started job={} rank={} pid={}", spec_.job(),
                            spec_.layout().rank(), rank_.process->pid());
  node::v1::WorkerReport report;
  report.mutable_started()->set_pid(rank_.process->pid());
  line_->Send(report);
}

void Supervisor::Terminate(absl::Duration grace, const std::string& reason) {
  if (state_ != State::kRunning) return;
  GetLogger("worker")->info("rank told to end job={} rank={} grace={} reason={}", spec_.job(),
                            spec_.layout().rank(), absl::FormatDuration(grace), reason);
  rank_.process->SignalGroup(SIGTERM);
  rank_.process->SignalGroup(SIGCONT);
  kill_at_us_ = std::min(kill_at_us_, After(grace));
}

void Supervisor::SendSignal(int signal) {
  if (state_ != State::kRunning || signal <= 0 || signal > SIGRTMAX) return;
  if (signal == SIGKILL) killed_by_us_ = true;
  if (!clients_->SignalClient(signal)) rank_.process->Signal(signal);
}

void Supervisor::Reap() {
  while (true) {
    int status = 0;
    rusage usage;
    const pid_t pid = wait4(-1, &status, WNOHANG, &usage);
    if (pid < 0 && state_ == State::kSweeping) return FinishRank();  // Nothing is left.
    if (pid <= 0) return;
    if (rank_.process == nullptr || pid != rank_.process->pid()) continue;
    if (state_ == State::kRunning) OnRankEnded(status, usage);
    if (state_ == State::kAttaching) reaped_early_ = true;
  }
}

void Supervisor::OnRankEnded(int wait_status, const rusage& usage) {
  node::v1::RankExited* exited = report_.mutable_exited();
  if (WIFSIGNALED(wait_status)) {
    exited->set_signal(WTERMSIG(wait_status));
  } else {
    exited->set_exit_code(WEXITSTATUS(wait_status));
  }
  exited->set_peak_memory_bytes(static_cast<uint64_t>(usage.ru_maxrss) * 1024);
  state_ = State::kSweeping;
  if (SignalDescendants(SIGTERM, spec_.cgroup()) > 0) SignalDescendants(SIGCONT, spec_.cgroup());
  kill_at_us_ = std::min(kill_at_us_, After(std::min(kHelperGrace, ToDuration(spec_.grace()))));
  give_up_at_us_ = kNever;
}

void Supervisor::FinishRank() {
  node::v1::RankExited* exited = report_.mutable_exited();
  exited->set_stderr_tail(logs_->Finish());
  exited->set_oom_killed(EndedByOom());
  exited->set_reason(ExitReason());
  clients_->Stop();
  GetLogger("worker")->info("rank ended job={} rank={} exit_code={} signal={} {}", spec_.job(),
                            spec_.layout().rank(), exited->exit_code(), exited->signal(),
                            exited->reason());
  kill_at_us_ = kNever;
  state_ = State::kReporting;
  Report();
}

// A group of the rank's own counts its processes alone: one of them was killed, and the rank
// failed. In a group that others share only a SIGKILL can be taken for it.
bool Supervisor::EndedByOom() const {
  const node::v1::RankExited& exited = report_.exited();
  const bool own_group = !spec_.cgroup().empty() && oom_.cgroup() == spec_.cgroup();
  const bool suspect = own_group ? exited.signal() != 0 || exited.exit_code() != 0
                                 : exited.signal() == SIGKILL && !killed_by_us_;
  return suspect && oom_.Killed();
}

std::string Supervisor::ExitReason() const {
  const node::v1::RankExited& exited = report_.exited();
  if (exited.oom_killed()) return oom_.Describe();
  if (exited.signal() != SIGKILL || killed_by_us_) return "";
  return "killed by SIGKILL from outside ringd (the kernel's OOM killer, or kill -9)";
}

void Supervisor::Report() {
  give_up_at_us_ = MonotonicMicros() + kAcknowledgeMicros;
  if (line_gone_) {
    state_ = State::kDone;
    return;
  }
  line_->Send(report_);
}

}  // namespace ringd::worker
