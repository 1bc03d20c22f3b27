#include "daemon/engine/order/request.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "proto/operations.h"

namespace ringd::daemon {
namespace {

bool HasData(Operation operation) {
  return operation != Operation::kBarrier && operation != Operation::kPlanUnregister &&
         !IsOfGroups(operation);
}

// Whether `count` may differ between ranks, as the counts say.
bool HasOwnCount(const Request& request) {
  return request.operation == Operation::kPlanRegister ||
         (!request.counts.empty() &&
          (request.operation == Operation::kAllgather || request.operation == Operation::kGather ||
           request.operation == Operation::kScatter || request.operation == Operation::kAlltoall));
}

Operation CarriedOutAs(Operation operation) {
  switch (operation) {
    case Operation::kPlanRegister:
    case Operation::kPlanUnregister:
    case Operation::kGroupRegister:
    case Operation::kGroupUnregister:
      return Operation::kBarrier;
    case Operation::kPlanBucket:
      return Operation::kAllreduce;
    default:
      return operation;
  }
}

std::vector<uint64_t> CountsOf(const Request& request, uint64_t size) {
  if (!request.counts.empty()) return request.counts;
  switch (request.operation) {
    case Operation::kAllgather:
    case Operation::kGather:
    case Operation::kScatter:
      return std::vector<uint64_t>(size, request.count);
    case Operation::kReduceScatter:
      return std::vector<uint64_t>(size, request.count / size);
    case Operation::kAlltoall:
      return std::vector<uint64_t>(size * size, request.count / size);
    default:
      return {};
  }
}

// Ranks that a message shows of a group's.
constexpr size_t kMaxShownRanks = 64;

void AppendRoot(const Request& request, std::string* text) {
  switch (request.operation) {
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kGather:
    case Operation::kScatter:
      absl::StrAppend(text, " root ", request.root);
      break;
    case Operation::kSend:
      absl::StrAppend(text, " to rank ", request.peer);
      return;
    case Operation::kRecv:
      absl::StrAppend(text, " from rank ", request.peer);
      return;
    case Operation::kGroupRegister:
    case Operation::kGroupUnregister: {
      const size_t shown = std::min(request.counts.size(), kMaxShownRanks);
      absl::StrAppend(text, " ", request.root, " of ", request.counts.size(),
                      " ranks: ", absl::StrJoin(absl::MakeSpan(request.counts).first(shown), ", "),
                      shown < request.counts.size() ? ", ..." : "");
      return;
    }
    default:
      break;
  }
  if (!request.counts.empty()) absl::StrAppend(text, " with counts");
}

}  // namespace

std::string DescribeRequest(const Request& request) {
  std::string text = OperationName(request.operation);
  if (request.operation == Operation::kPlanRegister) {
    absl::StrAppend(&text, " ", request.plan_id);
  } else if (request.operation == Operation::kPlanUnregister) {
    absl::StrAppend(&text, " ", request.plan_id);
  } else if (request.operation == Operation::kPlanBucket) {
    absl::StrAppend(&text, " ", request.bucket, " of plan ", request.plan_id, " ");
  } else if (HasData(request.operation)) {
    absl::StrAppend(&text, " ");
  }
  if (HasData(request.operation) && request.operation != Operation::kPlanRegister) {
    absl::StrAppend(&text, TensorSignature(request.dtype, request.shape));
  }
  if (request.reduction != Reduction::kNone) {
    absl::StrAppend(&text, " ", ReductionName(request.reduction));
  }
  if (request.wire != WireDType::kSame) {
    absl::StrAppend(&text, " wire ", WireDTypeName(request.wire));
  }
  AppendRoot(request, &text);
  if (request.prescale != 1.0) absl::StrAppend(&text, " prescale ", request.prescale);
  if (request.postscale != 1.0) absl::StrAppend(&text, " postscale ", request.postscale);
  if (request.tag != 0) absl::StrAppend(&text, " tag ", request.tag);
  if (!request.name.empty()) absl::StrAppend(&text, " named '", request.name, "'");
  if (!request.site.empty()) absl::StrAppend(&text, " at ", request.site);
  return text;
}

std::string DescribeForRank(const Request& request, int rank) {
  const bool is_plan = request.operation == Operation::kPlanRegister && request.plan != nullptr;
  return absl::StrCat("rank ", rank, ": ",
                      is_plan ? request.plan->canonical_text() : DescribeRequest(request));
}

bool SameOperation(const Request& a, const Request& b) {
  if (a.operation != b.operation || a.dtype != b.dtype || a.reduction != b.reduction) return false;
  if (a.wire != b.wire) return false;
  if (a.prescale != b.prescale || a.postscale != b.postscale || a.root != b.root) return false;
  if (a.group != b.group || a.tag != b.tag || a.plan_id != b.plan_id || a.bucket != b.bucket) {
    return false;
  }
  if (a.signature != b.signature || a.counts != b.counts) return false;
  if (!HasOwnCount(a) && a.count != b.count) return false;
  if (a.operation != Operation::kPlanRegister) return true;
  return a.plan != nullptr && b.plan != nullptr &&
         a.plan->canonical_text() == b.plan->canonical_text();
}

std::shared_ptr<const Collective> MakeCollective(const std::vector<RequestPtr>& requests,
                                                 const GroupLayout& layout, bool with_description) {
  const Request& first = *requests[0];
  auto collective = std::make_shared<Collective>();
  collective->operation = CarriedOutAs(first.operation);
  collective->dtype = first.dtype;
  collective->reduction = first.reduction;
  collective->wire = first.wire;
  collective->scaling.prescale = first.prescale;
  collective->scaling.postscale = first.postscale;
  if (first.reduction == Reduction::kAverage) collective->scaling.divisor = layout.size();
  collective->root = first.root;
  collective->count = first.count;
  collective->counts = CountsOf(first, layout.size());
  collective->signature = first.signature;
  for (const auto& request : requests) collective->ranks.push_back(request->buffer);
  if (with_description) {
    collective->description = DescribeForRank(first, layout.JobRank(layout.first_local_rank()));
  }
  return collective;
}

uint64_t ReducedBytes(const Request& request) {
  return request.reduction == Reduction::kNone ? 0 : request.count * DTypeBytes(request.dtype);
}

}  // namespace ringd::daemon
