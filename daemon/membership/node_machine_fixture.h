// A NodeMachine with a clock of its own, for tests.
#ifndef RINGD_DAEMON_MEMBERSHIP_NODE_MACHINE_FIXTURE_H_
#define RINGD_DAEMON_MEMBERSHIP_NODE_MACHINE_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/membership/node_machine.h"
#include "gtest/gtest.h"

namespace ringd::daemon {

inline constexpr uint32_t kTestUid = 1234;

// Drives a machine with a clock of its own and keeps the actions of the last event.
class NodeMachineTest : public testing::Test {
 protected:
  static NodeMachineOptions Options() {
    NodeMachineOptions options;
    options.hello.set_name("a");
    options.hello.set_uid(kTestUid);
    options.reattach_timeout = absl::Seconds(60);
    return options;
  }

  explicit NodeMachineTest(NodeMachineOptions options = Options())
      : machine_(std::make_unique<NodeMachine>(std::move(options))) {}

  void Restart() { machine_ = std::make_unique<NodeMachine>(Options()); }

  const Actions& Do(Event event) {
    now_.wall_us += 1;
    actions_ = machine_->Handle(event, now_);
    return actions_;
  }
  const Actions& Order(const cluster::v1::NodeOrder& order) {
    return Do(event::SchedulerOrder{order});
  }
  const Actions& Advance(absl::Duration duration) {
    now_.monotonic += duration;
    return Do(event::Tick{});
  }

  // Actions of one kind among the last ones.
  template <typename A>
  std::vector<A> Only() const {
    std::vector<A> found;
    for (const Action& action : actions_) {
      if (const A* match = std::get_if<A>(&action); match != nullptr) found.push_back(*match);
    }
    return found;
  }
  std::vector<cluster::v1::NodeReport> Reports(cluster::v1::NodeReport::ReportCase which) const {
    std::vector<cluster::v1::NodeReport> found;
    for (const action::SendReport& each : Only<action::SendReport>()) {
      if (each.report.report_case() == which) found.push_back(each.report);
    }
    return found;
  }

  const Actions& Welcome(uint64_t term = 1) {
    cluster::v1::NodeOrder order;
    order.mutable_welcome()->set_term(term);
    order.mutable_welcome()->mutable_heartbeat_interval()->set_seconds(1);
    return Order(order);
  }
  void Connect() {
    Do(event::SchedulerUp{});
    Welcome();
  }
  // Ranks 0..ranks-1 here, and ranks more on node b if there are two nodes.
  static cluster::v1::NodeOrder PrepareOrder(int ranks, int nodes = 1) {
    cluster::v1::NodeOrder order;
    cluster::v1::Prepare* prepare = order.mutable_prepare();
    prepare->set_job("j-1");
    prepare->set_generation(1);
    for (int i = 0; i < nodes; ++i) {
      auto* node = prepare->add_nodes();
      node->set_name(i == 0 ? "a" : "b");
      node->set_first_rank(i * ranks);
      node->set_rank_count(ranks);
    }
    prepare->set_key(std::string(32, 'k'));
    prepare->set_token(std::string(32, 't'));
    prepare->mutable_spec()->add_command("true");
    prepare->mutable_spec()->mutable_grace()->set_seconds(10);
    prepare->set_uid(kTestUid);
    return order;
  }
  void PrepareJob(int ranks, int nodes = 1) {
    Connect();
    Order(PrepareOrder(ranks, nodes));
    Do(event::CommandChecked{"j-1", 1, absl::OkStatus()});
    Do(event::RingPrepared{"j-1", 1, absl::OkStatus()});
  }
  const Actions& Start() {
    cluster::v1::NodeOrder order;
    order.mutable_start()->set_job("j-1");
    order.mutable_start()->set_generation(1);
    return Order(order);
  }
  void RunJob(int ranks, int nodes = 1) {
    PrepareJob(ranks, nodes);
    Start();
    for (int rank = 0; rank < ranks; ++rank) {
      Do(event::WorkerSpawned{"j-1", rank, WorkerPid(rank), 77, "/log"});
      Do(event::WorkerAttached{"j-1", rank, static_cast<uint64_t>(rank + 1), WorkerPid(rank), 77});
      node::v1::WorkerReport report;
      report.mutable_started()->set_pid(200 + rank);
      Do(event::WorkerReported{"j-1", rank, report});
    }
  }
  static pid_t WorkerPid(int rank) { return 100 + rank; }
  const Actions& Exit(int rank, int code, int signal = 0, const std::string& tail = "") {
    node::v1::WorkerReport report;
    report.mutable_exited()->set_exit_code(code);
    report.mutable_exited()->set_signal(signal);
    report.mutable_exited()->set_stderr_tail(tail);
    return Do(event::WorkerReported{"j-1", rank, report});
  }
  void EndWorker(int rank) {
    Do(event::WorkerEnded{"j-1", rank, WorkerPid(rank), "exited with code 0"});
    Do(event::RankSwept{"j-1", rank});
  }
  const Actions& Stop(int64_t notice_s, int64_t grace_s, bool with_cause = true) {
    cluster::v1::NodeOrder order;
    order.mutable_stop()->set_job("j-1");
    order.mutable_stop()->mutable_notice()->set_seconds(notice_s);
    order.mutable_stop()->mutable_grace()->set_seconds(grace_s);
    if (with_cause) {
      order.mutable_stop()->mutable_cause()->set_rank(9);
      order.mutable_stop()->mutable_cause()->set_node("b");
      order.mutable_stop()->mutable_cause()->set_signal(9);
    }
    return Order(order);
  }

  std::unique_ptr<NodeMachine> machine_;
  Moment now_{absl::UnixEpoch() + absl::Hours(1), 5000};
  Actions actions_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_MEMBERSHIP_NODE_MACHINE_FIXTURE_H_
