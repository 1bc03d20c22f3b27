#include "scheduler/server/core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "common/status/macros.h"

namespace ringd::scheduler {
namespace {

namespace pb = ringd::cluster::v1;

constexpr absl::Duration kCommitPause = absl::Seconds(1);

class WriterSink : public LogSink {
 public:
  explicit WriterSink(StreamWriter<pb::LogChunk>* writer) : writer_(writer) {}
  bool idle() const override { return writer_->idle(); }
  void Send(pb::LogChunk chunk) override { writer_->Send(std::move(chunk)); }
  void End(absl::Status status) override { writer_->End(ToGrpc(status)); }

 private:
  StreamWriter<pb::LogChunk>* const writer_;
};

}  // namespace

pb::Job ShownJob(const v1::JobRecord& record) { return record.job(); }

Core::Core(Machine* machine, Store* store, Identities* identities)
    : machine_(machine),
      store_(store),
      identities_(identities),
      logs_(machine, [this](ConnectionId id, pb::NodeOrder order) {
        if (const auto it = connections_.find(id); it != connections_.end())
          it->second.stream->Send(std::move(order));
      }) {}

Core::~Core() = default;

Now Core::ReadClocks() const { return {absl::Now(), SteadyNow()}; }

absl::Status Core::Restore() {
  RINGD_ASSIGN_OR_RETURN(Snapshot snapshot, store_->Load());
  GetLogger("scheduler")
      ->info("store loaded term={} jobs={} nodes={}", snapshot.term, snapshot.jobs.size(),
             snapshot.nodes.size());
  actions_ = machine_->Restore(std::move(snapshot), ReadClocks());
  Flush();
  return absl::OkStatus();
}

void Core::Handle(Event event) {
  if (closing_ && (std::holds_alternative<NodeDisconnectedEvent>(event) ||
                   std::holds_alternative<HoldLostEvent>(event))) {
    return;
  }
  std::vector<Action> actions = machine_->Apply(event, ReadClocks());
  std::move(actions.begin(), actions.end(), std::back_inserter(actions_));
}

void Core::Tick() {
  Handle(TickEvent{});
  logs_.OnChange("", SteadyNow());
  Answer(gatherings_.Expire(SteadyNow()));
}

void Core::CommitWrites() {
  Store::Batch batch;
  std::map<std::string, bool> jobs;  // Id -> with its spec.
  for (const Action& action : actions_) {
    if (const auto* job = std::get_if<PersistJob>(&action)) {
      bool& with_spec = jobs[job->job];
      with_spec |= job->with_spec;
    } else if (const auto* node = std::get_if<PersistNode>(&action)) {
      if (auto record = machine_->FindNode(node->node); record.ok())
        batch.nodes.push_back(*std::move(record));
    } else if (const auto* gone = std::get_if<DeleteJob>(&action)) {
      batch.deleted_jobs.push_back(std::stoull(gone->job.substr(2)));
    }
  }
  for (const auto& [id, with_spec] : jobs) {
    const v1::JobRecord* record = machine_->FindRecord(id);
    if (record != nullptr)
      batch.jobs.push_back({record, with_spec ? machine_->FindSpec(id) : nullptr});
  }
  if (batch.jobs.empty() && batch.nodes.empty() && batch.deleted_jobs.empty()) return;
  batch.next_number = machine_->next_number();
  bool failed = false;
  for (absl::Status status = store_->Commit(batch); !status.ok(); status = store_->Commit(batch)) {
    // Nothing may be acknowledged before it is durable, and running jobs don't need us: wait for
    // the disk.
    if (!failed)
      GetLogger("scheduler")
          ->error("can't write the store, waiting until it works: {}", status.ToString());
    failed = true;
    absl::SleepFor(kCommitPause);
  }
  if (failed) GetLogger("scheduler")->info("store can be written again");
}

void Core::Flush() {
  if (actions_.empty()) return ShowIdle();
  CommitWrites();
  std::vector<Action> actions = std::exchange(actions_, {});
  std::set<std::string> changed;
  for (Action& action : actions) {
    if (const auto* reply = std::get_if<Reply>(&action)) Do(*reply);
    if (auto* order = std::get_if<SendOrder>(&action)) Do(*order);
    if (const auto* close = std::get_if<CloseConnection>(&action)) Do(*close);
    if (const auto* job = std::get_if<JobChanged>(&action)) changed.insert(job->job);
    if (const auto* line = std::get_if<LogLine>(&action)) {
      GetLogger("scheduler")
          ->log(line->warning ? spdlog::level::warn : spdlog::level::info, "{}", line->text);
    }
  }
  for (const std::string& job : changed) Notify(job);
  ShowIdle();
}

void Core::ShowIdle() {
  for (const auto& [job, number] : std::exchange(idle_watchers_, {})) {
    const auto of_job = watchers_.find(job);
    if (of_job == watchers_.end()) continue;
    if (const auto it = of_job->second.find(number); it != of_job->second.end())
      Show(job, &it->second);
  }
}

void Core::Do(const Reply& reply) {
  const auto it = calls_.find(reply.call);
  if (it == calls_.end()) return;
  const ReplyCallback done = std::move(it->second);
  calls_.erase(it);
  done(reply);
}

void Core::Do(SendOrder& order) {
  if (const auto it = connections_.find(order.connection); it != connections_.end()) {
    it->second.stream->Send(std::move(order.order));
  }
}

void Core::Do(const CloseConnection& close) {
  if (const auto it = connections_.find(close.connection); it != connections_.end()) {
    it->second.stream->End(ToGrpc(close.status));
  }
}

void Core::Notify(const std::string& job) {
  logs_.OnChange(job, SteadyNow());
  const auto it = watchers_.find(job);
  if (it == watchers_.end()) return;
  for (auto& [id, watcher] : it->second) {
    watcher.dirty = true;
    Show(job, &watcher);
  }
}

void Core::Show(const std::string& job, Watcher* watcher) {
  if (!watcher->writer->idle()) return;
  const v1::JobRecord* record = machine_->FindRecord(job);
  if (record == nullptr) {
    return watcher->writer->End(
        ToGrpc(absl::NotFoundError(absl::StrCat(job, " is no longer known"))));
  }
  if (watcher->saw_end) return watcher->writer->End(grpc::Status::OK);
  if (!std::exchange(watcher->dirty, false)) return;
  watcher->saw_end = record->job().has_finished();
  watcher->writer->Send(ShownJob(*record));
}

void Core::Join(NodeStream* stream, PeerInfo peer) {
  const ConnectionId id = next_connection_++;
  connections_[id] = {stream, std::move(peer), false};
  stream->on_report = [this, id](pb::NodeReport report) { OnReport(id, std::move(report)); };
  stream->on_broken = [this, id] {
    Handle(NodeDisconnectedEvent{id});
    logs_.OnConnectionGone(id, SteadyNow());
  };
  stream->on_done = [this, id] { connections_.erase(id); };
}

void Core::OnReport(ConnectionId id, pb::NodeReport report) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  if (report.has_hello() != !it->second.joined) {
    return it->second.stream->End(
        ToGrpc(absl::InvalidArgumentError("a hello comes first, and only first")));
  }
  if (report.has_hello()) return OnHello(id, report.hello());
  if (report.has_log()) {
    Handle(NodeReportEvent{id, pb::NodeReport()});  // It lives.
    return logs_.OnData(id, std::move(*report.mutable_log()), SteadyNow());
  }
  Handle(NodeReportEvent{id, std::move(report)});
}

