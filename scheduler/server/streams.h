// gRPC's reactors, reduced to two rules: what happens on gRPC's threads is posted to the state
// thread, and the state thread alone starts operations. No locks.
#ifndef RINGD_SCHEDULER_SERVER_STREAMS_H_
#define RINGD_SCHEDULER_SERVER_STREAMS_H_

#include <deque>
#include <functional>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "proto/cluster.grpc.pb.h"
#include "scheduler/server/loop.h"

namespace ringd::scheduler {

// A stream of messages to a client, one at a time: the next is asked for when the last is written,
// so nothing piles up here.
//
// Life: made by a handler, deletes itself after on_done. Thread-bound: the state thread, but for
// the constructor.
template <class T>
class StreamWriter : public grpc::ServerWriteReactor<T> {
 public:
  explicit StreamWriter(Loop* loop) : loop_(loop) {}

  // Set on the state thread before anything else happens there.
  std::function<void()> on_idle;  // The last message is written.
  std::function<void()> on_done;  // The call is over; `this` goes after it.

  bool idle() const { return !busy_ && !ended_; }
  bool ended() const { return ended_; }

  // REQUIRES: idle().
  void Send(T message) {
    message_ = std::move(message);
    busy_ = true;
    this->StartWrite(&message_);
  }
  // After the message being written; the first status counts.
  void End(grpc::Status status) {
    if (ended_) return;
    ended_ = true;
    status_ = std::move(status);
    if (!busy_) this->Finish(status_);
  }

  void OnWriteDone(bool ok) override {
    loop_->Post([this, ok] {
      busy_ = false;
      if (ended_) return this->Finish(status_);
      if (!ok) return End(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
      if (on_idle) on_idle();
    });
  }
  void OnCancel() override {
    loop_->Post([this] { End(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone")); });
  }
  void OnDone() override {
    loop_->Post([this] {
      if (on_done) on_done();
      delete this;
    });
  }

 private:
  Loop* const loop_;
  T message_;
  grpc::Status status_;
  bool busy_ = false;
  bool ended_ = false;
};

// A daemon's Join stream.
//
// Life and threads as StreamWriter's; Begin (any thread) starts it.
class NodeStream : public grpc::ServerBidiReactor<ringd::cluster::v1::NodeReport,
                                                  ringd::cluster::v1::NodeOrder> {
 public:
  // Orders that wait for a daemon that doesn't read: more than a job start on one node takes, less
  // than hurts.
  static constexpr size_t kMaxOrders = 4096;

  explicit NodeStream(Loop* loop) : loop_(loop) {}

  std::function<void(ringd::cluster::v1::NodeReport)> on_report;
  std::function<void()> on_broken;  // Once: no report will come any more.
  std::function<void()> on_done;

  void Begin() { StartRead(&report_); }

  void Send(ringd::cluster::v1::NodeOrder order) {
    if (ended_) return;
    if (orders_.size() >= kMaxOrders) {
      return End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                              "this daemon does not read its orders"));
    }
    orders_.push_back(std::move(order));
    Next();
  }
  // After the orders sent before.
  void End(grpc::Status status) {
    if (ended_) return;
    ended_ = true;
    status_ = std::move(status);
    Next();
  }

  void OnReadDone(bool ok) override {
    loop_->Post([this, ok] {
      if (!ok) return Break();
      on_report(std::move(report_));
      report_.Clear();
      if (!finished_) StartRead(&report_);
    });
  }
  void OnWriteDone(bool ok) override {
    loop_->Post([this, ok] {
      writing_ = false;
      orders_.pop_front();
      if (!ok) orders_.clear();
      Next();
    });
  }
  void OnCancel() override {
    loop_->Post([this] { Break(); });
  }
  void OnDone() override {
    loop_->Post([this] {
      Break();
      if (on_done) on_done();
      delete this;
    });
  }

 private:
  void Break() {
    if (!broken_ && on_broken) on_broken();
    broken_ = true;
    if (!writing_) orders_.clear();
    End(grpc::Status::OK);
    Next();
  }
  void Next() {
    if (writing_ || finished_) return;
    if (!orders_.empty()) {
      writing_ = true;
      return StartWrite(&orders_.front());
    }
    if (!ended_) return;
    finished_ = true;
    Finish(status_);
  }

  Loop* const loop_;
  ringd::cluster::v1::NodeReport report_;
  std::deque<ringd::cluster::v1::NodeOrder> orders_;  // The first is being written while writing_.
  grpc::Status status_;
  bool writing_ = false;
  bool broken_ = false;
  bool ended_ = false;
  bool finished_ = false;
};

// A client's Hold stream: its first message says what for.
//
// Life and threads as StreamWriter's.
class HoldStream : public grpc::ServerReadReactor<ringd::cluster::v1::HoldRequest> {
 public:
  explicit HoldStream(Loop* loop) : loop_(loop) {}

  std::function<void(const ringd::cluster::v1::HoldRequest&)> on_first;
  std::function<void()> on_done;

  void Begin() { StartRead(&request_); }

  void End(grpc::Status status) {
    if (std::exchange(ended_, true)) return;
    Finish(std::move(status));
  }

  void OnReadDone(bool ok) override {
    loop_->Post([this, ok] {
      if (!ok) return End(grpc::Status::OK);
      if (!std::exchange(named_, true)) on_first(request_);
      if (!ended_) StartRead(&request_);
    });
  }
  void OnCancel() override {
    loop_->Post([this] { End(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone")); });
  }
  void OnDone() override {
    loop_->Post([this] {
      if (on_done) on_done();
      delete this;
    });
  }

 private:
  Loop* const loop_;
  ringd::cluster::v1::HoldRequest request_;
  bool named_ = false;
  bool ended_ = false;
};

// A call that waits for long and whose end at the caller matters.
//
// Life and threads as StreamWriter's.
class WaitingCall : public grpc::ServerUnaryReactor {
 public:
  explicit WaitingCall(Loop* loop) : loop_(loop) {}

  std::function<void()> on_cancel;  // Not after End.

  void End(grpc::Status status) {
    if (!std::exchange(ended_, true)) Finish(std::move(status));
  }

  void OnCancel() override {
    loop_->Post([this] {
      if (!ended_ && on_cancel) on_cancel();
      End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone"));
    });
  }
  void OnDone() override {
    loop_->Post([this] { delete this; });
  }

 private:
  Loop* const loop_;
  bool ended_ = false;
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_SERVER_STREAMS_H_
