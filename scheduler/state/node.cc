// Nodes: joining, reports, silence, loss; and what of their jobs is theirs to go on with.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "scheduler/state/machine.h"
#include "scheduler/state/text.h"
#include "scheduler/state/times.h"

namespace ringd::scheduler {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.

namespace {

constexpr size_t kMaxNodeNameBytes = 64;
constexpr size_t kMaxAddressBytes = 256;
constexpr size_t kMaxNodes = 20000;

}  // namespace

absl::Status Machine::CheckHello(const NodeHello& hello) const {
  const std::string& name = hello.name();
  if (name.empty() || name.size() > kMaxNodeNameBytes ||
      !std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
               c == '.';
      })) {
    return absl::InvalidArgumentError(
        "a node's name is 1 to 64 letters, digits, '-', '_' or '.': choose another for this "
        "daemon");
  }
  if (hello.slots() < 0 || hello.slots() > kMaxSlotsPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots = ", hello.slots(), " is not 0 to ", kMaxSlotsPerNode));
  }
  if (hello.data_address().empty() || hello.data_address().size() > kMaxAddressBytes) {
    return absl::InvalidArgumentError("data_address is empty or longer than 256 bytes");
  }
  if (nodes_.size() >= kMaxNodes && nodes_.count(name) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this scheduler knows ", nodes_.size(), " nodes already"));
  }
  return absl::OkStatus();
}

// Two daemons of one name would take the ring from one another for ever: the second is refused
// while the first is alive.
bool Machine::RefuseDouble(const NodeJoinedEvent& event, const Node& node) {
  const bool same =
      node.pid == event.hello.pid() || node.record.data_address() == event.hello.data_address();
  if (node.connection == 0 || same || now_.steady - node.heard > 2 * options_.heartbeat_interval)
    return false;
  const std::string reason =
      absl::StrCat("node ", node.record.name(), " is here already (pid ", node.pid, ", ",
                   node.record.data_address(), "): give this daemon another name");
  NodeOrder order;
  order.mutable_refuse()->set_reason(reason);
  actions_.push_back(SendOrder{event.connection, std::move(order)});
  actions_.push_back(CloseConnection{event.connection, absl::AlreadyExistsError(reason)});
  Log(absl::StrCat("node refused reason=\"", reason, "\""), /*warning=*/true);
  return true;
}

void Machine::On(const NodeJoinedEvent& event) {
  const NodeHello& hello = event.hello;
  if (hello.term() > term_) {
    const std::string reason = absl::StrCat("node ", hello.name(), " follows a scheduler of term ",
                                            hello.term(), ", this one has term ", term_);
    Log(reason, /*warning=*/true);
    actions_.push_back(CloseConnection{event.connection, absl::FailedPreconditionError(reason)});
    return;
  }
  if (absl::Status status = CheckHello(hello); !status.ok()) {
    NodeOrder order;
    order.mutable_refuse()->set_reason(std::string(status.message()));
    actions_.push_back(SendOrder{event.connection, std::move(order)});
    actions_.push_back(CloseConnection{event.connection, status});
    Log(absl::StrCat("node refused reason=\"", status.message(), "\""), /*warning=*/true);
    return;
  }
  Node& node = nodes_[hello.name()];
  if (RefuseDouble(event, node)) return;
  if (node.connection != 0) {
    const ConnectionId old = node.connection;
    actions_.push_back(CloseConnection{old, absl::AbortedError("this node has joined again")});
    On(NodeDisconnectedEvent{old});
  }
  TakeUp(&node, event);
  SyncJobs(&node, hello);
  schedule_ = true;
}

void Machine::TakeUp(Node* node, const NodeJoinedEvent& event) {
  const NodeHello& hello = event.hello;
  v1::NodeRecord& record = node->record;
  record.set_name(hello.name());
  record.set_slots(hello.slots());
  record.set_data_address(hello.data_address());
  record.set_shared(hello.shared());
  record.set_uid(hello.uid());
  node->state = Node::State::kUp;
  node->connection = event.connection;
  node->heard = now_.steady;
  node->reason.clear();
  node->version = Truncated(hello.version(), kMaxNodeNameBytes);
  node->pid = hello.pid();
  connections_[event.connection] = hello.name();
  joined_once_ = true;
  actions_.push_back(PersistNode{hello.name()});
  Log(absl::StrCat("node joined node=", hello.name(), " slots=", hello.slots(),
                   " pid=", hello.pid(), " jobs=", hello.jobs_size()));
  NodeOrder order;
  NodeWelcome& welcome = *order.mutable_welcome();
  welcome.set_term(term_);
  SetDuration(options_.heartbeat_interval, welcome.mutable_heartbeat_interval());
  SetDuration(options_.node_timeout, welcome.mutable_node_timeout());
  Order(*node, std::move(order));
}

