#include "daemon/membership/scheduler_link.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log/log.h"

namespace ringd::daemon {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);

}  // namespace

SchedulerLink::SchedulerLink(SchedulerLinkOptions options) : options_(std::move(options)) {}

SchedulerLink::~SchedulerLink() { Stop(); }

void SchedulerLink::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void SchedulerLink::Start(Events events) {
  events_ = std::move(events);
  thread_ = std::thread(&SchedulerLink::Run, this);
}

void SchedulerLink::Send(cluster::v1::NodeReport report) {
  MutexLock lock(&mu_);
  if (!open_) return;
  if (reports_.size() >= kMaxWaitingReports) {
    disconnect_reason_ = "the scheduler does not read its stream";
    context_->TryCancel();
    return;
  }
  reports_.push_back(std::move(report));
  changed_.SignalAll();
}

void SchedulerLink::Disconnect(const std::string& reason) {
  MutexLock lock(&mu_);
  if (!open_) return;
  disconnect_reason_ = reason;
  context_->TryCancel();
}

bool SchedulerLink::StoppedWithin(absl::Duration duration) {
  const absl::Time deadline = absl::Now() + duration;
  MutexLock lock(&mu_);
  while (!stopping_ && absl::Now() < deadline)
    changed_.WaitWithTimeout(&mu_, deadline - absl::Now());
  return stopping_;
}

void SchedulerLink::Run() {
  absl::BitGen random;
  absl::Duration backoff = kFirstBackoff;
  std::string last_reason;
  do {
    std::string reason;
    const bool was_connected = RunStream(&reason);
    if (StoppedWithin(absl::ZeroDuration())) return;
    if (was_connected) {
      GetLogger("membership")
          ->warn("scheduler lost address={} reason={} (retrying)", options_.address, reason);
      backoff = kFirstBackoff;
      last_reason.clear();
    } else {
      if (reason != last_reason) {
        GetLogger("membership")
            ->warn("scheduler unreachable address={} reason={} (retrying)", options_.address,
                   reason);
      }
      last_reason = reason;
      backoff = std::min(backoff * 2, kMaxBackoff);
      events_.unreachable(reason);
    }
  } while (!StoppedWithin(backoff * absl::Uniform(random, 0.5, 1.0)));
}

std::string SchedulerLink::Explain(const grpc::Status& status) const {
  std::string text = status.error_message();
  const bool tcp = !absl::StartsWith(options_.address, "unix:");
  // Who refuses at TLS closes the connection without a word.
  if (!tcp || status.error_code() != grpc::StatusCode::UNAVAILABLE ||
      absl::StrContains(text, "refused")) {
    return text;
  }
  absl::StrAppend(&text, options_.tls.authority.empty()
                             ? "; if it uses TLS, set tls_certificate, tls_key and tls_authority"
                             : "; does it use TLS, with a certificate of this tls_authority?");
  return text;
}

bool SchedulerLink::RunStream(std::string* reason) {
  // A new channel for each try: an old one's own backoff would come on top of ours.
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
      Connect(options_.address, options_.tls);
  if (!channel.ok()) {
    *reason = std::string(channel.status().message());
    return false;
  }
  const auto stub = cluster::v1::Cluster::NewStub(*channel);
  grpc::ClientContext context;
  {
    MutexLock lock(&mu_);
    if (stopping_) return false;
    context_ = &context;
    open_ = true;
    disconnect_reason_.clear();
    reports_.clear();
  }
  const std::unique_ptr<Stream> stream = stub->Join(&context);
  events_.up();
  std::thread writer(&SchedulerLink::WriteReports, this, stream.get());
  cluster::v1::NodeOrder order;
  bool welcomed = false;
  while (stream->Read(&order)) {
    if (!welcomed) {
      GetLogger("membership")->info("scheduler connected address={}", options_.address);
      welcomed = true;
    }
    events_.order(std::move(order));
    order = cluster::v1::NodeOrder();
  }
  {
    MutexLock lock(&mu_);
    open_ = false;
    changed_.SignalAll();
  }
  context.TryCancel();
  writer.join();
  const grpc::Status status = stream->Finish();
  {
    MutexLock lock(&mu_);
    context_ = nullptr;
    *reason = !disconnect_reason_.empty() ? disconnect_reason_
              : status.ok()               ? "it ended the stream"
                                          : Explain(status);
  }
  events_.down();
  return welcomed;
}

void SchedulerLink::WriteReports(Stream* stream) {
  while (true) {
    cluster::v1::NodeReport report;
    {
      MutexLock lock(&mu_);
      while (reports_.empty() && open_) changed_.Wait(&mu_);
      if (!open_) return;
      report = std::move(reports_.front());
      reports_.pop_front();
    }
    if (!stream->Write(report)) return;
  }
}

}  // namespace ringd::daemon
