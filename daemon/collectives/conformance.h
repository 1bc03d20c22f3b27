// What every communicator must do, whatever carries it out: one suite for all implementations.
//
// An implementation's test file defines a Cluster and instantiates the suite:
//   INSTANTIATE_TEST_SUITE_P(Local, CommunicatorConformanceTest, testing::Values(Shape{"2 ranks",
//   MakeTwoRanks}), ...);
#ifndef RINGD_DAEMON_COLLECTIVES_CONFORMANCE_H_
#define RINGD_DAEMON_COLLECTIVES_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/collectives/communicator.h"
#include "gtest/gtest.h"

namespace ringd::daemon {

// The communicators of all nodes of one group, in one thread.
class Cluster {
 public:
  virtual ~Cluster() = default;
  virtual const GroupLayout& layout(int node) const = 0;
  virtual Communicator* communicator(int node) = 0;
  // Lets every node do some work.
  virtual void Drive() = 0;
};

// How a Cluster comes to be: rank counts by node.
struct Shape {
  std::string name;
  std::vector<int> ranks;  // By node.
  std::function<std::unique_ptr<Cluster>(const std::vector<GroupLayout>&)> create;
  friend void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }
};

class CommunicatorConformanceTest : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override;
  int node_count() const { return static_cast<int>(GetParam().ranks.size()); }

  int size_ = 0;
  std::vector<GroupLayout> layouts_;
  std::unique_ptr<Cluster> cluster_;
};

// ---- The independent reference (conformance_reference.cc): plain loops over doubles and 64-bit
// integers. ----

using Bytes = std::vector<std::byte>;

// `count` elements that are exact in every dtype and whose sums over a few ranks stay exact: small
// whole numbers that depend on rank, position and seed.
Bytes MakeInput(DType dtype, uint64_t count, int rank, unsigned seed);

// The reduction of all ranks' inputs, in rank order, then scaled.
Bytes ReferenceReduce(DType dtype, Reduction reduction, const Scaling& scaling,
                      const std::vector<Bytes>& inputs);

// Element as a double, for messages and tolerance.
double ElementValue(DType dtype, const Bytes& bytes, uint64_t index);

}  // namespace ringd::daemon

#endif  // RINGD_DAEMON_COLLECTIVES_CONFORMANCE_H_
