#include "daemon/collectives/ring/algorithm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/reduce/wire_dtype.h"
#include "common/status/macros.h"
#include "daemon/collectives/ring/node_reduction.h"

namespace ringd::daemon {
namespace {

// Its inputs in place are copied to memory of the daemon.
constexpr uint64_t kMaxInPlaceAlltoallBytes = 64u << 20;
// Streams are counted in 64 bits, their sum over the ring's steps included.
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 50;

absl::Status CheckReduction(const Collective& collective) {
  if (IsReducible(collective.dtype, collective.reduction)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no ", ReductionName(collective.reduction), " of ",
                                                 DTypeName(collective.dtype)));
}

absl::Status CheckWire(const Collective& collective) {
  if (CanNarrow(collective.dtype, collective.wire)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(DTypeName(collective.dtype), " can't travel as ",
                                                 WireDTypeName(collective.wire)));
}

absl::Status CheckCounts(const Collective& collective, uint64_t expected) {
  if (collective.counts.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(collective.counts.size(), " counts given, not ", expected));
  }
  uint64_t total = 0;
  for (const uint64_t count : collective.counts) {
    if (count > kMaxTensorBytes || (total += count) > kMaxTensorBytes / sizeof(uint64_t)) {
      return absl::InvalidArgumentError("counts are too large");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInPlaceAlltoall(const GroupLayout& layout, const Collective& collective) {
  const auto size = static_cast<uint64_t>(layout.size());
  uint64_t largest = 0;  // Of any rank, so that all nodes decide alike.
  for (uint64_t from = 0; from < size; ++from) {
    uint64_t bytes = 0;
    for (uint64_t to = 0; to < size; ++to) {
      bytes += collective.counts[from * size + to] * DTypeBytes(collective.dtype);
    }
    largest = std::max(largest, bytes);
  }
  for (const RankBuffer& rank : collective.ranks) {
    if (rank.input == rank.output && rank.input != nullptr && largest > kMaxInPlaceAlltoallBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("alltoall in place of ", largest, " bytes; over ", kMaxInPlaceAlltoallBytes,
                       " bytes the output must lie beside the input"));
    }
  }
  return absl::OkStatus();
}

// All nodes' sums together fit one piece.
bool IsGathered(const GroupLayout& layout, const Collective& collective, const RingTable& table) {
  const uint64_t bytes = collective.count * DTypeBytes(collective.dtype);
  const auto nodes = static_cast<uint64_t>(layout.node_count());
  return bytes > 0 && bytes <= std::min(table.gather_bytes, kRingPieceBytes / nodes) &&
         NodeReduction::AddsWholeSums(layout, collective);
}

bool IsTree(const Collective& collective, const RingTable& table) {
  const uint64_t bytes = collective.count * DTypeBytes(collective.dtype);
  return table.shortcut_count > 0 && bytes > 0 && bytes <= table.tree_bytes;
}

absl::Status Check(const GroupLayout& layout, const Collective& collective) {
  if (collective.operation == Operation::kBarrier) return absl::OkStatus();
  if (collective.ranks.size() != static_cast<size_t>(layout.local_count())) {
    return absl::InvalidArgumentError(absl::StrCat("buffers of ", collective.ranks.size(),
                                                   " ranks given, the node has ",
                                                   layout.local_count()));
  }
  const auto size = static_cast<uint64_t>(layout.size());
  if (DTypeBytes(collective.dtype) == 0 || collective.count > kMaxTensorBytes / sizeof(uint64_t)) {
    return absl::InvalidArgumentError(absl::StrCat("no tensor of ", collective.count,
                                                   " elements of ", DTypeName(collective.dtype)));
  }
  switch (collective.operation) {
    case Operation::kAllreduce:
      RINGD_RETURN_IF_ERROR(CheckWire(collective));
      return CheckReduction(collective);
    case Operation::kReduceScatter:
      RINGD_RETURN_IF_ERROR(CheckReduction(collective));
      return CheckCounts(collective, size);
    case Operation::kAllgather:
      return CheckCounts(collective, size);
    case Operation::kAlltoall:
      RINGD_RETURN_IF_ERROR(CheckCounts(collective, size * size));
      return CheckInPlaceAlltoall(layout, collective);
    case Operation::kBroadcast:
      if (collective.root < 0 || collective.root >= layout.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("root ", collective.root, " in a group of ", layout.size()));
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("the ring can't carry out ", OperationName(collective.operation)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingAlgorithm>> MakeRingAlgorithm(const GroupLayout& layout,
                                                                 const Collective& collective,
                                                                 const RingTable& table,
                                                                 RingScratch* scratch) {
  RINGD_RETURN_IF_ERROR(Check(layout, collective));
  switch (collective.operation) {
    case Operation::kAllreduce:
      if (collective.wire != WireDType::kSame) {
        return MakeRingNarrowAllreduce(layout, collective, scratch);
      }
      if (!IsGathered(layout, collective, table)) {
        return MakeRingAllreduce(layout, collective, scratch);
      }
      return table.shortcut_count > 0
                 ? MakeDoublingAllreduce(layout, collective, table.shortcut_count, scratch)
                 : MakeRingGatherAllreduce(layout, collective, scratch);
    case Operation::kReduceScatter:
      return MakeRingReduceScatter(layout, collective, scratch);
    case Operation::kAllgather:
      return MakeRingAllgather(layout, collective);
    case Operation::kAlltoall:
      return MakeRingAlltoall(layout, collective);
    case Operation::kBroadcast:
      return IsTree(collective, table) ? MakeTreeBroadcast(layout, collective, table.shortcut_count)
                                       : MakeRingBroadcast(layout, collective);
    default:
      return table.shortcut_count > 0 ? MakeDoublingBarrier(layout, table.shortcut_count)
                                      : MakeRingBarrier(layout);
  }
}

}  // namespace ringd::daemon
