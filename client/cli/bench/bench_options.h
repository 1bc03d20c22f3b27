// The options of `ringctl bench`, and the command of its ranks that they describe.
#ifndef RINGD_CLIENT_CLI_BENCH_BENCH_OPTIONS_H_
#define RINGD_CLIENT_CLI_BENCH_BENCH_OPTIONS_H_

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/job/job_options.h"

namespace ringd::cli {

// As typed; "" or 0 where not given.
struct BenchOptions {
  JobOptions job;
  std::string operation;
  std::string sizes;
  std::string dtype = "float32";
  std::string wire;
  int rounds = 11;
  bool outside = false;  // Tensors in ordinary memory, not in the arena.
  bool peers = false;
  double link_gbit = 0;
  std::string plot;
  std::string python;
};

void AddBenchOptions(CLI::App* app, BenchOptions* options);

// "1KB,16MB" in bytes. INVALID_ARGUMENT names the size that is none.
absl::StatusOr<std::vector<int64_t>> ParseSizes(const std::string& text);

// Whether the options say nothing about the number of ranks: the benchmark then takes all slots.
bool TakesAllSlots(const BenchOptions& options);

// What each rank runs. INVALID_ARGUMENT: unknown operation, dtype or size, or a single rank.
absl::StatusOr<std::vector<std::string>> BenchCommand(const BenchOptions& options);

// --python, else the Python that this ringctl is installed in (`program`: a path in its folder of
// programs), else "python3".
std::string BenchPython(const BenchOptions& options, const std::string& program);

}  // namespace ringd::cli

#endif  // RINGD_CLIENT_CLI_BENCH_BENCH_OPTIONS_H_
