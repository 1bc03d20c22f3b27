#include "daemon/engine/names/name_book.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/names/name_table.h"
#include "daemon/engine/order/form.h"
#include "gtest/gtest.h"
#include "proto/wire.h"

namespace ringd::daemon {
namespace {

using Kind = Action::Kind;

RequestPtr Named(const std::string& name, uint64_t count = 10) {
  auto request = std::make_unique<Request>();
  request->operation = Operation::kAllreduce;
  request->dtype = DType::kFloat32;
  request->reduction = Reduction::kSum;
  request->count = count;
  request->shape = {static_cast<int64_t>(count)};
  request->name = name;
  request->is_named = true;
  request->signature = count;
  return request;
}

// The books of all nodes of a group, and what is on its way between them.
class Ring {
 public:
  Ring(int nodes, int ranks_per_node) {
    GroupLayout layout;
    for (int node = 0; node < nodes; ++node) {
      layout.nodes.push_back(
          {std::string(1, static_cast<char>('a' + node)), node * ranks_per_node, ranks_per_node});
    }
    for (int node = 0; node < nodes; ++node) {
      layout.node_index = node;
      notes_.push_back(std::make_unique<std::vector<Note>>());
      books_.push_back(std::make_unique<NameBook>(layout, 0, notes_.back().get()));
    }
    wires_.resize(nodes);
    started_.resize(nodes);
    told_.resize(nodes);
  }

