#include "daemon/collectives/ring/ring_cluster.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

constexpr uint64_t kGeneration = 1;

}  // namespace

std::vector<GroupLayout> MakeLayouts(const std::vector<int>& ranks) {
  GroupLayout layout;
  for (size_t node = 0; node < ranks.size(); ++node) {
    layout.nodes.push_back(
        {std::string(1, static_cast<char>('a' + node)), layout.size(), ranks[node]});
  }
  std::vector<GroupLayout> layouts(ranks.size(), layout);
  for (size_t node = 0; node < ranks.size(); ++node) {
    layouts[node].node_index = static_cast<int>(node);
  }
  return layouts;
}

RingCluster::RingCluster(std::vector<GroupLayout> layouts,
                         const std::function<RingTuning(int)>& tuning_of)
    : layouts_(std::move(layouts)), ring_failures_(layouts_.size()) {
  const int count = node_count();
  for (int node = 0; node < count; ++node) {
    ports_.push_back(*DataPort::Create(&loop_, "127.0.0.1:0"));
  }
  communicators_.resize(count);
  int formed = 0;
  for (int node = 0; node < count; ++node) {
    RingOptions options;
    options.job = "test";
    options.generation = kGeneration;
    options.key = std::string(32, 'k');
    options.node_index = node;
    options.node_count = count;
    const auto address = [&](int right) {
      return absl::StrCat("127.0.0.1:", ports_[(node + right) % count]->port());
    };
    options.right_address = address(1);
    for (int k = 1; k <= ShortcutCount(count); ++k) {
      options.shortcut_addresses.push_back(address(1 << k));
    }
    ports_[node]->OpenRing(options, [this, node, &formed, tuning = tuning_of(node)](
                                        absl::StatusOr<RingSockets> sockets) {
      communicators_[node] = MakeRingCommunicator(
          layouts_[node], kGeneration, sockets.value(), &loop_,
          [this, node](const Outcome& outcome) { ring_failures_[node].push_back(outcome); },
          tuning);
      ++formed;
    });
  }
  while (formed < count) loop_.Poll(absl::Milliseconds(10));
}

RingCluster::~RingCluster() = default;

void RingCluster::Drive() {
  loop_.Poll(absl::ZeroDuration());
  for (int node = 0; node < node_count(); ++node) {
    if (communicators_[node] != nullptr) communicators_[node]->Progress();
  }
}

uint64_t RingCluster::RunInPlace(OperationKey key, const Collective& collective,
                                 const std::vector<std::byte*>& data) {
  const uint64_t before = communicator(0)->counters().bytes_sent;
  int finished = 0;
  for (int node = 0; node < node_count(); ++node) {
    auto part = std::make_shared<Collective>(collective);
    for (int i = 0; i < layout(node).local_count(); ++i) {
      std::byte* const place = data[layout(node).first_local_rank() + i];
      part->ranks.push_back({place, place});
    }
    communicator(node)->Start(key, std::move(part), [&finished](const Outcome& outcome) {
      EXPECT_TRUE(outcome.ok()) << outcome.message;
      ++finished;
    });
  }
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (finished < node_count() && absl::Now() < end) Drive();
  EXPECT_EQ(finished, node_count());
  return communicator(0)->counters().bytes_sent - before;
}

void RingCluster::DriveNode(int node) {
  loop_.Poll(absl::ZeroDuration());
  communicators_[node]->Progress();
}

}  // namespace ringd::daemon
