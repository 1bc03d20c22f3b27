#include "daemon/collectives/local.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "common/reduce/reduce.h"
#include "daemon/collectives/rooted.h"

namespace ringd::daemon {
namespace {

// Up to this many bytes of one rank's buffer an operation is done as soon as it starts, by the
// engine's thread alone.
constexpr size_t kInlineBytes = 16 << 10;
// Up to this many it is one piece of work: what has come together is shared between the threads.
constexpr size_t kWholeBytes = 128 << 10;
// From this size on, results beside their inputs bypass the cache.
constexpr size_t kStreamingBytes = 4 << 20;

// out[k][at, at + n) = reduction of in[j][at, at + n); used piece by piece.
struct ReducePlan {
  DType dtype;
  Reduction reduction;
  Scaling scaling;
  size_t element_bytes;
  bool streaming = false;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;

  void Run(size_t begin, size_t end) const {
    std::array<const void*, kMaxReduceBuffers> in;
    std::array<void*, kMaxReduceBuffers> out;
    const size_t offset = begin * element_bytes;
    for (size_t j = 0; j < inputs.size(); ++j) in[j] = inputs[j] + offset;
    for (size_t k = 0; k < outputs.size(); ++k) out[k] = outputs[k] + offset;
    auto* const reduce = streaming ? ReduceStreaming : Reduce;
    reduce(dtype, reduction, in.data(), inputs.size(), out.data(), outputs.size(), end - begin,
           scaling);
  }
};

// One stretch of memory that goes to one or several places.
struct Copy {
  const std::byte* source;
  std::vector<std::byte*> targets;
  size_t bytes;
  size_t start = 0;  // Of this copy in the plan's flat range.
};

// Copies, laid end to end as one range of bytes.
class CopyPlan {
 public:
  void Add(Copy copy) {
    std::erase(copy.targets, copy.source);  // In place.
    if (copy.bytes == 0 || copy.targets.empty()) return;
    copy.start = total_;
    total_ += copy.bytes;
    copies_.push_back(std::move(copy));
  }
  size_t total() const { return total_; }

  void Run(size_t begin, size_t end) const {
    auto copy = std::upper_bound(copies_.begin(), copies_.end(), begin,
                                 [](size_t at, const Copy& c) { return at < c.start + c.bytes; });
    for (; copy != copies_.end() && copy->start < end; ++copy) {
      const size_t from = std::max(begin, copy->start) - copy->start;
      const size_t to = std::min(end, copy->start + copy->bytes) - copy->start;
      for (std::byte* target : copy->targets)
        std::memcpy(target + from, copy->source + from, to - from);
    }
  }

 private:
  std::vector<Copy> copies_;
  size_t total_ = 0;
};

std::vector<std::byte*> OutputsAt(const Collective& collective, size_t offset) {
  std::vector<std::byte*> targets;
  for (const RankBuffer& rank : collective.ranks) targets.push_back(rank.output + offset);
  return targets;
}

CopyPlan PlanBroadcast(const Collective& collective) {
  CopyPlan plan;
  plan.Add({collective.ranks[collective.root].input, OutputsAt(collective, 0),
            collective.count * DTypeBytes(collective.dtype)});
  return plan;
}

CopyPlan PlanAllgather(const Collective& collective) {
  CopyPlan plan;
  const size_t element_bytes = DTypeBytes(collective.dtype);
  size_t offset = 0;
  for (size_t rank = 0; rank < collective.ranks.size(); ++rank) {
    const size_t bytes = collective.counts[rank] * element_bytes;
    plan.Add({collective.ranks[rank].input, OutputsAt(collective, offset), bytes});
    offset += bytes;
  }
  return plan;
}

CopyPlan PlanAlltoall(const Collective& collective) {
  CopyPlan plan;
  const size_t size = collective.ranks.size();
  const size_t element_bytes = DTypeBytes(collective.dtype);
  std::vector<size_t> received(size, 0);
  for (size_t from = 0; from < size; ++from) {
    size_t sent = 0;
    for (size_t to = 0; to < size; ++to) {
      const size_t bytes = collective.counts[from * size + to] * element_bytes;
      plan.Add({collective.ranks[from].input + sent,
                {collective.ranks[to].output + received[to]},
                bytes});
      sent += bytes;
      received[to] += bytes;
    }
  }
  return plan;
}

ReducePlan PlanReduce(const Collective& collective) {
  ReducePlan plan{collective.dtype, collective.reduction, collective.scaling,
                  DTypeBytes(collective.dtype)};
  bool in_place = false;
  for (const RankBuffer& rank : collective.ranks) {
    plan.inputs.push_back(rank.input);
    plan.outputs.push_back(rank.output);
    in_place = in_place || rank.input == rank.output;
  }
  plan.streaming = !in_place && collective.count * plan.element_bytes >= kStreamingBytes;
  return plan;
}

// Reducescatter: the flat range is the whole reduction; what falls into rank r's slice goes to its
// output.
struct ScatterPlan {
  ReducePlan reduce;
  std::vector<std::byte*> outputs;  // By rank.
  std::vector<size_t> starts;       // By rank, elements; one more at the end.