void Core::OnHello(ConnectionId id, const pb::NodeHello& hello) {
  Connection& connection = connections_.at(id);
  if (absl::Status status = identities_->CheckNode(connection.peer, hello.name()); !status.ok()) {
    GetLogger("scheduler")->warn("node refused reason=\"{}\"", std::string(status.message()));
    pb::NodeOrder order;
    order.mutable_refuse()->set_reason(std::string(status.message()));
    connection.stream->Send(std::move(order));
    return connection.stream->End(ToGrpc(status));
  }
  connection.joined = true;
  Handle(NodeJoinedEvent{id, hello});
  logs_.OnChange("", SteadyNow());
}

void Core::Watch(StreamWriter<pb::Job>* writer, const std::string& job) {
  const absl::StatusOr<std::string> id = machine_->Resolve(job);
  if (!id.ok()) return writer->End(ToGrpc(id.status()));
  const uint64_t number = next_watcher_++;
  Watcher& watcher = watchers_[*id][number];
  watcher.writer = writer;
  watcher.dirty = true;
  writer->on_idle = [this, id = *id, number] { idle_watchers_.emplace_back(id, number); };
  writer->on_done = [this, id = *id, number] {
    auto& of_job = watchers_.at(id);
    of_job.erase(number);
    if (of_job.empty()) watchers_.erase(id);
  };
  // What this batch has changed is durable after its flush only.
  actions_.push_back(JobChanged{*id});
}