  void Submit(int node, int local_rank, RequestPtr request) {
    Actions actions;
    books_[node]->Submit(local_rank, std::move(request), 1, &actions);
    Write(node, &actions);
  }
  void EndRank(int node, int local_rank, const Outcome& outcome) {
    Actions actions;
    books_[node]->EndRank(local_rank, 0, outcome, &actions);
    Write(node, &actions);
  }
  // Hands the node the oldest note of its left neighbour. Returns whether there was one.
  bool Deliver(int node) {
    std::deque<std::string>& wire = wires_[node];
    if (wire.empty()) return false;
    Actions actions;
    const absl::Status status = Read(node, wire.front(), &actions);
    EXPECT_TRUE(status.ok()) << status;
    wire.pop_front();
    Write(node, &actions);
    return true;
  }
  void DeliverAll() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t node = 0; node < books_.size(); ++node) {
        moved |= Deliver(static_cast<int>(node));
      }
    }
  }

  absl::Status Read(int node, const std::string& text, Actions* actions) {
    absl::StatusOr<std::vector<Note>> notes = DecodeNotes(text);
    if (!notes.ok()) return notes.status();
    for (Note& note : *notes) {
      absl::Status status = books_[node]->OnNote(std::move(note), actions);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  NameBook& book(int node) { return *books_[node]; }
  // "w", in the order in which the node started them.
  const std::vector<std::string>& started(int node) const { return started_[node]; }
  // Messages, by name and call.
  const std::vector<std::pair<std::string, std::string>>& told(int node) const {
    return told_[node];
  }
  uint64_t note_bytes() const { return note_bytes_; }

 private:
  void Write(int node, Actions* actions) {
    for (Action& action : *actions) {
      if (action.kind == Kind::kStart) {
        EXPECT_EQ(action.key.channel, wire::ChannelId(0, wire::kNamed));
        EXPECT_EQ(action.key.sequence, started_[node].size() + 1);
        for (const RequestPtr& request : action.requests) {
          ASSERT_NE(request, nullptr);
          EXPECT_EQ(request->name, action.requests[0]->name);
        }
        started_[node].push_back(action.requests[0]->name);
      } else {
        ASSERT_EQ(action.kind, Kind::kTell);
        for (const RequestPtr& request : action.requests) {
          told_[node].push_back({request->name, action.outcome->message});
        }
      }
    }
    const size_t right = (static_cast<size_t>(node) + 1) % books_.size();
    for (std::string& text : EncodeNotes(std::exchange(*notes_[node], {}), 1 << 20)) {
      note_bytes_ += text.size();
      wires_[right].push_back(std::move(text));
    }
  }

  std::vector<std::unique_ptr<std::vector<Note>>> notes_;
  std::vector<std::unique_ptr<NameBook>> books_;
  std::vector<std::deque<std::string>> wires_;  // To the node, from its left.
  std::vector<std::vector<std::string>> started_;
  std::vector<std::vector<std::pair<std::string, std::string>>> told_;
  uint64_t note_bytes_ = 0;
};

TEST(NameBookTest, OneNode_AnyOrder_StartsWhenAllHaveCome) {
  Ring ring(1, 2);
  ring.Submit(0, 0, Named("a"));
  ring.Submit(0, 0, Named("b"));
  EXPECT_TRUE(ring.started(0).empty());
  ring.Submit(0, 1, Named("b"));
  EXPECT_EQ(ring.started(0), std::vector<std::string>({"b"}));
  ring.Submit(0, 1, Named("a"));
  EXPECT_EQ(ring.started(0), std::vector<std::string>({"b", "a"}));
  EXPECT_EQ(ring.note_bytes(), 0u);
}

TEST(NameBookTest, SameNameTwice_RunsInOrderOfEachRank) {
  Ring ring(2, 1);
  ring.Submit(0, 0, Named("a", 10));
  ring.Submit(0, 0, Named("a", 20));
  ring.Submit(1, 0, Named("a", 10));
  ring.DeliverAll();
  EXPECT_EQ(ring.started(0).size(), 1u);
  ring.Submit(1, 0, Named("a", 20));
  ring.DeliverAll();
  for (const int node : {0, 1}) EXPECT_EQ(ring.started(node), std::vector<std::string>({"a", "a"}));
}

// Whatever the arrivals and the notes' way, all nodes start the same operations in the same order.
TEST(NameBookTest, Property_AnyArrivals_SameOrderEverywhere) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int nodes = 1 + static_cast<int>(random() % 4);
    const int ranks = 1 + static_cast<int>(random() % 3);
    Ring ring(nodes, ranks);
    std::vector<std::string> names;
    for (uint32_t i = 0; i < 1 + random() % 12; ++i) {
      names.push_back("t" + std::to_string(random() % 6));
    }
    std::vector<std::vector<std::string>> left(static_cast<size_t>(nodes * ranks), names);
    for (auto& order : left) std::shuffle(order.begin(), order.end(), random);
    size_t rest = left.size() * names.size();
    while (rest > 0) {
      const size_t rank = random() % left.size();
      if (random() % 2 == 0) {
        ring.Deliver(static_cast<int>(random() % static_cast<uint32_t>(nodes)));
      } else if (!left[rank].empty()) {
        ring.Submit(static_cast<int>(rank) / ranks, static_cast<int>(rank) % ranks,
                    Named(left[rank].back()));
        left[rank].pop_back();
        --rest;
      }
    }
    ring.DeliverAll();
    std::vector<std::string> sorted = ring.started(0);
    for (int node = 0; node < nodes; ++node) {
      EXPECT_EQ(ring.started(node), ring.started(0));
      EXPECT_TRUE(ring.told(node).empty());
      EXPECT_EQ(ring.book(node).WaitingSince(100), std::nullopt);
    }
    std::sort(sorted.begin(), sorted.end());
    std::sort(names.begin(), names.end());
    EXPECT_EQ(sorted, names);
  }
}

TEST(NameBookTest, MismatchOnANode_FailsOnAllAndOthersGoOn) {
  for (const int node : {0, 1, 2}) {
    SCOPED_TRACE(node);
    Ring ring(3, 2);
    ring.Submit(node, 0, Named("a", 10));
    ring.Submit(node, 1, Named("a", 11));
    ring.DeliverAll();
    for (int other = 0; other < 3; ++other) {
      if (other == node) continue;
      for (const int rank : {0, 1}) ring.Submit(other, rank, Named("a", 10));
    }
    ring.DeliverAll();
    for (int other = 0; other < 3; ++other) {
      ASSERT_EQ(ring.told(other).size(), 2u);
      const std::string first =
          "rank " + std::to_string(2 * node) + " called allreduce float32[10]";
      const std::string second =
          "rank " + std::to_string(2 * node + 1) + " called allreduce float32[11] sum named 'a'";
      for (const auto& [name, message] : ring.told(other)) {
        EXPECT_NE(message.find(first), std::string::npos) << message;
        EXPECT_NE(message.find(second), std::string::npos) << message;
      }
    }
    for (int other = 0; other < 3; ++other) {
      for (const int rank : {0, 1}) ring.Submit(other, rank, Named("a", 12));
    }
    ring.DeliverAll();
    for (int other = 0; other < 3; ++other) EXPECT_EQ(ring.started(other).size(), 1u);
  }
}

