// A machine with its surroundings played by the test: time, nodes, store.
#ifndef RINGD_SCHEDULER_STATE_MACHINE_HARNESS_H_
#define RINGD_SCHEDULER_STATE_MACHINE_HARNESS_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "scheduler/state/machine.h"

namespace ringd::scheduler {

inline Caller UserCaller(uint32_t uid = 1000) {
  return {uid, uid, absl::StrCat("user", uid), uid == 0};
}

class MachineHarness {
 public:
  explicit MachineHarness(Machine::Options options = {}) : options_(options) { Restart(); }

  // A new process on the same store: connections are gone.
  void Restart() {
    ++term;
    machine = std::make_unique<Machine>(
        options_, [this](size_t count) { return std::string(count, 'a' + ++random_ % 26); });
    Snapshot snapshot;
    snapshot.term = term;
    snapshot.next_number = next_number_;
    for (const auto& [id, record] : records) snapshot.jobs.push_back({record, specs.at(id)});
    for (const auto& [name, record] : node_records) snapshot.nodes.push_back(record);
    orders.clear();
    Carry(machine->Restore(std::move(snapshot), now));
  }

  void Apply(const Event& event) {
    Carry(machine->Apply(event, now));
    const absl::Status books = machine->CheckInvariants();
    ASSERT_TRUE(books.ok()) << books;
  }

  // In steps of a tick; `alive` nodes send heartbeats.
  void Advance(absl::Duration duration, const std::vector<ConnectionId>& alive = {}) {
    for (absl::Duration passed; passed < duration; passed += kTickInterval) {
      now.wall += kTickInterval;
      now.steady += kTickInterval;
      for (ConnectionId id : alive) Apply(NodeReportEvent{id, {}});
      Apply(TickEvent{});
    }
  }

  ringd::cluster::v1::NodeHello Hello(const std::string& name, int slots) {
    ringd::cluster::v1::NodeHello hello;
    hello.set_name(name);
    hello.set_slots(slots);
    hello.set_data_address(name + ":7472");
    hello.set_pid(++pid_);
    hello.set_shared(true);
    return hello;
  }
  ConnectionId Join(const ringd::cluster::v1::NodeHello& hello) {
    const ConnectionId id = ++connection_;
    Apply(NodeJoinedEvent{id, hello});
    return id;
  }
  ConnectionId Join(const std::string& name, int slots) { return Join(Hello(name, slots)); }
  void Disconnect(ConnectionId id) { Apply(NodeDisconnectedEvent{id}); }

  static ringd::cluster::v1::JobSpec Spec(int ranks, bool queue = true) {
    ringd::cluster::v1::JobSpec spec;
    spec.add_command("train");
    spec.set_ranks(ranks);
    spec.set_queue(queue);
    (*spec.mutable_environment())["SECRET"] = "s3cret";
    return spec;
  }
  Reply LastReply() const { return replies.empty() ? Reply{} : replies.back(); }
  // Id, or why not.
  absl::StatusOr<std::string> Submit(const ringd::cluster::v1::JobSpec& spec, uint32_t uid = 1000,
                                     const std::string& request_id = "") {
    Apply(SubmitEvent{++call_, UserCaller(uid), spec, request_id});
    const Reply reply = LastReply();
    if (!reply.status.ok()) return reply.status;
    return reply.job;
  }
  absl::Status Cancel(const std::string& job, uint32_t uid = 1000) {
    Apply(CancelEvent{++call_, UserCaller(uid), job, ""});
    return LastReply().status;
  }
  absl::Status Signal(const std::string& job, int signal, uint32_t uid = 1000) {
    Apply(SignalEvent{++call_, UserCaller(uid), job, signal});
    return LastReply().status;
  }
  absl::Status Hold(const std::string& job, uint32_t uid = 1000) {
    Apply(HoldEvent{++call_, UserCaller(uid), job});
    return LastReply().status;
  }

