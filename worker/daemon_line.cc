#include "worker/daemon_line.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/status/macros.h"

namespace ringd::worker {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLastBackoff = absl::Seconds(1);
constexpr absl::Duration kAttachTimeout = absl::Seconds(5);

// Whether it may help to try again later.
bool IsAbsence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) || absl::IsAborted(status) ||
         absl::IsUnknown(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

DaemonLine::DaemonLine(Options options, OnEvent on_event)
    : options_(std::move(options)), on_event_(std::move(on_event)), thread_([this] { Run(); }) {}

DaemonLine::~DaemonLine() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    stopped_changed_.SignalAll();
    if (connection_ != nullptr) connection_->context.TryCancel();
  }
  thread_.join();
}

bool DaemonLine::Send(const node::v1::WorkerReport& report) {
  MutexLock write_lock(&write_mu_);
  const std::shared_ptr<Connection> connection = Attached();
  return connection != nullptr && connection->stream->Write(report);
}

absl::StatusOr<node::v1::AttachResponse> DaemonLine::Attach() {
  const std::shared_ptr<Connection> connection = Attached();
  if (connection == nullptr) return absl::UnavailableError("the daemon is gone");
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kAttachTimeout));
  node::v1::AttachResponse response;
  RINGD_RETURN_IF_ERROR(FromGrpc(connection->stub->Attach(&context, options_.attach, &response)));
  return response;
}

void DaemonLine::Run() {
  absl::Duration backoff = kFirstBackoff;
  absl::Time last_there = absl::Now();
  while (true) {
    bool attached = false;
    const absl::Status status = RunStream(&attached);
    if (attached) {
      last_there = absl::Now();
      backoff = kFirstBackoff;
    }
    LineEvent event;
    event.status = status;
    const bool again = IsAbsence(status) && absl::Now() - last_there < options_.reattach_timeout;
    event.kind = again ? LineEvent::Kind::kLost : LineEvent::Kind::kGivenUp;
    if (!again || attached) on_event_(event);
    if (!again || StoppedWithin(backoff)) return;
    backoff = std::min(backoff * 2, kLastBackoff);
  }
}

absl::Status DaemonLine::RunStream(bool* attached) {
  RINGD_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Open());
  node::v1::WorkerReport hello;
  *hello.mutable_attach() = options_.attach;
  node::v1::WorkerOrder order;
  if (connection->stream->Write(hello) && connection->stream->Read(&order) &&
      order.has_attached()) {
    *attached = true;
    SetAttached(true);
    LineEvent event;
    event.kind = LineEvent::Kind::kAttached;
    event.attached = order.attached();
    on_event_(event);
    while (connection->stream->Read(&order)) {
      event.kind = LineEvent::Kind::kOrder;
      event.order = order;
      on_event_(event);
    }
  }
  SetAttached(false);
  connection->context.TryCancel();  // Where the daemon said something else than `attached`.
  MutexLock write_lock(&write_mu_);
  const absl::Status status = FromGrpc(connection->stream->Finish());
  return status.ok() ? absl::UnavailableError("the daemon has closed the line") : status;
}

absl::StatusOr<std::shared_ptr<DaemonLine::Connection>> DaemonLine::Open() {
  RINGD_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         Connect(options_.address, TlsFiles{}));
  auto connection = std::make_shared<Connection>();
  connection->stub = node::v1::Node::NewStub(channel);
  MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError("stopped");
  connection->stream = connection->stub->Supervise(&connection->context);
  connection_ = connection;
  return connection;
}

void DaemonLine::SetAttached(bool attached) {
  MutexLock lock(&mu_);
  attached_ = attached;
}

std::shared_ptr<DaemonLine::Connection> DaemonLine::Attached() {
  MutexLock lock(&mu_);
  return attached_ ? connection_ : nullptr;
}

bool DaemonLine::StoppedWithin(absl::Duration duration) {
  const absl::Time deadline = absl::Now() + duration;
  MutexLock lock(&mu_);
  while (!stopped_ && absl::Now() < deadline)
    stopped_changed_.WaitWithTimeout(&mu_, deadline - absl::Now());
  return stopped_;
}

}  // namespace ringd::worker