void Machine::SyncJobs(Node* node, const NodeHello& hello) {
  std::set<std::string> listed;
  for (const RunningJob& running : hello.jobs()) {
    if (!listed.insert(running.job()).second) continue;
    Job* job = Find(running.job());
    const std::string& name = node->record.name();
    const bool ours = IsPartOf(job, name) && running.generation() == job->record.job().generation();
    if (ours) {
      SyncHeldJob(node, job, running);
      continue;
    }
    // Finished, moved on without this node, or never ours: it must go, and its slots are taken
    // until it has.
    Hold(node, running.job(), running.ranks_size());
    Log(absl::StrCat("node holds a job that is over node=", name, " job=", running.job()),
        /*warning=*/true);
    NodeOrder order;
    order.mutable_stop()->set_job(running.job());
    order.mutable_stop()->set_reason("the scheduler has ended this job on this node");
    SetDuration(options_.default_grace, order.mutable_stop()->mutable_grace());
    Order(*node, std::move(order));
  }
  std::vector<std::string> missing;
  for (const auto& [id, slots] : node->held) {
    if (listed.count(id) == 0) missing.push_back(id);
  }
  for (const std::string& id : missing) JobMissing(node, id);
}

void Machine::SyncHeldJob(Node* node, Job* job, const RunningJob& running) {
  if (job->Stopping()) {
    SendStop(*job, *node);
  } else if (job->State() == JOB_STATE_RUNNING) {
    NodeOrder order;  // It may have gone before Start came.
    order.mutable_start()->set_job(job->record.job().id());
    order.mutable_start()->set_generation(job->record.job().generation());
    const auto& ranks = job->record.job().rank();
    const bool pending = std::any_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
      return rank.node() == node->record.name() && rank.state() == "pending";
    });
    const bool started =
        std::any_of(running.ranks().begin(), running.ranks().end(), [](const RankUpdate& rank) {
          return rank.pid() != 0 || rank.exited() || rank.start_failed();
        });
    if (pending && !started) Order(*node, std::move(order));
  }
  for (RankUpdate update : running.ranks()) {
    update.set_job(running.job());
    update.set_generation(running.generation());
    OnRank(node, update);
  }
  RefreshReason(job);
  Changed(*job);
}

// The node has come back without a job that it held.
void Machine::JobMissing(Node* node, const std::string& id) {
  Job* job = Find(id);
  const std::string& name = node->record.name();
  if (!IsPartOf(job, name)) return Release(node, id);
  const bool fails = !job->Stopping() && !AllEndedOn(*job, name);
  Cleared(job, node);
  if (fails) return FailForNode(job, *node, "its daemon came back without the job");
  MaybeFinish(job);
}

void Machine::On(const NodeReportEvent& event) {
  Node* node = FindByConnection(event.connection);
  if (node == nullptr) return;
  node->heard = now_.steady;
  switch (event.report.report_case()) {
    case NodeReport::kPrepared:
      return OnPrepared(node, event.report.prepared());
    case NodeReport::kRank:
      return OnRank(node, event.report.rank());
    case NodeReport::kCleared:
      return OnCleared(node, event.report.cleared());
    case NodeReport::kStalled:
      return OnStalled(node, event.report.stalled());
    default:
      return;
  }
}

void Machine::On(const NodeDisconnectedEvent& event) {
  Node* node = FindByConnection(event.connection);
  connections_.erase(event.connection);
  if (node == nullptr || node->connection != event.connection) return;
  node->connection = 0;
  Log(absl::StrCat("node away node=", node->record.name()), /*warning=*/true);
  if (options_.embedded) return NodeLost(node, "its daemon is gone");
  NodeAway(node);
  const auto held = node->held;
  for (const auto& [id, slots] : held) {
    Job* job = Find(id);
    if (!IsPartOf(job, node->record.name())) continue;
    if (job->State() == JOB_STATE_FORMING) {
      // It can't be placed here again before the node is back, and then says what it holds.
      job->cleared.insert(node->record.name());
      if (job->Stopping()) {
        MaybeFinish(job);
      } else {
        FormAgain(job, absl::StrCat("the daemon of node ", node->record.name(), " went away"));
      }
      continue;
    }
    job->stalls.erase(node->record.name());  // It tells them again when it is back.
    RefreshReason(job);
    Changed(*job);
  }
  schedule_ = true;
}

void Machine::NodeAway(Node* node) {
  node->state = Node::State::kAway;
  node->connection = 0;
  node->away_end = now_.steady + options_.reattach_timeout;
  node->reason = absl::StrCat("waiting up to ", absl::FormatDuration(options_.reattach_timeout),
                              " for its daemon");
}

