// ringd-limits: what this host's memory allows, for `ringctl bench`.
//
//   ringd-limits OPERATION DTYPE RANKS BYTES THREADS
//
// The sums and copies of a collective (or "copy": one buffer to another) on the same kind of
// buffers, by threads of one process and without anybody to wait for. DTYPE is the element type's
// number (common/base/types.h); BYTES is the larger of a rank's input and output. For each line of
// standard input it runs once, on buffers that are written anew, and prints its time in
// microseconds; where results lie beside inputs that is the faster of ordinary and streaming
// stores.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/base/futex.h"
#include "common/base/sealed_memory.h"
#include "common/base/spread_map.h"
#include "common/reduce/reduce.h"

namespace ringd {
namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr uint64_t kPageBytes = 4096;
constexpr int kMaxThreads = 1024;
// Of waiting by turning round; then others get the core: about as long as a thread is late by.
constexpr int kSpins = 1000;

struct Options {
  std::string operation;
  DType dtype = DType::kFloat32;
  size_t ranks = 1;
  size_t bytes = 0;
  int threads = 1;

  size_t element_bytes() const { return DTypeBytes(dtype); }
};

// A reduction of some buffers into others; of one buffer: a copy.
struct Step {
  std::vector<char*> in;
  std::vector<char*> out;
  size_t count = 0;  // Elements.
};

// Memory as arenas have it. Null: there is none.
char* Map(uint64_t bytes, uint32_t place) {
  const uint64_t size = (std::max<uint64_t>(bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
  UniqueFd fd;
  if (CreateSealedMemory("ringd-limits", size, &fd) != 0) return nullptr;
  void* memory = MapSpread(fd.get(), size, place);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

class Work {
 public:
  explicit Work(const Options& options) : options_(options) {}

  // False: no memory, or no such operation.
  bool Build() {
    const std::string& name = options_.operation;
    const size_t share = options_.bytes / options_.ranks / options_.element_bytes();
    const size_t share_bytes = share * options_.element_bytes();
    const bool in_place = name == "allreduce" || name == "broadcast";
    if (!Allocate(name == "allgather" ? share_bytes : options_.bytes, &in_)) return false;
    if (in_place) {
      out_ = in_;
    } else if (!Allocate(name == "reducescatter" ? share_bytes : options_.bytes, &out_)) {
      return false;
    }
    if (name == "allreduce") {
      steps_.push_back({in_, in_, options_.bytes / options_.element_bytes()});
    } else if (name == "broadcast" && options_.ranks > 1) {
      steps_.push_back(
          {{in_[0]}, {in_.begin() + 1, in_.end()}, options_.bytes / options_.element_bytes()});
    } else if (name == "copy") {
      steps_.push_back({in_, out_, options_.bytes / options_.element_bytes()});
    } else if (name == "allgather" || name == "reducescatter" || name == "alltoall") {
      AddShares(share, share_bytes);
    }
    can_stream_ = name != "allreduce";
    return !steps_.empty();
  }

  bool can_stream() const { return can_stream_; }

  void Refill() const {
    for (const Step& step : steps_) {
      for (char* buffer : step.in) std::memset(buffer, 0, step.count * options_.element_bytes());
      for (char* buffer : step.out) std::memset(buffer, 0, step.count * options_.element_bytes());
    }
  }

  void RunSlice(int thread, bool streaming) const {
    for (const Step& step : steps_) RunSlice(step, thread, streaming);
  }

 private:
  bool Allocate(size_t bytes, std::vector<char*>* buffers) {
    for (size_t rank = 0; rank < options_.ranks; ++rank) {
      char* const memory = Map(bytes, static_cast<uint32_t>(rank));
      if (memory == nullptr) return false;
      buffers->push_back(memory);
    }
    return true;
  }

  static std::vector<char*> Shifted(std::vector<char*> buffers, size_t bytes) {
    for (char*& buffer : buffers) buffer += bytes;
    return buffers;
  }

  void AddShares(size_t share, size_t share_bytes) {
    for (size_t rank = 0; rank < options_.ranks; ++rank) {
      if (options_.operation == "allgather") {
        steps_.push_back({{in_[rank]}, Shifted(out_, rank * share_bytes), share});
      } else if (options_.operation == "reducescatter") {
        steps_.push_back({Shifted(in_, rank * share_bytes), {out_[rank]}, share});
      } else {
        for (size_t from = 0; from < options_.ranks; ++from) {
          steps_.push_back(
              {{in_[from] + rank * share_bytes}, {out_[rank] + from * share_bytes}, share});
        }
      }
    }
  }

  void RunSlice(const Step& step, int thread, bool streaming) const {
    const size_t threads = options_.threads, piece = kPieceBytes / options_.element_bytes();
    const size_t begin = step.count * thread / threads, end = step.count * (thread + 1) / threads;
    std::vector<const void*> in(step.in.size());
    std::vector<void*> out(step.out.size());
    for (size_t at = begin; at < end; at += piece) {
      const size_t offset = at * options_.element_bytes();
      for (size_t i = 0; i < in.size(); ++i) in[i] = step.in[i] + offset;
      for (size_t i = 0; i < out.size(); ++i) out[i] = step.out[i] + offset;
      (streaming ? ReduceStreaming : Reduce)(options_.dtype, Reduction::kSum, in.data(), in.size(),
                                             out.data(), out.size(), std::min(piece, end - at),
                                             Scaling{});
    }
  }

  const Options options_;
  std::vector<char*> in_, out_;  // By rank.
  std::vector<Step> steps_;
  bool can_stream_ = false;
};

template <typename Condition>
void SpinUntil(Condition condition) {
  for (int spins = 0; !condition(); ++spins) {
    spins < kSpins ? CpuRelax() : std::this_thread::yield();
  }
}

// Threads that sleep between rounds and start each together: nothing of that is in a round's time.
class Crew {
 public:
  Crew(const Work* work, int threads) : work_(work) {
    for (int thread = 1; thread < threads; ++thread) {
      helpers_.emplace_back([this, thread] { Help(thread); });
    }
  }
  ~Crew() {
    stopping_ = true;
    Wake();
    for (std::thread& helper : helpers_) helper.join();
  }

  double RunMicros(bool streaming) {
    const int helpers = static_cast<int>(helpers_.size());
    ready_ = 0;
    finished_ = 0;
    go_ = false;
    streaming_ = streaming;
    Wake();
    while (ready_.load(std::memory_order_acquire) < helpers) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    go_.store(true, std::memory_order_release);
    work_->RunSlice(0, streaming);
    SpinUntil([&] { return finished_.load(std::memory_order_acquire) == helpers; });
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(end - start).count();
  }

 private:
  void Wake() {
    round_.fetch_add(1);
    FutexWakeAll(&round_);
  }

  void Help(int thread) {
    for (uint32_t seen = 0;; ++seen) {
      while (round_.load() == seen) FutexWait(&round_, seen, -1);
      if (stopping_) return;
      ready_.fetch_add(1, std::memory_order_release);
      SpinUntil([this] { return go_.load(std::memory_order_acquire); });
      work_->RunSlice(thread, streaming_);
      finished_.fetch_add(1, std::memory_order_release);
    }
  }

  const Work* const work_;
  std::atomic<uint32_t> round_ = 0;
  std::atomic<int> ready_ = 0, finished_ = 0;
  std::atomic<bool> go_ = false, stopping_ = false, streaming_ = false;
  std::vector<std::thread> helpers_;
};

bool Read(int argc, char** argv, Options* options) {
  if (argc != 6) return false;
  const int dtype = std::atoi(argv[2]), ranks = std::atoi(argv[3]), threads = std::atoi(argv[5]);
  options->operation = argv[1];
  options->dtype = static_cast<DType>(dtype);
  options->ranks = static_cast<size_t>(ranks);
  options->bytes = std::strtoull(argv[4], nullptr, 10);
  options->threads = threads;
  return dtype > 0 && dtype < kDTypeCount && ranks > 0 && ranks <= int{kMaxReduceBuffers} &&
         threads > 0 && threads <= kMaxThreads && options->bytes >= options->element_bytes();
}

int Main(int argc, char** argv) {
  Options options;
  if (!Read(argc, argv, &options)) {
    std::fprintf(stderr, "usage: ringd-limits OPERATION DTYPE RANKS BYTES THREADS\n");
    return 2;
  }
  Work work(options);
  if (!work.Build()) {
    std::fprintf(stderr, "ringd-limits: no operation %s, or no memory for %zu ranks of %zu bytes\n",
                 options.operation.c_str(), options.ranks, options.bytes);
    return 1;
  }
  Crew crew(&work, options.threads);
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c != '\n') continue;
    work.Refill();
    double micros = crew.RunMicros(false);
    if (work.can_stream()) {
      work.Refill();
      micros = std::min(micros, crew.RunMicros(true));
    }
    std::printf("%.3f\n", micros);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace ringd

int main(int argc, char** argv) { return ringd::Main(argc, argv); }
