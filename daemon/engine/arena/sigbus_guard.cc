#include "daemon/engine/arena/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace ringd::daemon {
namespace {

// A free place has begin == 0; `end` is written before `begin`.
struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> bad{false};
  std::atomic<bool> taken{false};
};

Range ranges[SigbusGuard::kMaxRanges];
std::atomic<size_t> range_limit{0};  // Places ever used.
std::atomic<uint64_t> fault_count{0};

bool CoverPage(uintptr_t address) {
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
  return mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

void OnSigbus(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const size_t limit = range_limit.load();
  for (size_t i = 0; i < limit; ++i) {
    const uintptr_t begin = ranges[i].begin.load();
    if (begin == 0 || address < begin || address >= ranges[i].end.load()) continue;
    if (!CoverPage(address)) break;
    ranges[i].bad.store(true);
    fault_count.fetch_add(1);
    return;
  }
  signal(SIGBUS, SIG_DFL);  // The access is tried again and ends the process.
}

bool InstallHandler() {
  struct sigaction action = {};
  action.sa_sigaction = OnSigbus;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace

SigbusGuard::SigbusGuard(const void* data, size_t bytes) {
  static const bool installed = InstallHandler();
  if (!installed || bytes == 0) return;
  for (size_t i = 0; i < kMaxRanges; ++i) {
    if (ranges[i].taken.exchange(true)) continue;
    index_ = static_cast<int>(i);
    break;
  }
  if (index_ < 0) return;
  Range& range = ranges[index_];
  const auto begin = reinterpret_cast<uintptr_t>(data);
  range.bad.store(false);
  range.end.store(begin + bytes);
  range.begin.store(begin);
  size_t limit = range_limit.load();
  while (limit <= static_cast<size_t>(index_) &&
         !range_limit.compare_exchange_weak(limit, index_ + 1)) {
  }
}

SigbusGuard::SigbusGuard(SigbusGuard&& other) noexcept : index_(std::exchange(other.index_, -1)) {}

SigbusGuard& SigbusGuard::operator=(SigbusGuard&& other) noexcept {
  std::swap(index_, other.index_);
  return *this;
}

SigbusGuard::~SigbusGuard() {
  if (index_ < 0) return;
  ranges[index_].begin.store(0);
  ranges[index_].taken.store(false);
}

bool SigbusGuard::bad() const { return index_ >= 0 && ranges[index_].bad.load(); }

uint64_t SigbusGuard::FaultCount() { return fault_count.load(); }

}  // namespace ringd::daemon
