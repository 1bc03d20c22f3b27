// One rank's part of a collective operation, after its descriptor was found good.
#ifndef RINGD_DAEMON_ENGINE_ORDER_REQUEST_H_
#define RINGD_DAEMON_ENGINE_ORDER_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "common/reduce/reduce.h"
#include "common/reduce/wire_dtype.h"
#include "daemon/collectives/communicator.h"
#include "daemon/engine/order/plan.h"
#include "proto/arena.h"

namespace ringd::daemon {

class Client;

struct Request {
  Client* client =
      nullptr;  // Whose slot is told; it outlives the request. Null in tests of the order alone.
  uint32_t slot = 0;
  uint32_t number = 0;
  uint64_t sequence = 0;  // Its number in group 0's own sequence; 0: the order book counts.
  bool is_named = false;  // Ordered by name, not by number.
  bool direct = false;    // Taken from the ranks' shared segment: its rank waits there, not here.
  bool joined = false;    // Made for a rank that has joined, which waits for nothing.
  std::vector<std::byte> scratch;  // direct: where its result goes, which nobody reads.
  std::vector<std::shared_ptr<std::byte>> memory;  // joined: of `buffer`.

  Operation operation = Operation::kInvalid;
  DType dtype = DType::kInvalid;
  Reduction reduction = Reduction::kNone;
  WireDType wire = WireDType::kSame;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;                  // Or the group that is made or given up.
  int peer = -1;                 // kSend, kRecv: the other rank, by its number in the job.
  uint64_t count = 0;            // Elements at the input; scatter, recv: at the output.
  std::vector<uint64_t> counts;  // As arena::Meta says; empty: the same for every rank.
  RankBuffer buffer;
  uint64_t signature = 0;
  uint32_t group = 0;
  uint32_t tag = 0;
  uint32_t plan_id = 0;              // Plan operations; else 0.
  uint32_t bucket = 0;               // kPlanBucket.
  std::shared_ptr<const Plan> plan;  // kPlanRegister, kPlanBucket.

  // For messages.
  std::vector<int64_t> shape;
  std::string name;
  std::string site;

  // Not empty: the operation makes no sense, though its descriptor is sound. It takes its place in
  // the sequence and fails for all ranks.
  std::string rejection;

  // Stands for its rank, which is not told of the outcome.
  bool IsStandIn() const { return direct || joined; }
};

using RequestPtr = std::unique_ptr<Request>;
using RequestVisitor = std::function<void(OperationKey key, const Request& request)>;

// "allreduce float32[10] sum", with root, scales, tag, name and call site where they matter.
std::string DescribeRequest(const Request& request);

// Collective::description: "rank 3: " and the above, or the plan's canonical text.
std::string DescribeForRank(const Request& request, int rank);

// Whether both ask for the same operation: everything that decides what is computed, and the
// clients' signatures.
bool SameOperation(const Request& a, const Request& b);

// The collective of requests that are the same operation, by local rank. with_description: for
// other nodes to compare.
std::shared_ptr<const Collective> MakeCollective(const std::vector<RequestPtr>& requests,
                                                 const GroupLayout& layout, bool with_description);

// Bytes that the operation reduces for each rank: a counter.
uint64_t ReducedBytes(const Request& request);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_ENGINE_ORDER_REQUEST_H_