TEST(NameBookTest, RankEnds_PendingAndLaterFailEverywhere) {
  Ring ring(3, 1);
  ring.Submit(0, 0, Named("a"));
  ring.Submit(1, 0, Named("a"));
  ring.Submit(2, 0, Named("b"));
  ring.EndRank(2, 0, Outcome{.code = arena::Code::kPeerFailed, .rank = 2, .exit_code = 3});
  ring.DeliverAll();
  ring.Submit(0, 0, Named("c"));
  for (const int node : {0, 1, 2}) {
    ASSERT_FALSE(ring.told(node).empty());
    for (const auto& [name, message] : ring.told(node)) {
      EXPECT_NE(message.find("rank 2 (node c) exited with code 3"), std::string::npos) << message;
    }
  }
  EXPECT_EQ(ring.told(0).size(), 2u);
}

TEST(NameBookTest, NamesAreSentOnce) {
  Ring ring(2, 1);
  const std::string name(200, 'x');
  const auto run = [&] {
    const uint64_t before = ring.note_bytes();
    for (const int node : {0, 1}) ring.Submit(node, 0, Named(name));
    ring.DeliverAll();
    return ring.note_bytes() - before;
  };
  EXPECT_GT(run(), 400u);  // Report and order.
  EXPECT_EQ(run(), 14u);   // Kind, node and number of both.
  ring.Submit(0, 0, Named(name, 11));
  ring.Submit(1, 0, Named(name, 11));
  ring.DeliverAll();
  EXPECT_EQ(ring.started(1).size(), 3u);
  EXPECT_GT(run(), 400u);  // It is another operation again.
}

TEST(NameBookTest, WaitingSince_SaysWhoIsMissing) {
  Ring ring(2, 2);
  EXPECT_EQ(ring.book(0).WaitingSince(100), std::nullopt);
  ring.Submit(0, 1, Named("a"));
  auto waiting = ring.book(0).WaitingSince(100);
  ASSERT_TRUE(waiting.has_value());
  EXPECT_EQ(waiting->missing, std::vector<int>({0}));
  EXPECT_EQ(waiting->description, "allreduce float32[10] sum named 'a'");
  ring.Submit(0, 0, Named("a"));
  waiting = ring.book(0).WaitingSince(100);
  ASSERT_TRUE(waiting.has_value());  // For the other node.
  EXPECT_TRUE(waiting->missing.empty());
}

TEST(NameBookTest, OnNotes_Nonsense_IsRefused) {
  Ring ring(2, 1);
  Actions actions;
  const std::string nonsense[] = {"x", std::string(1, '\1'),
                                  std::string("\4\0\0\7\0\0\0", 7),  // An unknown number.
                                  std::string("\1\0\0\0\0\0\0\xff\xff\xff\xff", 11)};
  for (const std::string& text : nonsense) {
    for (const int node : {0, 1}) EXPECT_FALSE(ring.Read(node, text, &actions).ok());
  }
  // An order of what node 1 has not reported.
  Note order{.kind = Note::Kind::kOrder, .name = "a", .form = FormOf(*Named("a"))};
  EXPECT_FALSE(ring.book(1).OnNote(order, &actions).ok());
  EXPECT_FALSE(ring.book(0).OnNote(order, &actions).ok());
}

TEST(NameTableTest, OldNumbersAreForgottenNewestKept) {
  NameTable table;
  EXPECT_EQ(table.Find("n1", "f"), 0u);
  const uint32_t total = 3 * NameTable::kNames;
  for (uint32_t i = 1; i <= total; ++i) table.Add("n" + std::to_string(i), "f");
  EXPECT_EQ(table.Lookup(1), nullptr);
  EXPECT_EQ(table.Find("n1", "f"), 0u);
  EXPECT_EQ(table.Find("n" + std::to_string(total), "f"), total);
  EXPECT_EQ(table.Find("n" + std::to_string(total), "g"), 0u);
  const uint32_t old = total - NameTable::kNames - 1;  // Understood, but not spoken of.
  EXPECT_EQ(table.Find("n" + std::to_string(old), "f"), 0u);
  ASSERT_NE(table.Lookup(old), nullptr);
  EXPECT_EQ(table.Lookup(old)->name, "n" + std::to_string(old));
}

}  // namespace
}  // namespace ringd::daemon
