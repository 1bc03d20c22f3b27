#include "daemon/collectives/ring/node_reduction.h"

#include <string.h>

#include <algorithm>
#include <cmath>

namespace ringd::daemon {
namespace {

// 2^-k <= 1 / divisor.
double EarlyFactor(const Collective& collective) {
  const bool is_half =
      collective.dtype == DType::kFloat16 || collective.wire == WireDType::kFloat16;
  if (!is_half || collective.reduction != Reduction::kAverage ||
      !(collective.scaling.divisor > 1)) {
    return 1.0;
  }
  return std::exp2(-std::ceil(std::log2(collective.scaling.divisor)));
}

}  // namespace

NodeReduction::NodeReduction(const Collective& collective, RingScratch* scratch)
    : collective_(collective), scratch_(scratch), element_bytes_(DTypeBytes(collective.dtype)) {
  const double early = EarlyFactor(collective);
  first_.prescale = collective.scaling.prescale * early;
  last_.postscale = collective.scaling.postscale / early;
  last_.divisor = collective.scaling.divisor;
  has_plain_inputs_ = first_.prescale == 1.0;
}

bool NodeReduction::AddsWholeSums(const GroupLayout& layout, const Collective& collective) {
  const bool is_short_float =
      collective.dtype == DType::kFloat16 || collective.dtype == DType::kBFloat16;
  if (!is_short_float || collective.scaling.prescale * EarlyFactor(collective) != 1.0) return true;
  return std::all_of(layout.nodes.begin(), layout.nodes.end(),
                     [](const GroupLayout::Node& node) { return node.rank_count == 1; });
}

void NodeReduction::SumInputs(uint64_t begin, uint32_t bytes, std::byte* to) {
  const size_t rank_count = collective_.ranks.size();
  for (size_t first = 0; first < rank_count; first += kMaxReduceBuffers) {
    std::vector<const void*> inputs;
    for (size_t i = first; i < std::min(rank_count, first + kMaxReduceBuffers); ++i) {
      inputs.push_back(collective_.ranks[i].input + begin);
    }
    std::byte* const sum = first == 0 ? to : scratch_->fold.get();
    Run(inputs, {sum}, bytes, first_);
    if (first > 0) Run({to, sum}, {to}, bytes, {});
  }
}

void NodeReduction::Add(const std::byte* partial, uint64_t begin, uint32_t bytes,
                        const std::vector<std::byte*>& outputs) {
  Combine(partial, begin, bytes, outputs, {});
}

void NodeReduction::AddLast(const std::byte* partial, uint64_t begin, uint32_t bytes,
                            const std::vector<std::byte*>& outputs) {
  Combine(partial, begin, bytes, outputs, last_);
}

void NodeReduction::AddSums(const std::vector<const void*>& sums, uint32_t bytes,
                            const std::vector<std::byte*>& outputs) {
  Run(sums, outputs, bytes, last_);
}

void NodeReduction::Combine(const std::byte* partial, uint64_t begin, uint32_t bytes,
                            const std::vector<std::byte*>& outputs, const Scaling& scaling) {
  std::vector<const void*> inputs;
  if (has_plain_inputs_ && collective_.ranks.size() < kMaxReduceBuffers) {
    for (const RankBuffer& rank : collective_.ranks) inputs.push_back(rank.input + begin);
  } else {
    SumInputs(begin, bytes, scratch_->local.get());
    inputs.push_back(scratch_->local.get());
  }
  inputs.push_back(partial);
  Run(inputs, outputs, bytes, scaling);
}

void NodeReduction::Run(const std::vector<const void*>& inputs,
                        const std::vector<std::byte*>& outputs, uint32_t bytes,
                        const Scaling& scaling) {
  const size_t output_count = std::min(outputs.size(), kMaxReduceBuffers);
  std::vector<void*> targets(outputs.begin(), outputs.begin() + static_cast<long>(output_count));
  Reduce(collective_.dtype, collective_.reduction, inputs.data(), inputs.size(), targets.data(),
         output_count, bytes / element_bytes_, scaling);
  for (size_t i = output_count; i < outputs.size(); ++i) memcpy(outputs[i], outputs[0], bytes);
}

}  // namespace ringd::daemon