  void Run(size_t begin, size_t end) const {
    for (size_t rank = 0; rank + 1 < starts.size(); ++rank) {
      const size_t from = std::max(begin, starts[rank]), to = std::min(end, starts[rank + 1]);
      if (from >= to) continue;
      std::array<const void*, kMaxReduceBuffers> in;
      for (size_t j = 0; j < reduce.inputs.size(); ++j)
        in[j] = reduce.inputs[j] + from * reduce.element_bytes;
      void* out = outputs[rank] + (from - starts[rank]) * reduce.element_bytes;
      Reduce(reduce.dtype, reduce.reduction, in.data(), reduce.inputs.size(), &out, 1, to - from,
             reduce.scaling);
    }
  }
};

ScatterPlan PlanReduceScatter(const Collective& collective) {
  ScatterPlan plan{PlanReduce(collective), {}, {0}};
  for (size_t rank = 0; rank < collective.ranks.size(); ++rank) {
    plan.outputs.push_back(collective.ranks[rank].output);
    plan.starts.push_back(plan.starts.back() + collective.counts[rank]);
  }
  return plan;
}

class LocalCommunicator : public Communicator {
 public:
  explicit LocalCommunicator(SlicePool* pool) : pool_(pool) {}

  ~LocalCommunicator() override {
    while (Progress()) {
    }
  }

  void Start(OperationKey, std::shared_ptr<const Collective> given, Done done) override {
    const int size = static_cast<int>(given->ranks.size());
    const std::shared_ptr<const Collective> collective = WithoutRoot(std::move(given), size);
    const size_t element_bytes = DTypeBytes(collective->dtype);
    switch (collective->operation) {
      case Operation::kAllreduce:
        Execute(PlanReduce(*collective), collective->count, element_bytes, std::move(done));
        return;
      case Operation::kReduceScatter: {
        ScatterPlan plan = PlanReduceScatter(*collective);
        const size_t total = plan.starts.back();
        Execute(std::move(plan), total, element_bytes, std::move(done));
        return;
      }
      case Operation::kBroadcast:
        ExecuteCopies(PlanBroadcast(*collective), std::move(done));
        return;
      case Operation::kAllgather:
        ExecuteCopies(PlanAllgather(*collective), std::move(done));
        return;
      case Operation::kAlltoall:
        ExecuteCopies(PlanAlltoall(*collective), std::move(done));
        return;
      default:  // Barrier: all ranks are here.
        done(Outcome{});
    }
  }

  bool Progress() override {
    if (!whole_.empty()) return StartWhole();
    if (active_.empty()) return false;
    if (!pool_->RunPiece()) sched_yield();  // Helpers are at the last pieces.
    for (auto it = active_.begin(); it != active_.end();) {
      if (!it->task->done()) {
        ++it;
        continue;
      }
      const std::vector<Done> done = std::move(it->done);
      it = active_.erase(it);
      for (const Done& each : done) each(Outcome{});
    }
    return true;
  }

  // There are no peers, and what has started only needs a moment to end by itself.
  void Abort(OperationKey, const Outcome&) override {}
  void AbortFrom(OperationKey, const Outcome&) override {}
  void set_peer_failure_handler(PeerFailure) override {}

 private:
  struct Active {
    std::shared_ptr<SliceTask> task;
    std::vector<Done> done;
  };
  struct Whole {
    std::function<void()> run;
    Done done;
  };

  // What has come since the last time: one thread each.
  bool StartWhole() {
    std::vector<Whole> batch;
    batch.swap(whole_);
    if (batch.size() == 1 && active_.empty()) {
      batch[0].run();
      batch[0].done(Outcome{});
      return true;
    }
    Active active;
    std::vector<std::function<void()>> runs;
    for (Whole& each : batch) {
      runs.push_back(std::move(each.run));
      active.done.push_back(std::move(each.done));
    }
    const size_t count = runs.size();
    active.task = pool_->Submit(count, 1, [runs = std::move(runs)](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) runs[i]();
    });
    active_.push_back(std::move(active));
    return true;
  }

  void ExecuteCopies(CopyPlan plan, Done done) {
    const size_t total = plan.total();
    Execute(std::move(plan), total, 1, std::move(done));
  }

  template <typename Plan>
  void Execute(Plan plan, size_t total, size_t unit_bytes, Done done) {
    if (total * unit_bytes <= kInlineBytes) {
      if (total > 0) plan.Run(0, total);
      done(Outcome{});
      return;
    }
    auto shared = std::make_shared<Plan>(std::move(plan));
    if (total * unit_bytes <= kWholeBytes) {
      whole_.push_back({[shared, total] { shared->Run(0, total); }, std::move(done)});
      return;
    }
    auto run = [shared](size_t begin, size_t end) { shared->Run(begin, end); };
    active_.push_back(
        {pool_->Submit(total, kPieceBytes / unit_bytes, std::move(run)), {std::move(done)}});
  }

  SlicePool* const pool_;
  std::list<Active> active_;
  std::vector<Whole> whole_;  // Not begun yet.
};

}  // namespace

std::unique_ptr<Communicator> MakeLocalCommunicator(const GroupLayout&, SlicePool* pool) {
  return std::make_unique<LocalCommunicator>(pool);
}

}  // namespace ringd::daemon
