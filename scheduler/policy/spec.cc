#include "scheduler/policy/spec.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ringd::scheduler {
namespace {

using ringd::cluster::v1::JobSpec;

constexpr uint32_t kMaxUmask = 0777;

bool HasNul(const std::string& text) { return text.find('\0') != std::string::npos; }

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

// A name that reads like an id would make JobRequest ambiguous.
bool LooksLikeId(const std::string& name) {
  return absl::StartsWith(name, "j-") && name.size() > 2 &&
         std::all_of(name.begin() + 2, name.end(),
                     [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
}

std::string BaseName(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// The program's, or that of a Python script or module: "train" of `python -u src/train.py`.
std::string DefaultName(const JobSpec& spec) {
  std::string base = BaseName(spec.command(0));
  if (!absl::StartsWith(base, "python")) return base;
  for (int i = 1; i < spec.command_size(); ++i) {
    const std::string& word = spec.command(i);
    if (word == "-c") break;
    if (word == "-m" && i + 1 < spec.command_size()) return spec.command(i + 1);
    if (absl::EndsWith(word, ".py") && !absl::StartsWith(word, "-")) {
      return std::string(absl::StripSuffix(BaseName(word), ".py"));
    }
  }
  return base;
}

absl::Status CheckName(JobSpec* spec) {
  if (spec->name().empty()) {
    std::string base = DefaultName(*spec);
    if (LooksLikeId(base) || base.empty()) base = "job";
    spec->set_name(base.substr(0, kMaxNameBytes));
    for (char& c : *spec->mutable_name()) {
      if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '_';
    }
    return absl::OkStatus();
  }
  const std::string& name = spec->name();
  if (name.size() > kMaxNameBytes) {
    return Invalid(absl::StrCat("--name is longer than ", kMaxNameBytes, " bytes"));
  }
  if (std::any_of(name.begin(), name.end(),
                  [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); })) {
    return Invalid("--name contains control characters");
  }
  if (LooksLikeId(name)) {
    return Invalid(absl::StrCat("--name ", name, " reads like a job id; choose another"));
  }
  return absl::OkStatus();
}

absl::Status CheckCommand(const JobSpec& spec) {
  if (spec.command().empty() || spec.command(0).empty()) {
    return Invalid("no command: give one after --");
  }
  for (const std::string& word : spec.command()) {
    if (HasNul(word)) return Invalid("the command contains a NUL byte");
  }
  for (const auto& [name, value] : spec.environment()) {
    if (name.empty() || name.find('=') != std::string::npos || HasNul(name)) {
      return Invalid(absl::StrCat("'", name, "' is no name of an environment variable"));
    }
    if (HasNul(value)) {
      return Invalid(absl::StrCat("the value of environment variable ", name, " has a NUL byte"));
    }
  }
  for (const std::string* directory : {&spec.working_directory(), &spec.output_directory()}) {
    if (HasNul(*directory) || (!directory->empty() && directory->front() != '/')) {
      return Invalid(absl::StrCat("directory '", *directory, "' is not an absolute path"));
    }
  }
  if (spec.umask() > kMaxUmask) return Invalid("umask is over 0777");
  return absl::OkStatus();
}

bool IsOverZero(const google::protobuf::Duration& duration) {
  return duration.seconds() >= 0 && duration.nanos() >= 0 &&
         (duration.seconds() > 0 || duration.nanos() > 0);
}

absl::Status CheckDurations(const JobSpec& spec) {
  if (spec.has_grace() && (spec.grace().seconds() < 0 || spec.grace().nanos() < 0)) {
    return Invalid("--grace is negative");
  }
  if (spec.has_deadline() && !IsOverZero(spec.deadline())) {
    return Invalid("--deadline is not over zero");
  }
  if (spec.has_stall_timeout() && !IsOverZero(spec.stall_timeout())) {
    return Invalid("--stall-timeout is not over zero");
  }
  return absl::OkStatus();
}

// What this version doesn't do is refused rather than ignored.
absl::Status CheckSupported(const JobSpec& spec) {
  using ringd::cluster::v1::ON_FAILURE_STOP;
  using ringd::cluster::v1::ON_FAILURE_UNSPECIFIED;
  if (spec.on_failure() != ON_FAILURE_UNSPECIFIED && spec.on_failure() != ON_FAILURE_STOP) {
    return Invalid("--on-failure: only 'stop' is available in this version");
  }
  const int ranks = spec.ranks();
  if ((spec.min_ranks() != 0 && spec.min_ranks() != ranks) ||
      (spec.max_ranks() != 0 && spec.max_ranks() != ranks)) {
    return Invalid(
        absl::StrCat("--min ", spec.min_ranks(), " --max ", spec.max_ranks(), " -n ", ranks,
                     ": a number of ranks that changes is not available in this version"));
  }
  if (spec.gpus_per_rank() != 0) {
    return Invalid(absl::StrCat("--gpus-per-rank ", spec.gpus_per_rank(),
                                ": no node of this cluster has GPUs"));
  }
  if (spec.cpus_per_rank() < 0) return Invalid("--cpus-per-rank is negative");
  return absl::OkStatus();
}

absl::Status ResolveHosts(const JobSpec& spec, Shape* shape) {
  std::set<std::string> seen;
  int64_t sum = 0;
  bool unlimited = false;
  for (const auto& host : spec.hosts()) {
    if (host.node().empty()) return Invalid("--hosts names a node without a name");
    if (!seen.insert(host.node()).second) {
      return Invalid(absl::StrCat("--hosts names node ", host.node(), " twice"));
    }
    if (host.slots() < -1 || host.slots() > kMaxSlotsPerNode) {
      return Invalid(
          absl::StrCat("--hosts: ", host.slots(), " is no count of slots for node ", host.node()));
    }
    unlimited |= host.slots() < 0;
    sum += std::max(host.slots(), 0);
    if (host.slots() != 0) shape->hosts.push_back({host.node(), host.slots()});
  }
  if (!spec.hosts().empty() && !unlimited && sum < shape->ranks) {
    return Invalid(absl::StrCat("--hosts gives ", Counted(static_cast<int>(sum), "slot"), ", ",
                                Counted(shape->ranks, "rank"), " need ", shape->ranks));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Counted(int count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

absl::Status CheckSpec(JobSpec* spec) {
  if (spec->ByteSizeLong() > kMaxSpecBytes) {
    return Invalid(absl::StrCat("command and environment are over ", kMaxSpecBytes / 1024,
                                " KB; pass fewer variables (--env NAME rather than --env-all)"));
  }
  for (const absl::Status& status :
       {CheckCommand(*spec), CheckDurations(*spec), CheckSupported(*spec)}) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = CheckName(spec); !status.ok()) return status;
  return ResolveShape(*spec).status();
}

absl::StatusOr<Shape> ResolveShape(const JobSpec& spec) {
  if (spec.ranks() < 0) return Invalid(absl::StrCat("-n ", spec.ranks(), " is negative"));
  if (spec.nodes() < 0) return Invalid(absl::StrCat("--nodes ", spec.nodes(), " is negative"));
  if (spec.ranks_per_node() < 0) {
    return Invalid(absl::StrCat("--ranks-per-node ", spec.ranks_per_node(), " is negative"));
  }
  const int64_t per_node = spec.ranks_per_node();
  const int64_t nodes = spec.nodes();
  int64_t ranks = spec.ranks();
  if (ranks == 0) ranks = std::max<int64_t>(nodes, 1) * std::max<int64_t>(per_node, 1);
  if (ranks > kMaxRanks) {
    return Invalid(absl::StrCat(ranks, " ranks are more than the ", kMaxRanks, " a job can have"));
  }
  if (nodes > 0 && per_node > 0 && ranks != nodes * per_node) {
    return Invalid(absl::StrCat("-n ", ranks, " is not --nodes ", nodes, " x --ranks-per-node ",
                                per_node, " = ", nodes * per_node));
  }
  if (per_node > 0 && ranks % per_node != 0) {
    return Invalid(absl::StrCat("-n ", ranks, " is no multiple of --ranks-per-node ", per_node));
  }
  if (nodes > ranks) {
    return Invalid(
        absl::StrCat("-n ", ranks, " is too few for --nodes ", nodes, ": each node gets a rank"));
  }
  Shape shape;
  shape.ranks = static_cast<int>(ranks);
  shape.nodes = static_cast<int>(nodes);
  shape.ranks_per_node = static_cast<int>(per_node);
  if (absl::Status status = ResolveHosts(spec, &shape); !status.ok()) return status;
  return shape;
}

}  // namespace ringd::scheduler
