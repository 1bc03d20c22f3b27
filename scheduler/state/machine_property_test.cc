// Random events against the machine and simulated daemons: crashes, restarts, partitions, delays.
// What must hold always:
//   1. no node ever runs more ranks than it has slots (the daemons' truth, not the scheduler's
//   books);
//   2. at most one generation of a job is ever started;
//   3. a final state never changes, and no acknowledged job is forgotten by a restart;
//   4. once faults stop, every job that fits ends.
// A failure prints its seed; RINGD_SEED=N runs that one alone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "scheduler/state/machine.h"
#include "scheduler/state/machine_harness.h"

namespace ringd::scheduler {
namespace {

using namespace ringd::cluster::v1;  // NOLINT(build/namespaces): the protocol's own words.

constexpr int kSeeds = 150;
constexpr int kSteps = 400;
constexpr int kSlots = 3;

struct HeldJob {
  uint64_t generation = 0;
  int first_rank = 0;
  int ranks = 0;
  enum { kPrepared, kRunning, kCleared } phase = kPrepared;
  std::map<int, RankUpdate> last;
  std::set<int> alive;
};

// What a daemon does, with the order of its messages kept and their time random.
struct Daemon {
  std::string name;
  ConnectionId connection = 0;
  bool welcomed = false;
  bool partitioned = false;
  std::deque<NodeOrder> inbox;
  std::deque<NodeReport> outbox;
  std::map<std::string, HeldJob> jobs;

  int Running() const {
    int count = 0;
    for (const auto& [id, job] : jobs) count += static_cast<int>(job.alive.size());
    return count;
  }
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    for (const char* name : {"a", "b", "c"}) daemons_.emplace_back().name = name;
  }

  void Run() {
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) Step();
    Heal();
    for (int step = 0; step < 4000 && !testing::Test::HasFailure(); ++step) Quiet();
    for (const std::string& id : acknowledged_) {
      EXPECT_TRUE(h_.Shown(id).has_finished())
          << h_.machine->FindRecord(id)->ShortDebugString() << "\n"
          << Truth();
    }
  }

