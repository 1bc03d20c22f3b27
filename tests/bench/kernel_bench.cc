// The limit of an allreduce in one node's memory: the same sums on the same kind of buffers by
// threads of one process.
//
//   kernel_bench RANKS BYTES THREADS ROUNDS
//
// Prints the median of ROUNDS rounds in microseconds: each thread sums its own contiguous slice of
// RANKS float32 buffers in place (reads and writes each buffer once: 2 * RANKS * BYTES of memory
// traffic). Buffers are memfds, as arenas are, and written anew before each round.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/reduce/reduce.h"

namespace ringd {
namespace {

constexpr size_t kPieceElements = (256 << 10) / sizeof(float);
constexpr uint64_t kPageBytes = 4096;

struct Work {
  std::vector<float*> buffers;
  size_t count = 0;
  int threads = 1;

  void RunSlice(int thread) const {
    const size_t begin = count * thread / threads, end = count * (thread + 1) / threads;
    std::vector<const void*> in(buffers.size());
    std::vector<void*> out(buffers.size());
    for (size_t at = begin; at < end; at += kPieceElements) {
      for (size_t i = 0; i < buffers.size(); ++i) in[i] = out[i] = buffers[i] + at;
      Reduce(DType::kFloat32, Reduction::kSum, in.data(), in.size(), out.data(), out.size(),
             std::min(kPieceElements, end - at), Scaling{});
    }
  }
};

// Threads that start each round together and are waited for by spinning: nothing of it is in the
// round's time but work.
int64_t MedianMicros(const Work& work, int rounds) {
  std::atomic<int> round{0}, finished{0};
  std::vector<std::thread> helpers;
  for (int thread = 1; thread < work.threads; ++thread) {
    helpers.emplace_back([&, thread] {
      for (int seen = 0; seen < rounds; ++seen) {
        while (round.load(std::memory_order_acquire) == seen) CpuRelax();
        work.RunSlice(thread);
        finished.fetch_add(1, std::memory_order_release);
      }
    });
  }
  std::vector<int64_t> times;
  for (int i = 0; i < rounds; ++i) {
    for (float* buffer : work.buffers) std::fill(buffer, buffer + work.count, 1.0f);
    finished = 0;
    const int64_t start = MonotonicMicros();
    round.fetch_add(1, std::memory_order_release);
    work.RunSlice(0);
    while (finished.load(std::memory_order_acquire) < work.threads - 1) CpuRelax();
    times.push_back(MonotonicMicros() - start);
  }
  for (std::thread& helper : helpers) helper.join();
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

int Main(int argc, char** argv) {
  const int ranks = argc == 5 ? std::atoi(argv[1]) : 0;
  const uint64_t bytes = argc == 5 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const int threads = argc == 5 ? std::atoi(argv[3]) : 0;
  const int rounds = argc == 5 ? std::atoi(argv[4]) : 0;
  if (ranks < 1 || ranks > static_cast<int>(kMaxReduceBuffers) || bytes < sizeof(float) ||
      threads < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: kernel_bench RANKS BYTES THREADS ROUNDS\n");
    return 2;
  }
  Work work;
  work.count = bytes / sizeof(float);
  work.threads = threads;
  for (int rank = 0; rank < ranks; ++rank) {
    const uint64_t size = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    UniqueFd fd;
    if (CreateSealedMemory("kernel_bench", size, &fd) != 0) return 1;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) return 1;
    work.buffers.push_back(static_cast<float*>(memory));
  }
  std::printf("%lld\n", static_cast<long long>(MedianMicros(work, rounds)));
  return 0;
}

}  // namespace
}  // namespace ringd

int main(int argc, char** argv) { return ringd::Main(argc, argv); }
