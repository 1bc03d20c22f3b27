#include "daemon/collectives/ring/gathered_sums.h"

#include <vector>

namespace ringd::daemon {
namespace {

constexpr size_t kLine = 64;

size_t WholeLines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

GatheredSums::GatheredSums(const GroupLayout& layout, const Collective& collective,
                           RingScratch* scratch)
    : layout_(layout),
      collective_(collective),
      reduction_(collective, scratch),
      sum_bytes_(static_cast<uint32_t>(collective.count * DTypeBytes(collective.dtype))),
      sums_(WholeLines(sum_bytes_ * layout.nodes.size())) {}

void GatheredSums::AddAll() {
  for (int segment = 0; segment < layout_.node_count(); ++segment) AddSegment(segment);
}

void GatheredSums::AddSegment(int segment) {
  const int node_count = layout_.node_count();
  const size_t element_bytes = DTypeBytes(collective_.dtype);
  const auto at = [&](int index) {
    return SegmentBegin(collective_.count, element_bytes, node_count, index) * element_bytes;
  };
  const auto sum_of = [&](int node) { return At(Wrap(layout_.node_index - node, node_count)); };
  const uint64_t begin = at(segment);
  const auto bytes = static_cast<uint32_t>(at(segment + 1) - begin);
  if (bytes == 0) return;
  std::vector<std::byte*> outputs;
  for (const RankBuffer& rank : collective_.ranks) outputs.push_back(rank.output + begin);
  const std::byte* partial = sum_of(segment) + begin;
  for (int step = 1; step < node_count; ++step) {
    const std::byte* const sum = sum_of((segment + step) % node_count) + begin;
    const bool is_last = step == node_count - 1;
    reduction_.AddSum(partial, sum, bytes, is_last,
                      is_last ? outputs : std::vector<std::byte*>{outputs[0]});
    partial = outputs[0];
  }
}

}  // namespace ringd::daemon
