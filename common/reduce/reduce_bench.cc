// Bytes read and written a second, by target, dtype and number of inputs, beside memcpy of the same
// size.
//
//   bazel run //common/reduce:reduce_bench -- --benchmark_filter='float32|memcpy'

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "common/reduce/kernel_table.h"
#include "common/reduce/reduce.h"

namespace ringd {
namespace {

using reduce_internal::ReduceBy;
using reduce_internal::Target;
using reduce_internal::Targets;

constexpr size_t kSmallBytes = size_t{256} << 10;  // A chunk in the second-level cache.
constexpr size_t kLargeBytes = size_t{64} << 20;

enum class Mode { kInPlace, kBeside, kBesideStreaming, kAverage };

constexpr const char* kModeNames[] = {"in_place", "beside", "beside_streaming", "average"};

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, FreeDeleter>;

Buffer MakeBuffer(size_t byte_count) {
  Buffer buffer(std::aligned_alloc(64, byte_count));
  std::memset(buffer.get(), 0, byte_count);
  return buffer;
}

void RunReduce(benchmark::State& state, const Target* target, DType dtype, size_t input_count,
               size_t byte_count, Mode mode) {
  std::vector<Buffer> buffers;
  for (size_t i = 0; i <= input_count; ++i) buffers.push_back(MakeBuffer(byte_count));
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (size_t i = 0; i < input_count; ++i) {
    inputs.push_back(buffers[i].get());
    if (mode == Mode::kInPlace || mode == Mode::kAverage) outputs.push_back(buffers[i].get());
  }
  if (outputs.empty()) outputs.push_back(buffers[input_count].get());
  Scaling scaling;
  if (mode == Mode::kAverage) scaling.divisor = 3.0;
  for (auto _ : state) {
    ReduceBy(*target->kernels, dtype, Reduction::kSum, inputs.data(), inputs.size(), outputs.data(),
             outputs.size(), byte_count / DTypeBytes(dtype), scaling,
             mode == Mode::kBesideStreaming);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(
      static_cast<int64_t>(state.iterations() * byte_count * (inputs.size() + outputs.size())));
}

void RunMemcpy(benchmark::State& state, size_t byte_count) {
  const Buffer from = MakeBuffer(byte_count);
  const Buffer to = MakeBuffer(byte_count);
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), byte_count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * byte_count * 2));
}

void RegisterTarget(const Target* target, size_t byte_count) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                      DType::kInt32, DType::kInt64}) {
    for (size_t input_count : {1, 2, 4, 8}) {
      for (Mode mode : {Mode::kInPlace, Mode::kBeside, Mode::kBesideStreaming, Mode::kAverage}) {
        const std::string name = std::string(target->name) + "/" + DTypeName(dtype) +
                                 "/inputs:" + std::to_string(input_count) + "/" +
                                 kModeNames[static_cast<size_t>(mode)] + "/" +
                                 std::to_string(byte_count);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          RunReduce(state, target, dtype, input_count, byte_count, mode);
        })->MinTime(0.1);
      }
    }
  }
}

void RegisterAll() {
  size_t target_count = 0;
  const Target* targets = Targets(&target_count);
  for (size_t byte_count : {kSmallBytes, kLargeBytes}) {
    const std::string name = "memcpy/" + std::to_string(byte_count);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      RunMemcpy(state, byte_count);
    })->MinTime(0.1);
    for (size_t t = 0; t < target_count; ++t) {
      if (targets[t].is_supported()) RegisterTarget(targets + t, byte_count);
    }
  }
}

}  // namespace
}  // namespace ringd

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  ringd::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