  void Prepared(ConnectionId id, const std::string& job, bool ok = true,
                const std::string& reason = "", bool bad_input = false) {
    ringd::cluster::v1::NodeReport report;
    report.mutable_prepared()->set_job(job);
    report.mutable_prepared()->set_generation(Generation(job));
    report.mutable_prepared()->set_ok(ok);
    report.mutable_prepared()->set_reason(reason);
    report.mutable_prepared()->set_bad_input(bad_input);
    Apply(NodeReportEvent{id, report});
  }
  ringd::cluster::v1::RankUpdate Update(const std::string& job, int rank, int pid) {
    ringd::cluster::v1::RankUpdate update;
    update.set_job(job);
    update.set_generation(Generation(job));
    update.set_rank(rank);
    update.set_pid(pid);
    return update;
  }
  ringd::cluster::v1::RankUpdate Exit(const std::string& job, int rank, int code, int signal = 0,
                                      int64_t at_us = 0, bool followed = false) {
    ringd::cluster::v1::RankUpdate update = Update(job, rank, 100 + rank);
    update.set_exited(true);
    update.set_exit_code(code);
    update.set_signal(signal);
    update.set_exited_us(at_us);
    update.set_followed(followed);
    return update;
  }
  void Report(ConnectionId id, const ringd::cluster::v1::RankUpdate& update) {
    ringd::cluster::v1::NodeReport report;
    *report.mutable_rank() = update;
    Apply(NodeReportEvent{id, report});
  }
  void Started(ConnectionId id, const std::string& job, int rank) {
    Report(id, Update(job, rank, 100 + rank));
  }
  void Stalled(ConnectionId id, const std::string& job, const std::string& text, int64_t seconds,
               bool names_rank) {
    ringd::cluster::v1::NodeReport report;
    ringd::cluster::v1::Stalled& stalled = *report.mutable_stalled();
    stalled.set_job(job);
    stalled.set_generation(Shown(job).generation());
    stalled.set_report(text);
    stalled.set_age_us(seconds * 1'000'000);
    stalled.set_names_rank(names_rank);
    Apply(NodeReportEvent{id, report});
  }
  void Cleared(ConnectionId id, const std::string& job, uint64_t generation = 0) {
    ringd::cluster::v1::NodeReport report;
    report.mutable_cleared()->set_job(job);
    report.mutable_cleared()->set_generation(generation);
    Apply(NodeReportEvent{id, report});
  }

  const ringd::cluster::v1::Job& Shown(const std::string& job) const {
    return machine->FindRecord(job)->job();
  }
  ringd::cluster::v1::JobState State(const std::string& job) const { return Shown(job).state(); }
  uint64_t Generation(const std::string& job) const { return Shown(job).generation(); }
  std::string NodeStateOf(const std::string& name) const {
    for (const auto& node : machine->ListNodes()) {
      if (node.name() == name) return node.state();
    }
    return "";
  }
  int Used(const std::string& name) const {
    for (const auto& node : machine->ListNodes()) {
      if (node.name() == name) return node.used();
    }
    return -1;
  }

  using NodeOrder = ringd::cluster::v1::NodeOrder;
  int Count(ConnectionId id, NodeOrder::OrderCase kind) {
    int count = 0;
    for (const NodeOrder& order : orders[id]) count += order.order_case() == kind;
    return count;
  }
  // The last of a kind; fails where there is none.
  NodeOrder Last(ConnectionId id, NodeOrder::OrderCase kind) {
    for (auto it = orders[id].rbegin(); it != orders[id].rend(); ++it) {
      if (it->order_case() == kind) return *it;
    }
    ADD_FAILURE() << "no such order";
    return {};
  }

  std::unique_ptr<Machine> machine;
  Now now{absl::FromUnixSeconds(1700000000), absl::Seconds(1000)};
  uint64_t term = 0;
  std::map<ConnectionId, std::vector<NodeOrder>> orders;
  std::vector<Reply> replies;
  std::vector<CloseConnection> closed;
  std::map<std::string, v1::JobRecord> records;  // The store.
  std::map<std::string, ringd::cluster::v1::JobSpec> specs;
  std::map<std::string, v1::NodeRecord> node_records;

 private:
  void Carry(std::vector<Action> actions) {
    for (Action& action : actions) {  // Writes first, as the machine has them now.
      if (const auto* job = std::get_if<PersistJob>(&action)) {
        if (machine->FindRecord(job->job) == nullptr) continue;
        records[job->job] = *machine->FindRecord(job->job);
        if (job->with_spec) specs[job->job] = *machine->FindSpec(job->job);
      } else if (const auto* gone = std::get_if<DeleteJob>(&action)) {
        records.erase(gone->job);
        specs.erase(gone->job);
      } else if (const auto* node = std::get_if<PersistNode>(&action)) {
        node_records[node->node] = *machine->FindNode(node->node);
      }
    }
    next_number_ = machine->next_number();
    for (Action& action : actions) {
      if (auto* reply = std::get_if<Reply>(&action)) replies.push_back(*reply);
      if (auto* order = std::get_if<SendOrder>(&action))
        orders[order->connection].push_back(std::move(order->order));
      if (auto* close = std::get_if<CloseConnection>(&action)) closed.push_back(*close);
    }
  }

  const Machine::Options options_;
  uint64_t next_number_ = 1;
  int random_ = 0;
  int pid_ = 1000;
  ConnectionId connection_ = 0;
  CallId call_ = 0;
};

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_STATE_MACHINE_HARNESS_H_
