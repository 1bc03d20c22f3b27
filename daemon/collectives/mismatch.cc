#include "daemon/collectives/mismatch.h"

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

constexpr size_t kMaxMessageSignatureBytes = 1000;  // Two of them fit an error record's message.

struct Described {
  absl::string_view rank;  // "rank 0"
  absl::string_view text;
};

Described SplitRank(absl::string_view description) {
  const size_t colon = description.find(": ");
  if (!absl::StartsWith(description, "rank ") || colon == absl::string_view::npos) {
    return {"another rank", description};
  }
  return {description.substr(0, colon), description.substr(colon + 2)};
}

struct TensorLine {
  absl::string_view name, signature, bucket, offset;
};

struct PlanLines {
  absl::string_view headline;
  std::vector<absl::string_view> buckets;
  std::vector<TensorLine> tensors;
  absl::flat_hash_map<absl::string_view, size_t> by_name;
};

PlanLines ParsePlan(absl::string_view text) {
  PlanLines plan;
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (!lines.empty()) plan.headline = lines[0];
  for (absl::string_view line : lines) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
    if (fields[0] == kPlanTextBucket && fields.size() >= 3) plan.buckets.push_back(fields[2]);
    if (fields[0] != kPlanTextTensor || fields.size() < 5) continue;
    plan.by_name.emplace(fields[1], plan.tensors.size());
    plan.tensors.push_back({fields[1], fields[2], fields[3], fields[4]});
  }
  return plan;
}

std::string MissingTensor(const PlanLines& has, absl::string_view has_rank, const PlanLines& lacks,
                          absl::string_view lacks_rank) {
  for (const TensorLine& tensor : has.tensors) {
    if (lacks.by_name.contains(tensor.name)) continue;
    return absl::StrCat("tensor ", tensor.name, ": ", has_rank, " has ", tensor.signature, ", ",
                        lacks_rank, " does not have it");
  }
  return "";
}

std::string OtherTensor(const PlanLines& a, absl::string_view a_rank, const PlanLines& b,
                        absl::string_view b_rank) {
  for (const TensorLine& mine : a.tensors) {
    const auto found = b.by_name.find(mine.name);
    if (found == b.by_name.end()) continue;
    const TensorLine& other = b.tensors[found->second];
    const auto say = [&](absl::string_view what, absl::string_view x, absl::string_view y) {
      return absl::StrCat("tensor ", mine.name, ": ", a_rank, " has ", what, x, ", ", b_rank,
                          " has ", what, y);
    };
    if (mine.signature != other.signature) return say("", mine.signature, other.signature);
    if (mine.bucket != other.bucket) return say("it in bucket ", mine.bucket, other.bucket);
    if (mine.offset != other.offset) return say("it at element ", mine.offset, other.offset);
  }
  return "";
}

std::string PlanDifference(const Described& first, const Described& second) {
  const PlanLines a = ParsePlan(first.text);
  const PlanLines b = ParsePlan(second.text);
  std::string difference = MissingTensor(a, first.rank, b, second.rank);
  if (difference.empty()) difference = MissingTensor(b, second.rank, a, first.rank);
  if (difference.empty()) difference = OtherTensor(a, first.rank, b, second.rank);
  if (!difference.empty()) return difference;
  for (size_t i = 0; i < a.buckets.size() && i < b.buckets.size(); ++i) {
    if (a.buckets[i] == b.buckets[i]) continue;
    return absl::StrCat("bucket ", i, ": ", first.rank, " has ", a.buckets[i], ", ", second.rank,
                        " has ", b.buckets[i]);
  }
  return absl::StrCat(first.rank, " has ", a.headline, ", ", second.rank, " has ", b.headline);
}

bool IsPlan(absl::string_view text) {
  return absl::StartsWith(text, "plan ") && absl::StrContains(text, '\n');
}

absl::string_view Headline(absl::string_view text) {
  return text.substr(0, text.find('\n')).substr(0, kMaxMessageSignatureBytes);
}

}  // namespace

std::string ChannelText(uint64_t channel) {
  if (wire::IsMessageChannel(channel)) return absl::StrCat(" with tag ", channel & 0xffffffff);
  const uint32_t plan = wire::ChannelPlan(channel);
  const uint32_t group = wire::ChannelGroup(channel);
  const bool is_plan = plan != 0 && plan != wire::kNamed;
  return absl::StrCat(is_plan ? absl::StrCat(" of plan ", plan) : "",
                      group == 0 ? "" : absl::StrCat(" of group ", group));
}

std::string OperationText(OperationKey key) {
  if (wire::IsMessageChannel(key.channel)) {
    return absl::StrCat("message", ChannelText(key.channel));
  }
  const bool is_named = wire::ChannelPlan(key.channel) == wire::kNamed;
  if (is_named && key.sequence == 0) return "operation" + ChannelText(key.channel);
  return absl::StrCat("operation ", is_named ? "n." : "s.", key.sequence, ChannelText(key.channel));
}

std::string MismatchMessage(OperationKey key, absl::string_view first, absl::string_view second) {
  const Described a = SplitRank(first);
  const Described b = SplitRank(second);
  const std::string operation = absl::StrCat(OperationText(key), " is not the same on all ranks: ");
  if (IsPlan(a.text) && IsPlan(b.text)) return absl::StrCat(operation, PlanDifference(a, b));
  std::string message = absl::StrCat(operation, a.rank, " called ", Headline(a.text), ", ", b.rank,
                                     " called ", Headline(b.text));
  if (a.text == b.text)
    absl::StrAppend(&message, " (with other arguments, or in another group of operations)");
  return message;
}

}  // namespace ringd::daemon
