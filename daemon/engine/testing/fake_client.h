// A client for tests: one rank's arena in this process, without worker and client library.
#ifndef RINGD_DAEMON_ENGINE_TESTING_FAKE_CLIENT_H_
#define RINGD_DAEMON_ENGINE_TESTING_FAKE_CLIENT_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "daemon/engine/engine.h"
#include "proto/arena.h"

namespace ringd::daemon {

// Thread-bound: one thread at a time.
class FakeClient {
 public:
  struct Result {
    bool timed_out = false;
    arena::Code code = arena::Code::kOk;
    std::string message;
    int rank = -1;
    std::string node;
    int exit_code = -1;
    int signal = 0;
    std::string stderr_tail;
  };
  struct Ticket {
    uint32_t slot = 0;
    uint32_t number = 0;
  };

  // A sealed arena with its header.
  explicit FakeClient(uint64_t bytes = arena::kMinBytes);
  ~FakeClient();
  FakeClient(const FakeClient&) = delete;
  FakeClient& operator=(const FakeClient&) = delete;

  // As it was made, as far as it was used: header, and zeros. REQUIRES: nobody serves it.
  void Renew();

  // Hands it to the engine as `arena` of the rank.
  absl::Status Attach(Engine* engine, const std::string& job, int rank, uint64_t arena = 1);
  // A duplicate of the memfd, owned by the caller.
  ArenaSegment Segment() const;

  // Memory in the slab, aligned to 128 bytes, never freed.
  arena::Ref Allocate(uint64_t bytes);
  void* At(arena::Ref ref) { return data_ + arena::RefOffset(ref); }
  template <typename T>
  arena::Ref Put(const std::vector<T>& values) {
    const arena::Ref ref = Allocate(values.size() * sizeof(T));
    std::copy(values.begin(), values.end(), static_cast<T*>(At(ref)));
    return ref;
  }
  template <typename T>
  std::vector<T> Get(arena::Ref ref, size_t count) {
    const auto* const values = static_cast<const T*>(At(ref));
    return std::vector<T>(values, values + count);
  }

  // A sound descriptor of an operation on `count` elements.
  arena::Descriptor Describe(Operation operation, DType dtype = DType::kInvalid,
                             Reduction reduction = Reduction::kNone, uint64_t count = 0,
                             arena::Ref input = arena::kNullRef,
                             arena::Ref output = arena::kNullRef);
  // Makes `descriptor`'s meta record from counts.
  void SetCounts(const std::vector<int64_t>& counts, arena::Descriptor* descriptor);

  // Makes it one that is ordered by its name.
  void SetName(const std::string& name, arena::Descriptor* descriptor);

  // Gives it slot, number and serial and publishes it; rings the doorbell if the daemon sleeps.
  Ticket Submit(arena::Descriptor descriptor);
  // All become visible by one store.
  std::vector<Ticket> SubmitBatch(std::vector<arena::Descriptor> descriptors);
  // Publishes them as they are.
  void Publish(const std::vector<arena::Descriptor>& descriptors);
  // The next submission's slot, number, serial put into the descriptor.
  Ticket Number(arena::Descriptor* descriptor);
  // Publishes nothing new, but moves the head.
  void MoveHead(uint64_t head);

  // Sleeps until the operation is over or the arena is poisoned.
  Result Wait(Ticket ticket, int64_t timeout_us = 10'000'000);
  // The same, as the client's only thread and without a time limit for the daemon to see.
  Result Block(Ticket ticket, int64_t timeout_us = 10'000'000);
  Result Run(const arena::Descriptor& descriptor) { return Wait(Submit(descriptor)); }
  bool IsOver(Ticket ticket) const;
  // Futex waits that ran into their time limit although the operation was over: lost wake-ups.
  uint64_t late_wakes() const { return late_wakes_; }
  bool IsPoisoned() const { return header()->poison.load() != 0; }
  Result PoisonResult() const;

  uint64_t bytes() const { return bytes_; }
  arena::ArenaHeader* header() const { return reinterpret_cast<arena::ArenaHeader*>(data_); }
  int fd() const { return fd_.get(); }

 private:
  void WriteHeader();
  arena::Slot* slot(uint32_t index) const;
  Result ReadResult(uint32_t code, uint32_t serial) const;

  UniqueFd fd_;
  UniqueFd doorbell_;
  uint64_t bytes_;
  std::byte* data_ = nullptr;
  uint64_t next_offset_;
  uint64_t head_ = 0;
  uint64_t serial_ = 0;
  uint64_t generation_ = 1;
  uint32_t next_slot_ = 0;
  uint64_t late_wakes_ = 0;
  std::vector<uint32_t> numbers_;
};

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_TESTING_FAKE_CLIENT_H_
