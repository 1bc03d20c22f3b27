#include "daemon/collectives/loopback.h"

#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "common/reduce/reduce.h"

namespace ringd::daemon {
namespace {

using Bytes = std::vector<std::byte>;

const std::byte* InputOf(const RankBuffer& buffer) {
  return buffer.input != nullptr ? buffer.input : buffer.output;
}

void Append(Bytes* result, const std::byte* data, uint64_t bytes) {
  if (bytes > 0) result->insert(result->end(), data, data + bytes);
}

// The reduction of elements [first, first + count) of all inputs.
Bytes Reduced(const Collective& collective, uint64_t first, uint64_t count) {
  const size_t element = DTypeBytes(collective.dtype);
  Bytes result(count * element);
  if (count == 0) return result;
  std::vector<const void*> inputs;
  for (const RankBuffer& buffer : collective.ranks) {
    inputs.push_back(InputOf(buffer) + first * element);
  }
  void* output = result.data();
  Reduce(collective.dtype, collective.reduction, inputs.data(), inputs.size(), &output, 1, count,
         collective.scaling);
  return result;
}

std::vector<Bytes> ReduceScatter(const Collective& collective) {
  std::vector<Bytes> results;
  uint64_t first = 0;
  for (uint64_t count : collective.counts) {
    results.push_back(Reduced(collective, first, count));
    first += count;
  }
  return results;
}

Bytes AllGather(const Collective& collective) {
  Bytes result;
  const size_t element = DTypeBytes(collective.dtype);
  for (size_t rank = 0; rank < collective.ranks.size(); ++rank) {
    Append(&result, InputOf(collective.ranks[rank]), collective.counts[rank] * element);
  }
  return result;
}

std::vector<Bytes> AllToAll(const Collective& collective) {
  const size_t size = collective.ranks.size();
  const size_t element = DTypeBytes(collective.dtype);
  std::vector<Bytes> results(size);
  for (size_t from = 0; from < size; ++from) {
    const std::byte* data = InputOf(collective.ranks[from]);
    for (size_t to = 0; to < size; ++to) {
      const uint64_t bytes = collective.counts[from * size + to] * element;
      Append(&results[to], data, bytes);
      if (bytes > 0) data += bytes;
    }
  }
  return results;
}

std::vector<Bytes> Scatter(const Collective& collective) {
  std::vector<Bytes> results(collective.ranks.size());
  const std::byte* data = InputOf(collective.ranks[collective.root]);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const uint64_t bytes = collective.counts[rank] * DTypeBytes(collective.dtype);
    Append(&results[rank], data, bytes);
    if (bytes > 0) data += bytes;
  }
  return results;
}

// Every rank's result; the inputs are as they were.
std::vector<Bytes> ResultsOf(const Collective& collective) {
  const size_t size = collective.ranks.size();
  switch (collective.operation) {
    case Operation::kAllreduce:
      return std::vector<Bytes>(size, Reduced(collective, 0, collective.count));
    case Operation::kReduceScatter:
      return ReduceScatter(collective);
    case Operation::kAllgather:
      return std::vector<Bytes>(size, AllGather(collective));
    case Operation::kAlltoall:
      return AllToAll(collective);
    case Operation::kReduce: {
      std::vector<Bytes> results(size);
      results[collective.root] = Reduced(collective, 0, collective.count);
      return results;
    }
    case Operation::kGather: {
      std::vector<Bytes> results(size);
      results[collective.root] = AllGather(collective);
      return results;
    }
    case Operation::kScatter:
      return Scatter(collective);
    case Operation::kBroadcast: {
      Bytes result;
      Append(&result, InputOf(collective.ranks[collective.root]),
             collective.count * DTypeBytes(collective.dtype));
      return std::vector<Bytes>(size, result);
    }
    default:
      return std::vector<Bytes>(size);
  }
}

class LoopbackCommunicator : public Communicator {
 public:
  void Start(OperationKey key, std::shared_ptr<const Collective> collective, Done done) override {
    queue_.push_back({key, std::move(collective), std::move(done)});
  }

  bool Progress() override {
    if (queue_.empty()) return false;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    const std::vector<Bytes> results = ResultsOf(*item.collective);
    for (size_t rank = 0; rank < results.size(); ++rank) {
      if (results[rank].empty()) continue;
      std::memcpy(item.collective->ranks[rank].output, results[rank].data(), results[rank].size());
    }
    item.done(Outcome{});
    return true;
  }

  void Abort(OperationKey key, const Outcome& outcome) override {
    FailWhere([&](OperationKey other) { return other == key; }, outcome);
  }
  void AbortFrom(OperationKey key, const Outcome& outcome) override {
    FailWhere(
        [&](OperationKey other) {
          return other.channel == key.channel && other.sequence >= key.sequence;
        },
        outcome);
  }
  void set_peer_failure_handler(PeerFailure) override {}

 private:
  struct Item {
    OperationKey key;
    std::shared_ptr<const Collective> collective;
    Done done;
  };

  template <typename Predicate>
  void FailWhere(Predicate fails, const Outcome& outcome) {
    std::deque<Item> kept, failed;
    for (Item& item : queue_) (fails(item.key) ? failed : kept).push_back(std::move(item));
    queue_ = std::move(kept);
    for (Item& item : failed) item.done(outcome);
  }

  std::deque<Item> queue_;
};

}  // namespace

std::unique_ptr<Communicator> MakeLoopbackCommunicator(const GroupLayout&) {
  return std::make_unique<LoopbackCommunicator>();
}

}  // namespace ringd::daemon
