#include "daemon/collectives/ring/tuner.h"

#include <algorithm>
#include <utility>

namespace ringd::daemon {
namespace {

// The first of each kind finds sockets and memory cold, and doesn't count.
constexpr int kBarriers = 6;
constexpr int kAllreduces = 4;
// Long enough that its bytes show beside its steps: 2 ms at 1 Gbit/s.
constexpr uint64_t kAllreduceBytes = 256u << 10;
// Of all others' sums together: from there on the additional work in memory, not the wire, would
// decide.
constexpr double kMaxGatheredBytes = 48u << 10;
// Beyond, a wrong guess would cost more than a tree can gain.
constexpr double kMaxTreeBytes = 4u << 20;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// NaN, from a peer, too.
uint64_t AtMost(double value, double limit) {
  return static_cast<uint64_t>(value < limit ? value : limit);
}

}  // namespace

int StepsToAll(int node_count, int shortcut_count) {
  return shortcut_count > 0 ? shortcut_count + 1 : node_count - 1;
}

RingCosts FitCosts(int node_count, int steps, double barrier_us, uint64_t bytes,
                   double allreduce_us) {
  const double hops = 2.0 * (node_count - 1);
  RingCosts costs;
  costs.step_us = barrier_us / steps;
  const double moving_us = std::max(allreduce_us - hops * costs.step_us, 1.0);
  costs.bytes_per_us = hops / node_count * static_cast<double>(bytes) / moving_us;
  return costs;
}

RingTable ChooseTable(int node_count, int shortcut_count, const RingCosts& costs) {
  RingTable table;
  table.shortcut_count = shortcut_count;
  const double step_bytes = costs.step_us * costs.bytes_per_us;
  const double hops = node_count - 1;
  const double steps = StepsToAll(node_count, shortcut_count);
  if (step_bytes > 0) {
    const double share = hops * (1 - 2.0 / node_count);
    const double even = (2 * hops - steps) * step_bytes / share;
    // Of two nodes `even` is infinite: both ways send the same bytes.
    table.gather_bytes = AtMost(even, kMaxGatheredBytes / hops);
  }
  if (step_bytes > 0 && shortcut_count > 0) {
    const double even = ((hops - steps) * step_bytes + (hops - 1) * kRingPieceBytes) / (steps - 1);
    table.tree_bytes = AtMost(even, kMaxTreeBytes);
  }
  if (costs.gather_bytes >= 0) table.gather_bytes = static_cast<uint64_t>(costs.gather_bytes);
  return table;
}

RingTuner::RingTuner(int node_count, int shortcut_count, bool is_first_node, int64_t gather_bytes,
                     Start start, NowMicros now, std::function<void(const RingCosts&)> done)
    : node_count_(node_count),
      shortcut_count_(shortcut_count),
      is_first_node_(is_first_node),
      gather_bytes_(gather_bytes),
      start_(std::move(start)),
      now_(std::move(now)),
      done_(std::move(done)),
      memory_(kAllreduceBytes) {}

void RingTuner::Next() {
  const int step = step_++;
  if (step < kBarriers) return Run(Operation::kBarrier, 0, nullptr);
  if (step < kBarriers + kAllreduces) {
    return Run(Operation::kAllreduce, kAllreduceBytes, memory_.data());
  }
  memory_ = {};
  if (step == kBarriers + kAllreduces) {
    if (is_first_node_) Fit();
    return Run(Operation::kBroadcast, sizeof(costs_), reinterpret_cast<std::byte*>(&costs_));
  }
  done_(costs_);
}

void RingTuner::Run(Operation operation, uint64_t bytes, std::byte* memory) {
  auto collective = std::make_shared<Collective>();
  collective->operation = operation;
  collective->dtype = DType::kUInt8;
  collective->reduction = operation == Operation::kAllreduce ? Reduction::kMax : Reduction::kNone;
  collective->count = bytes;
  if (operation != Operation::kBarrier) collective->ranks = {{memory, memory}};
  collective->signature = static_cast<uint64_t>(step_);
  collective->description = "the daemons' measurement of the ring";
  started_us_ = now_();
  start_(std::move(collective), [this, operation](const Outcome& outcome) {
    if (!outcome.ok()) return;
    const double took_us = now_() - started_us_;
    if (operation == Operation::kBarrier) barriers_us_.push_back(took_us);
    if (operation == Operation::kAllreduce) allreduces_us_.push_back(took_us);
    Next();
  });
}

void RingTuner::Fit() {
  barriers_us_.erase(barriers_us_.begin());
  allreduces_us_.erase(allreduces_us_.begin());
  const int steps = StepsToAll(node_count_, shortcut_count_);
  costs_ =
      FitCosts(node_count_, steps, Median(barriers_us_), kAllreduceBytes, Median(allreduces_us_));
  costs_.gather_bytes = gather_bytes_;
}

}  // namespace ringd::daemon