void Machine::NodeLost(Node* node, const std::string& why) {
  const std::string name = node->record.name();
  Log(absl::StrCat("node lost node=", name, " reason=\"", why, "\""), /*warning=*/true);
  if (node->connection != 0) {
    connections_.erase(node->connection);
    actions_.push_back(CloseConnection{node->connection,
                                       absl::UnavailableError(absl::StrCat("node lost: ", why))});
  }
  node->connection = 0;
  node->state = Node::State::kLost;
  node->lost_at = now_.steady;
  node->reason = why;
  const auto held = std::exchange(node->held, {});
  node->used = 0;
  schedule_ = true;
  for (const auto& [id, slots] : held) {
    Job* job = Find(id);
    if (!IsPartOf(job, name)) continue;
    const bool fails = job->State() == JOB_STATE_RUNNING && !AllEndedOn(*job, name);
    job->cleared.insert(name);
    if (fails) {
      FailForNode(job, *node, absl::StrCat("node lost, ", why));
    } else if (job->Stopping()) {
      MaybeFinish(job);
    } else if (job->State() == JOB_STATE_FORMING) {
      FormAgain(job, absl::StrCat("node ", name, " was lost: ", why));
    }
  }
}

void Machine::Hold(Node* node, const std::string& job, int slots) {
  int& held = node->held[job];
  node->used += slots - held;
  held = slots;
}

void Machine::Release(Node* node, const std::string& job) {
  const auto it = node->held.find(job);
  if (it == node->held.end()) return;
  node->used -= it->second;
  node->held.erase(it);
  schedule_ = true;
}

Machine::Node* Machine::FindByConnection(ConnectionId connection) {
  const auto it = connections_.find(connection);
  return it == connections_.end() ? nullptr : &nodes_[it->second];
}

absl::StatusOr<v1::NodeRecord> Machine::FindNode(const std::string& name) const {
  const auto it = nodes_.find(name);
  if (it == nodes_.end()) return absl::NotFoundError(absl::StrCat("no node ", name));
  return it->second.record;
}

ConnectionId Machine::NodeConnection(const std::string& name, bool* gone) const {
  const auto it = nodes_.find(name);
  *gone = it == nodes_.end() || it->second.state == Node::State::kLost;
  return it == nodes_.end() ? 0 : it->second.connection;
}

std::vector<NodeState> Machine::ListNodes() const {
  std::vector<NodeState> list;
  for (const auto& [name, node] : nodes_) {
    NodeState& row = list.emplace_back();
    row.set_name(name);
    row.set_state(node.state == Node::State::kUp     ? "up"
                  : node.state == Node::State::kAway ? "away"
                                                     : "lost");
    row.set_slots(node.record.slots());
    row.set_used(node.used);
    row.set_reason(node.reason);
    row.set_data_address(node.record.data_address());
    row.set_version(node.version);
    row.set_daemon_pid(node.pid);
    for (const auto& [id, slots] : node.held) {
      const v1::JobRecord* record = FindRecord(id);
      if (record == nullptr) continue;
      for (const Rank& rank : record->job().rank()) {
        if (rank.node() == name && rank.worker_pid() != 0 && rank.state() == "running") {
          row.add_worker_pids(rank.worker_pid());
        }
      }
    }
  }
  return list;
}

absl::Status Machine::CheckInvariants() const {
  for (const auto& [name, node] : nodes_) {
    int sum = 0;
    for (const auto& [id, slots] : node.held) sum += slots;
    if (sum != node.used)
      return absl::InternalError(absl::StrCat(name, ": used is not the sum of what is held"));
    if ((node.connection != 0) != (node.state == Node::State::kUp)) {
      return absl::InternalError(absl::StrCat(name, ": up without a connection, or the reverse"));
    }
  }
  for (const auto& [number, job] : jobs_) {
    const auto& shown = job.record.job();
    if ((active_.count(number) == 0) != shown.has_finished()) {
      return absl::InternalError(absl::StrCat(shown.id(), ": active is not 'not finished'"));
    }
    if ((queue_.count(number) == 1) != (shown.state() == JOB_STATE_QUEUED)) {
      return absl::InternalError(absl::StrCat(shown.id(), ": the queue is not what is queued"));
    }
    if (shown.state() != JOB_STATE_RUNNING && shown.state() != JOB_STATE_FINISHING) continue;
    for (const GenerationNode& part : job.record.nodes()) {
      if (job.cleared.count(part.name()) != 0) continue;
      const auto node = nodes_.find(part.name());
      if (node == nodes_.end() || node->second.held.count(shown.id()) == 0) {
        return absl::InternalError(
            absl::StrCat(shown.id(), ": ranks without slots on ", part.name()));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ringd::scheduler
