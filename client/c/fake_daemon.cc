#include "client/c/fake_daemon.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "client/c/error.h"
#include "client/c/standalone.h"
#include "common/base/futex.h"
#include "common/base/word_copy.h"

namespace ringd::client {

FakeDaemon::FakeDaemon() {
  if (CreateStandaloneSegment(arena::kMinBytes, true, &segment_) != RINGD_OK) std::abort();
  doorbell_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

FakeDaemon::~FakeDaemon() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  const uint64_t one = 1;
  if (write(doorbell_.get(), &one, sizeof(one)) < 0) std::abort();
  thread_.join();
}

ArenaClientOptions FakeDaemon::Options(int rank, int size) {
  ArenaClientOptions options;
  options.segment = std::move(segment_);
  options.segment_bytes = arena::kMinBytes;
  options.doorbell = UniqueFd(dup(doorbell_.get()));
  options.info = ringd_info{.size = sizeof(ringd_info),
                            .rank = rank,
                            .world_size = size,
                            .local_rank = rank,
                            .local_size = size,
                            .node_count = 1,
                            .generation = 1};
  options.grow = [](uint64_t bytes, UniqueFd* fd, uint64_t* segment_bytes) {
    *segment_bytes = bytes;
    return CreateStandaloneSegment(bytes, false, fd);
  };
  return options;
}

void FakeDaemon::Serve(const ArenaClient& client, Handler handler) {
  memory_ = client.memory();
  handler_ = std::move(handler);
  thread_ = std::thread([this] { Run(); });
}

std::vector<arena::Descriptor> FakeDaemon::seen() {
  std::lock_guard lock(mu_);
  return seen_;
}

void FakeDaemon::Run() {
  arena::ArenaHeader& header = memory_->header();
  const arena::Descriptor* const queue = memory_->queue();
  uint64_t tail = 0;
  while (true) {
    while (tail < header.head.load()) {
      const arena::Descriptor descriptor = queue[tail % arena::kSlotCount];
      header.tail.store(++tail, std::memory_order_release);
      Handle(descriptor);
    }
    if (stop_.load()) return;
    header.sleeping.store(1);
    if (tail == header.head.load()) {
      pollfd bell{.fd = doorbell_.get(), .events = POLLIN, .revents = 0};
      uint64_t rung = 0;
      if (poll(&bell, 1, 10'000) == 1 && read(doorbell_.get(), &rung, sizeof(rung)) > 0) {
        doorbells_.fetch_add(1);
      }
    }
    header.sleeping.store(0);
  }
}

void FakeDaemon::Handle(const arena::Descriptor& descriptor) {
  {
    std::lock_guard lock(mu_);
    seen_.push_back(descriptor);
  }
  const Reply reply = handler_(descriptor);
  if (!reply.hold) {
    Complete(descriptor, reply);
    return;
  }
  std::lock_guard lock(mu_);
  held_.push_back(descriptor);
}

void FakeDaemon::CompleteHeld() {
  std::vector<arena::Descriptor> held;
  {
    std::lock_guard lock(mu_);
    held.swap(held_);
  }
  for (const arena::Descriptor& descriptor : held) Complete(descriptor, Reply{});
}

uint32_t FakeDaemon::WriteError(const Reply& reply) {
  if (reply.code == arena::Code::kOk) return 0;
  const uint32_t serial = ++error_serial_;
  arena::ErrorRecord& record = memory_->error_record(serial % arena::kErrorRecordCount);
  arena::ErrorDetails details{};
  details.rank = reply.rank;
  details.exit_code = -1;
  details.signal = 9;
  CopyText("node-a", details.node, sizeof(details.node));
  CopyText(reply.message, details.message, sizeof(details.message));
  CopyText("last line", details.stderr_tail, sizeof(details.stderr_tail));
  record.serial.store(0);
  StoreWords(&record.details, &details, sizeof(details));
  record.serial.store(serial, std::memory_order_release);
  return serial;
}

void FakeDaemon::Complete(const arena::Descriptor& descriptor, const Reply& reply) {
  arena::Slot& slot = memory_->slot(descriptor.slot);
  slot.code.store(static_cast<uint32_t>(reply.code), std::memory_order_relaxed);
  slot.error.store(WriteError(reply), std::memory_order_relaxed);
  slot.word.store(descriptor.number);
  if (slot.waiters.load() > 0) FutexWakeAll(&slot.word);
}

void FakeDaemon::Poison(arena::Code code, const std::string& message) {
  arena::ArenaHeader& header = memory_->header();
  header.poison_error.store(WriteError(Reply{.code = code, .message = message, .rank = 1}));
  header.poison.store(static_cast<uint32_t>(code));
}

}  // namespace ringd::client