void Core::Logs(StreamWriter<pb::LogChunk>* writer, const Caller& caller,
                const pb::LogsRequest& request) {
  const absl::StatusOr<std::string> id = machine_->Resolve(request.job());
  if (!id.ok()) return writer->End(ToGrpc(id.status()));
  if (absl::Status status = Machine::CheckOwner(caller, *machine_->FindRecord(*id)); !status.ok()) {
    return writer->End(ToGrpc(status));
  }
  auto sink = std::make_shared<WriterSink>(writer);
  const LogRelay::ReaderId reader = logs_.Open(*id, request, sink.get(), SteadyNow());
  if (reader == 0) return;
  writer->on_idle = [this, reader] { logs_.Pump(reader, SteadyNow()); };
  writer->on_done = [this, reader, sink] { logs_.Close(reader); };
}

void Core::Hold(HoldStream* stream, PeerInfo peer) {
  stream->on_first = [this, stream, peer = std::move(peer)](const pb::HoldRequest& request) {
    const absl::StatusOr<Caller> caller =
        identities_->Identify(peer, request.identity(), absl::Now());
    if (!caller.ok()) return stream->End(ToGrpc(caller.status()));
    // The call may end before its answer comes: what follows belongs to both.
    auto job = std::make_shared<std::string>();
    auto over = std::make_shared<bool>(false);
    stream->on_done = [this, job, over] {
      *over = true;
      if (!job->empty()) Handle(HoldLostEvent{*job});
    };
    Call(HoldEvent{0, *caller, request.job()}, [this, stream, job, over](const Reply& reply) {
      if (*over) {
        if (reply.status.ok()) Handle(HoldLostEvent{reply.job});
        return;
      }
      if (!reply.status.ok()) return stream->End(ToGrpc(reply.status));
      *job = reply.job;
    });
  };
}

PartId Core::Gather(const Caller& caller, const pb::GatherRequest& request, ReplyCallback done) {
  const PartId id = next_part_++;
  parts_[id] = {caller, std::move(done)};
  Answer(gatherings_.Add({id, caller.uid, request}, SteadyNow()));
  return id;
}

void Core::Leave(PartId part) {
  gatherings_.Remove(part);
  parts_.erase(part);
}

void Core::Answer(std::vector<Gatherings::Outcome> outcomes) {
  for (Gatherings::Outcome& outcome : outcomes) {
    const Caller caller = parts_.at(outcome.parts.front()).caller;
    const auto answer = [this, parts = std::move(outcome.parts)](const Reply& reply) {
      for (const PartId part : parts) {
        const auto it = parts_.find(part);
        if (it == parts_.end()) continue;
        const ReplyCallback done = std::move(it->second.done);
        parts_.erase(it);
        done(reply);
      }
    };
    if (!outcome.spec.ok()) {
      answer(Reply{0, outcome.spec.status(), ""});
    } else {
      Call(SubmitEvent{0, caller, *std::move(outcome.spec), ""}, answer);
    }
  }
}

}  // namespace ringd::scheduler
