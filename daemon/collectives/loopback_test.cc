#include "daemon/collectives/loopback.h"

#include "daemon/collectives/conformance.h"

namespace ringd::daemon {
namespace {

class LoopbackCluster : public Cluster {
 public:
  explicit LoopbackCluster(const GroupLayout& layout)
      : layout_(layout), communicator_(MakeLoopbackCommunicator(layout)) {}
  const GroupLayout& layout(int) const override { return layout_; }
  Communicator* communicator(int) override { return communicator_.get(); }
  void Drive() override { communicator_->Progress(); }

 private:
  const GroupLayout layout_;
  std::unique_ptr<Communicator> communicator_;
};

std::unique_ptr<Cluster> MakeLoopbackCluster(const std::vector<GroupLayout>& layouts) {
  return std::make_unique<LoopbackCluster>(layouts[0]);
}

INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformanceTest,
                         testing::Values(Shape{"1rank", {1}, MakeLoopbackCluster},
                                         Shape{"2ranks", {2}, MakeLoopbackCluster},
                                         Shape{"5ranks", {5}, MakeLoopbackCluster}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ringd::daemon