 private:
  std::string Truth() const {
    std::string text;
    for (const NodeState& node : h_.machine->ListNodes())
      absl::StrAppend(&text, node.ShortDebugString(), "\n");
    for (const Daemon& daemon : daemons_) {
      absl::StrAppend(&text, "daemon ", daemon.name, " welcomed=", daemon.welcomed,
                      " inbox=", daemon.inbox.size(), " outbox=", daemon.outbox.size(), ":");
      for (const auto& [id, job] : daemon.jobs) {
        absl::StrAppend(&text, " ", id, ".", job.generation, " phase=", job.phase,
                        " alive=", job.alive.size());
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  }
  int Pick(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  Daemon& PickDaemon() {
    return daemons_[static_cast<size_t>(Pick(static_cast<int>(daemons_.size())))];
  }

  void Step() {
    switch (Pick(20)) {
      case 0:
      case 1:
        return Submit();
      case 2:
        return Cancel();
      case 3:
        return Advance(absl::Milliseconds(250 * (1 + Pick(20))));
      case 4:
        return RankEnds(Pick(3) == 0);
      case 5:
        return RankEnds(true);
      case 6:
        return Pick(4) == 0 ? CrashDaemon(PickDaemon(), Pick(2) == 0) : Connect(PickDaemon());
      case 7:
        if (Pick(6) == 0) PickDaemon().partitioned ^= true;
        return;
      case 8:
        return Pick(8) == 0 ? RestartScheduler() : Deliver();
      default:
        return Deliver();
    }
  }
  void Quiet() {
    for (Daemon& daemon : daemons_) {
      if (daemon.connection == 0) Connect(daemon);
    }
    RankEnds(true);
    for (int i = 0; i < 6; ++i) Deliver();
    Advance(absl::Milliseconds(250));
  }
  void Heal() {
    for (Daemon& daemon : daemons_) daemon.partitioned = false;
  }

  void Submit() {
    JobSpec spec = MachineHarness::Spec(1 + Pick(2 * kSlots));
    spec.set_queue(Pick(3) != 0);
    const auto id = h_.Submit(spec, 1000, Pick(4) == 0 ? "same" : "");
    Drain();
    if (id.ok()) acknowledged_.insert(*id);
  }
  void Cancel() {
    if (acknowledged_.empty() || Pick(3) != 0) return;
    auto it = acknowledged_.begin();
    std::advance(it, Pick(static_cast<int>(acknowledged_.size())));
    EXPECT_TRUE(h_.Cancel(*it).ok());
    Drain();
  }
  void Advance(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += kTickInterval) {
      h_.now.steady += kTickInterval;
      h_.now.wall += kTickInterval;
      for (Daemon& daemon : daemons_) {
        if (daemon.welcomed && !daemon.partitioned)
          h_.Apply(NodeReportEvent{daemon.connection, {}});
      }
      h_.Apply(TickEvent{});
      Drain();
    }
  }
  void RestartScheduler() {
    for (Daemon& daemon : daemons_) Break(daemon);
    h_.Restart();
    Drain();
  }

  void Break(Daemon& daemon) {
    daemon.connection = 0;
    daemon.welcomed = false;
    daemon.inbox.clear();
    daemon.outbox.clear();
  }
  void Disconnect(Daemon& daemon) {
    const ConnectionId id = daemon.connection;
    Break(daemon);
    if (id != 0) h_.Disconnect(id);
    Drain();
  }
  // Its ranks live on, or die with it (a reboot).
  void CrashDaemon(Daemon& daemon, bool reboot) {
    Disconnect(daemon);
    for (auto it = daemon.jobs.begin(); it != daemon.jobs.end();) {
      const bool kept = !reboot && it->second.phase == HeldJob::kRunning;
      it = kept ? std::next(it) : daemon.jobs.erase(it);
    }
  }
  void Connect(Daemon& daemon) {
    if (daemon.partitioned) return;
    if (daemon.connection != 0) {
      if (Pick(10) != 0) return;
      Disconnect(daemon);
    }
    NodeHello hello = h_.Hello(daemon.name, kSlots);
    for (const auto& [id, job] : daemon.jobs) {
      RunningJob* running = hello.add_jobs();
      running->set_job(id);
      running->set_generation(job.generation);
      for (const auto& [rank, update] : job.last) *running->add_ranks() = update;
    }
    daemon.connection = h_.Join(hello);
    Drain();
  }

  void Say(Daemon& daemon, NodeReport report) {
    if (daemon.welcomed) daemon.outbox.push_back(std::move(report));
  }
  void SayRank(Daemon& daemon, const RankUpdate& update) {
    NodeReport report;
    *report.mutable_rank() = update;
    Say(daemon, report);
  }
  void SayCleared(Daemon& daemon, const std::string& id) {
    NodeReport report;
    report.mutable_cleared()->set_job(id);
    Say(daemon, report);
  }

  void Deliver() {
    Daemon& daemon = PickDaemon();
    if (daemon.partitioned) return;
    if (!daemon.inbox.empty() && Pick(2) == 0) {
      const NodeOrder order = daemon.inbox.front();
      daemon.inbox.pop_front();
      return Obey(daemon, order);
    }
    if (daemon.outbox.empty()) return;
    const NodeReport report = daemon.outbox.front();
    daemon.outbox.pop_front();
    h_.Apply(NodeReportEvent{daemon.connection, report});
    Drain();
  }

  void Obey(Daemon& daemon, const NodeOrder& order) {
    if (order.has_welcome()) return OnWelcome(daemon);
    if (order.has_prepare()) return OnPrepare(daemon, order.prepare());
    if (order.has_start()) return OnStart(daemon, order.start());
    if (order.has_stop()) return OnStop(daemon, order.stop().job());
    if (order.has_forget()) {
      const auto it = daemon.jobs.find(order.forget().job());
      if (it != daemon.jobs.end() && it->second.phase == HeldJob::kCleared) daemon.jobs.erase(it);
    }
  }
  void OnWelcome(Daemon& daemon) {
    daemon.welcomed = true;
    for (const auto& [id, job] : daemon.jobs) {
      for (const auto& [rank, update] : job.last) {
        if (update.pid() != 0) SayRank(daemon, update);
      }
      if (job.phase == HeldJob::kCleared) SayCleared(daemon, id);
    }
  }
  void OnPrepare(Daemon& daemon, const Prepare& prepare) {
    NodeReport report;
    report.mutable_prepared()->set_job(prepare.job());
    report.mutable_prepared()->set_generation(prepare.generation());
    const auto old = daemon.jobs.find(prepare.job());
    if (old != daemon.jobs.end() && old->second.phase != HeldJob::kCleared) {
      report.mutable_prepared()->set_ok(old->second.generation == prepare.generation());
      return Say(daemon, report);
    }
    HeldJob& job = daemon.jobs[prepare.job()] = HeldJob();
    job.generation = prepare.generation();
    job.first_rank = prepare.nodes(prepare.node_index()).first_rank();
    job.ranks = prepare.nodes(prepare.node_index()).rank_count();
    for (int rank = job.first_rank; rank < job.first_rank + job.ranks; ++rank) {
      RankUpdate& update = job.last[rank];
      update.set_job(prepare.job());
      update.set_generation(prepare.generation());
      update.set_rank(rank);
    }
    const bool ok = Pick(8) != 0;
    report.mutable_prepared()->set_ok(ok);
    report.mutable_prepared()->set_reason("no");
    report.mutable_prepared()->set_bad_input(!ok && Pick(3) == 0);
    Say(daemon, report);
    if (!ok) Clear(daemon, prepare.job(), &job);
  }
  void OnStart(Daemon& daemon, const Start& start) {
    const auto it = daemon.jobs.find(start.job());
    if (it == daemon.jobs.end() || it->second.phase != HeldJob::kPrepared ||
        it->second.generation != start.generation()) {
      return;
    }
    auto [known, fresh] = started_.emplace(start.job(), start.generation());
    EXPECT_EQ(known->second, start.generation())
        << start.job() << " was started in two generations";
    HeldJob& job = it->second;
    job.phase = HeldJob::kRunning;
    for (auto& [rank, update] : job.last) {
      job.alive.insert(rank);
      update.set_pid(1 + rank);
      SayRank(daemon, update);
    }
    EXPECT_LE(daemon.Running(), kSlots) << daemon.name << " is oversubscribed";
  }
  void OnStop(Daemon& daemon, const std::string& id) {
    const auto it = daemon.jobs.find(id);
    if (it == daemon.jobs.end() || it->second.phase == HeldJob::kCleared)
      return SayCleared(daemon, id);
    HeldJob& job = it->second;
    if (job.phase == HeldJob::kPrepared) return Clear(daemon, id, &job);
    while (!job.alive.empty()) EndRank(daemon, id, &job, *job.alive.begin(), 15, true);
  }
  void Clear(Daemon& daemon, const std::string& id, HeldJob* job) {
    job->phase = HeldJob::kCleared;
    SayCleared(daemon, id);
  }
  void EndRank(Daemon& daemon, const std::string& id, HeldJob* job, int rank, int signal,
               bool followed) {
    job->alive.erase(rank);
    RankUpdate& update = job->last[rank];
    update.set_exited(true);
    update.set_signal(signal);
    update.set_followed(followed);
    update.set_exited_us(absl::ToUnixMicros(h_.now.wall));
    SayRank(daemon, update);
    if (job->alive.empty()) Clear(daemon, id, job);
  }
  void RankEnds(bool well) {
    Daemon& daemon = PickDaemon();
    for (auto& [id, job] : daemon.jobs) {
      if (job.alive.empty()) continue;
      return EndRank(daemon, id, &job, *job.alive.begin(), well ? 0 : 9, !well && Pick(2) == 0);
    }
  }

  // Orders to their daemons, and what must hold.
  void Drain() {
    for (Daemon& daemon : daemons_) {
      for (const NodeOrder& order : h_.orders[daemon.connection]) daemon.inbox.push_back(order);
      h_.orders[daemon.connection].clear();
    }
    for (const CloseConnection& close : std::exchange(h_.closed, {})) {
      for (Daemon& daemon : daemons_) {
        if (daemon.connection == close.connection) Break(daemon);
      }
    }
    for (const std::string& id : acknowledged_) {
      const v1::JobRecord* record = h_.machine->FindRecord(id);
      ASSERT_NE(record, nullptr) << id << " was forgotten";
      if (!record->job().has_finished()) {
        ASSERT_EQ(final_.count(id), 0u) << id << " came back to life";
        continue;
      }
      const auto [known, fresh] = final_.emplace(id, record->job().state());
      ASSERT_EQ(known->second, record->job().state()) << id;
    }
  }

  std::mt19937_64 random_;
  MachineHarness h_;
  std::vector<Daemon> daemons_;
  std::set<std::string> acknowledged_;
  std::map<std::string, uint64_t> started_;
  std::map<std::string, JobState> final_;
};

TEST(MachinePropertyTest, Apply_RandomEventsAndFaults_KeepsItsPromises) {
  const char* one = getenv("RINGD_SEED");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t last = one != nullptr ? first : kSeeds;
  for (uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "RINGD_SEED=" << seed);
    Simulation(seed).Run();
  }
}

}  // namespace
}  // namespace ringd::scheduler
