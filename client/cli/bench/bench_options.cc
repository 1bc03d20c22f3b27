#include "client/cli/bench/bench_options.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/config/config.h"
#include "common/status/macros.h"

namespace ringd::cli {
namespace {

using Words = std::vector<std::string>;

constexpr char kLatency[] = "latency";
constexpr char kMany[] = "many";
// Of the list below, those that run where no operation is named.
constexpr int kDefaultOperations = 6;
constexpr char kDefaultSizes[] = "8B,1KB,4KB,64KB,1MB,16MB,64MB";
constexpr char kManySizes[] = "64KB";
constexpr char kLatencySizes[] = "8B,64B,512B,1KB,4KB";
// Each rank has two buffers of it at most, and so has the program that measures memory's limit.
constexpr int64_t kMaxSizeBytes = int64_t{64} << 30;
constexpr int kMaxRounds = 10'000;

const Words& Operations() {
  static const Words& names =
      *new Words{"allreduce", "allgather", "broadcast", "reducescatter", "alltoall",
                 "barrier",   kLatency,    kMany,       "path"};
  return names;
}

const Words& DTypes() {
  static const Words& names =
      *new Words{"float32", "float64", "float16", "uint8",  "int8", "uint16",
                 "int16",   "uint32",  "int32",   "uint64", "int64"};
  return names;
}

const Words& Wires() {
  static const Words& names = *new Words{"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"};
  return names;
}

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status CheckWord(const std::string& what, const std::string& word, const Words& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return absl::OkStatus();
  const std::string nearest = NearestWord(word, known);
  return Invalid(absl::StrCat("unknown ", what, " '", word, "' (",
                              nearest.empty()
                                  ? absl::StrCat("it can be ", absl::StrJoin(known, ", "))
                                  : absl::StrCat("did you mean '", nearest, "'?"),
                              ")"));
}

absl::Status CheckRanks(const BenchOptions& options) {
  if (TakesAllSlots(options)) {
    if (options.job.hosts.empty() && options.job.hostfile.empty()) return absl::OkStatus();
    return Invalid("--hosts and --hostfile need the number of ranks: give -n N too");
  }
  RINGD_ASSIGN_OR_RETURN(const int ranks, CountRanks(options.job));
  if (ranks > 1) return absl::OkStatus();
  return Invalid(
      "one rank has nobody to talk to: give -n 2 or more, or leave it out for all slots");
}

}  // namespace

void AddBenchOptions(CLI::App* app, BenchOptions* options) {
  app->add_option(
      "OPERATION", options->operation,
      absl::StrCat(absl::StrJoin(Operations(), ", "), "; default: all but the last three"));
  app->add_option("--sizes", options->sizes,
                  absl::StrCat("larger of a rank's input and output (default ", kDefaultSizes, ")"))
      ->check([](const std::string& text) { return text.empty() ? "is empty" : ""; });
  app->add_option("--dtype", options->dtype, "element type, as NumPy names it (default float32)");
  app->add_option("--wire", options->wire,
                  absl::StrCat("narrower type of allreduces between nodes: ",
                               absl::StrJoin(Wires(), ", "), " (default: none)"));
  app->add_option("--rounds", options->rounds, "rounds of each line (default 11)")
      ->check(CLI::Range(1, kMaxRounds));
  app->add_flag("--outside", options->outside, "tensors in ordinary memory, not in the arena");
  app->add_flag("--peers", options->peers,
                "measure other libraries in between: Gloo, Open MPI, MPICH");
  app->add_option("--link-gbit", options->link_gbit,
                  "rate of the links between nodes (default: measured)")
      ->check(CLI::PositiveNumber);
  app->add_option("--plot", options->plot, "draw a picture into this file (needs matplotlib)");
  app->add_option("--python", options->python,
                  "Python of the ranks, with ringd (default: that of this ringctl)");
  AddJobOptions(app, &options->job);
  app->get_option("-n")->description("number of ranks (default: all slots, 2 at least)");
}

absl::StatusOr<std::vector<int64_t>> ParseSizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const auto size = ParseBytes(std::string(word));
    if (!size.ok() || *size < 1 || *size > kMaxSizeBytes) {
      return Invalid(absl::StrCat("--sizes: '", word,
                                  "' is no size from 1B to 64GB; write them as in 8B,1KB,16MB"));
    }
    sizes.push_back(*size);
  }
  return sizes;
}

bool TakesAllSlots(const BenchOptions& options) {
  return options.job.ranks == 0 && options.job.nodes == 0 && options.job.ranks_per_node == 0;
}

absl::StatusOr<std::vector<std::string>> BenchCommand(const BenchOptions& options) {
  Words operations = {options.operation};
  if (options.operation.empty()) {
    operations.assign(Operations().begin(), Operations().begin() + kDefaultOperations);
  } else {
    RINGD_RETURN_IF_ERROR(CheckWord("operation", options.operation, Operations()));
  }
  RINGD_RETURN_IF_ERROR(CheckWord("dtype", options.dtype, DTypes()));
  if (!options.wire.empty()) {
    RINGD_RETURN_IF_ERROR(CheckWord("wire", options.wire, Wires()));
    const bool has_floats = options.dtype == "float32" ||
                            (options.dtype == "float16" && absl::StartsWith(options.wire, "fp8"));
    if (!has_floats) {
      return Invalid(absl::StrCat(options.dtype, " can't travel as ", options.wire,
                                  "; leave --wire out or take --dtype float32"));
    }
  }
  RINGD_RETURN_IF_ERROR(CheckRanks(options));
  const std::string defaults = options.operation == kLatency ? kLatencySizes
                               : options.operation == kMany  ? kManySizes
                                                             : kDefaultSizes;
  RINGD_ASSIGN_OR_RETURN(const auto sizes,
                         ParseSizes(options.sizes.empty() ? defaults : options.sizes));
  Words command = {"-m",           "ringd.bench",
                   "--operations", absl::StrJoin(operations, ","),
                   "--sizes",      absl::StrJoin(sizes, ","),
                   "--dtype",      options.dtype,
                   "--rounds",     absl::StrCat(options.rounds)};
  if (!options.wire.empty()) command.insert(command.end(), {"--wire", options.wire});
  if (options.outside) command.push_back("--outside");
  if (options.peers) command.push_back("--peers");
  if (options.link_gbit > 0) {
    command.insert(command.end(), {"--link-gbit", absl::StrCat(options.link_gbit)});
  }
  return command;
}

std::string BenchPython(const BenchOptions& options, const std::string& program) {
  if (!options.python.empty()) return options.python;
  // PREFIX/lib/python3.X/site-packages/ringd/bin/ringctl
  constexpr int kDepth = 6;
  std::string prefix = program;
  for (int i = 0; i < kDepth; ++i) prefix.resize(std::min(prefix.rfind('/'), prefix.size()));
  const std::string python = prefix + "/bin/python3";
  return access(python.c_str(), X_OK) == 0 && !prefix.empty() ? python : "python3";
}

}  // namespace ringd::cli
