// Clients that lie, die or take their memory away: only they fail.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/futex.h"
#include "daemon/engine/testing/engine_fixture.h"
#include "gtest/gtest.h"

namespace ringd::daemon {
namespace {

using Code = arena::Code;

// Waits up to 10 s.
bool Eventually(const std::function<bool()>& condition) {
  const int64_t limit_us = MonotonicMicros() + 10'000'000;
  while (!condition()) {
    if (MonotonicMicros() > limit_us) return false;
    sched_yield();
  }
  return true;
}

struct Lie {
  std::string reason;  // Part of what the daemon says.
  std::function<void(FakeClient*, arena::Descriptor*)> tell;
};

void PutMeta(FakeClient* client, arena::Descriptor* descriptor, arena::Meta meta, uint32_t bytes) {
  descriptor->meta = client->Allocate(4096);
  descriptor->meta_bytes = bytes;
  std::memcpy(client->At(descriptor->meta), &meta, sizeof(meta));
}

void PutGroup(FakeClient* client, arena::Descriptor* descriptor, int32_t id,
              const std::vector<int64_t>& ranks) {
  descriptor->operation = Operation::kGroupRegister;
  descriptor->root = id;
  client->SetCounts(ranks, descriptor);
}

std::vector<Lie> LiesAboutGroups() {
  using D = arena::Descriptor;
  using C = FakeClient;
  const auto set = [](auto member, auto value) { return [=](C*, D* d) { d->*member = value; }; };
  return {
      {"group 1: there is none", set(&D::group, uint32_t{1})},
      {"group 4294967295: there is none", set(&D::group, ~uint32_t{0})},
      {"group 65536: there is none", set(&D::group, uint32_t{1} << 16)},
      {"id of a group", [](C* c, D* d) { PutGroup(c, d, -1, {0}); }},
      {"id of a group", [](C* c, D* d) { PutGroup(c, d, arena::kMaxGroups + 1, {0}); }},
      {"ranks of a group", [](C* c, D* d) { PutGroup(c, d, 1, {}); }},
      {"ranks of a group", [](C* c, D* d) { PutGroup(c, d, 1, {2}); }},
      {"ranks of a group",
       [](C* c, D* d) {
         PutGroup(c, d, 1, {0, 0, 1});
       }},
      {"not in ascending order",
       [](C* c, D* d) {
         PutGroup(c, d, 1, {1, 0});
       }},
      {"not in ascending order",
       [](C* c, D* d) {
         PutGroup(c, d, 1, {1, 1});
       }},
      {"group 0 is that of all ranks", [](C* c, D* d) { PutGroup(c, d, 0, {1}); }},
      {"group 0 is that of all ranks",
       [](C* c, D* d) {
         PutGroup(c, d, 1, {0, 1});
       }},
      {"count of the meta record", [](C* c, D* d) { PutGroup(c, d, 1, {-1}); }},
      {"plan 65537 is not registered",
       [](C*, D* d) { d->operation = Operation::kPlanBucket, d->root = 65537; }},
  };
}

std::vector<Lie> Lies() {
  using D = arena::Descriptor;
  using C = FakeClient;
  const auto set = [](auto member, auto value) { return [=](C*, D* d) { d->*member = value; }; };
  return {
      {"size", set(&D::size, uint16_t{127})},
      {"version", set(&D::version, uint8_t{9})},
      {"operation", set(&D::operation, Operation{0})},
      {"operation", set(&D::operation, Operation{kOperationCount})},
      {"operation", set(&D::operation, Operation{255})},
      {"dtype", set(&D::dtype, DType{0})},
      {"dtype", set(&D::dtype, DType{14})},
      {"reduction", set(&D::reduction, Reduction{7})},
      {"flags", set(&D::flags, uint16_t{8})},
      {"slot", set(&D::slot, uint32_t{arena::kSlotCount})},
      {"slot", set(&D::slot, ~uint32_t{0})},
      {"number", [](C*, D* d) { ++d->number; }},
      {"number", [](C*, D* d) { --d->number; }},
      {"serial 2 where 1", [](C*, D* d) { ++d->serial; }},
      {"serial 0", set(&D::serial, uint64_t{0})},
      {"ndim", set(&D::ndim, uint8_t{33})},
      {"reserved", [](C*, D* d) { d->reserved[1] = 1; }},
      {"wire", set(&D::wire, uint8_t{5})},
      {"wire", set(&D::wire, uint8_t{255})},
      {"wire", [](C*, D* d) { d->operation = Operation::kReduceScatter, d->wire = 1; }},
      {"wire", [](C*, D* d) { d->operation = Operation::kBarrier, d->wire = 1; }},
      {"wire", [](C*, D* d) { d->operation = Operation::kPlanBucket, d->wire = 1; }},
      {"sequence", [](C*, D* d) { d->sequence_high = 1u << 31; }},
      {"input", set(&D::input, arena::kNullRef)},
      {"input", set(&D::input, arena::MakeRef(1, 0))},
      {"input", set(&D::input, arena::MakeRef(0, 0))},  // The header is no tensor.
      {"input", set(&D::input, arena::MakeRef(0, arena::SegmentOffsets().slab - 4))},
      {"input", [](C*, D* d) { d->input += 2; }},
      {"output", set(&D::output, arena::kNullRef)},
      {"output", set(&D::output, arena::MakeRef(0, arena::kMinBytes - 4))},
      {"output", set(&D::output, arena::MakeRef(0, 0xffffffffffff))},
      {"overlaps", [](C*, D* d) { d->output = d->input + 4; }},
      {"input outside", set(&D::count, uint64_t{1} << 40)},
      {"count", set(&D::count, uint64_t{1} << 62)},
      {"count", set(&D::count, ~uint64_t{0})},
      {"meta outside", [](C*, D* d) { d->meta = arena::MakeRef(0, 0), d->meta_bytes = 64; }},
      {"meta outside", [](C*, D* d) { d->meta = arena::MakeRef(7, 0), d->meta_bytes = 64; }},
      {"meta_bytes", set(&D::meta_bytes, uint32_t{64})},
      {"meta_bytes", [](C* c, D* d) { d->meta = c->Allocate(64), d->meta_bytes = ~uint32_t{0}; }},
      {"meta record", [](C* c, D* d) { PutMeta(c, d, {}, 8); }},
      {"ndim of the meta", [](C* c, D* d) { PutMeta(c, d, {.ndim = 33}, 16 + 33 * 8); }},
      {"don't add up", [](C* c, D* d) { PutMeta(c, d, {.count_count = ~0u}, 64); }},
      {"don't add up", [](C* c, D* d) { PutMeta(c, d, {.ndim = 1}, 16); }},
      {"name", [](C* c, D* d) { PutMeta(c, d, {.name_bytes = 4097}, 64); }},
      {"plan 3 is not registered",
       [](C*, D* d) { d->operation = Operation::kPlanBucket, d->root = 3; }},
      {"plan 99 is not registered",
       [](C*, D* d) { d->operation = Operation::kPlanUnregister, d->root = 99; }},
      {"plan record", set(&D::operation, Operation::kPlanRegister)},
  };
}

TEST(HostileClientTest, BadDescriptor_PoisonsThatClientAlone) {
  std::vector<Lie> lies = Lies();
  for (const Lie& lie : LiesAboutGroups()) lies.push_back(lie);
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(std::to_string(i) + ": " + lies[i].reason);
    TestNode node(2);
    FakeClient& liar = node.client(1);
    const auto input = liar.Allocate(64);
    const auto output = liar.Allocate(64);
    auto descriptor =
        liar.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 10, input, output);
    const auto ticket = liar.Number(&descriptor);
    lies[i].tell(&liar, &descriptor);
    liar.Publish({descriptor});
    const auto result = liar.Wait(ticket);
    EXPECT_EQ(result.code, Code::kInvalidArgument);
    EXPECT_NE(result.message.find(lies[i].reason), std::string::npos) << result.message;
    ASSERT_TRUE(Eventually([&] { return !node.failures().empty(); }));
    EXPECT_EQ(node.failures()[0].substr(0, 2), "1:");

    // The other rank has its arena still, and learns who is at fault.
    FakeClient& other = node.client(0);
    EXPECT_FALSE(other.IsPoisoned());
    const auto failed = other.Run(other.Describe(Operation::kBarrier));
    EXPECT_EQ(failed.code, Code::kPeerFailed);
    EXPECT_EQ(failed.rank, 1);
    EXPECT_EQ(other.Run(other.Describe(Operation::kNoop)).code, Code::kOk);
    // The liar's later submissions are answered too.
    auto later = liar.Describe(Operation::kNoop);
    const auto late = liar.Number(&later);
    liar.Publish({later});
    EXPECT_TRUE(Eventually([&] { return liar.IsOver(late); }));
  }
}

TEST(HostileClientTest, GroupOfOthers_PoisonsTheStranger) {
  TestNode node(3);
  node.ForEachRank([](int, FakeClient& client) {
    auto descriptor = client.Describe(Operation::kBarrier);
    PutGroup(&client, &descriptor, 1, {0, 2});
    EXPECT_EQ(client.Run(descriptor).code, Code::kOk);
  });
  FakeClient& stranger = node.client(1);
  auto descriptor = stranger.Describe(Operation::kBarrier);
  descriptor.group = 1;
  const auto result = stranger.Run(descriptor);
  EXPECT_EQ(result.code, Code::kInvalidArgument);
  EXPECT_NE(result.message.find("group 1: there is none, or this rank is not a member"),
            std::string::npos)
      << result.message;
  for (const int member : {0, 2}) {
    auto barrier = node.client(member).Describe(Operation::kBarrier);
    barrier.group = 1;
    const auto ticket = node.client(member).Submit(barrier);
    if (member == 2) {
      EXPECT_EQ(node.client(member).Wait(ticket).code, Code::kOk);
    }
  }
}

TEST(HostileClientTest, SlotInUse_Poisons) {
  TestNode node(2);
  FakeClient& liar = node.client(1);
  auto first = liar.Describe(Operation::kBarrier);
  liar.Number(&first);
  auto second = liar.Describe(Operation::kBarrier);
  liar.Number(&second);
  second.slot = first.slot;
  liar.Publish({first, second});
  EXPECT_TRUE(Eventually([&] { return liar.IsPoisoned(); }));
  EXPECT_NE(liar.PoisonResult().message.find("slot is in use"), std::string::npos);
}

TEST(HostileClientTest, HeadOutOfRange_Poisons) {
  for (uint64_t head : {uint64_t{arena::kSlotCount} + 1, ~uint64_t{0}, uint64_t{1} << 63}) {
    TestNode node(2);
    node.client(1).MoveHead(head);
    EXPECT_TRUE(Eventually([&] { return node.client(1).IsPoisoned(); })) << head;
    EXPECT_FALSE(node.client(0).IsPoisoned());
  }
}

TEST(HostileClientTest, RandomDescriptors_NeverHurtTheDaemon) {
  std::mt19937_64 random(12345);
  for (int round = 0; round < 60; ++round) {
    TestNode node(2);
    FakeClient& liar = node.client(1);
    for (int i = 0; i < 20; ++i) {
      auto descriptor =
          liar.Describe(static_cast<Operation>(random() % kOperationCount),
                        static_cast<DType>(random() % 14), static_cast<Reduction>(random() % 7),
                        random() % 64, liar.Allocate(1024), liar.Allocate(1024));
      liar.Number(&descriptor);
      auto* bytes = reinterpret_cast<unsigned char*>(&descriptor);
      for (uint64_t flips = random() % 3; flips > 0; --flips) {
        bytes[random() % sizeof(descriptor)] = static_cast<unsigned char>(random());
      }
      liar.Publish({descriptor});
    }
    FakeClient& other = node.client(0);
    EXPECT_EQ(other.Run(other.Describe(Operation::kNoop)).code, Code::kOk);
  }
}

TEST(HostileClientTest, BadArena_IsRefused) {
  TestNode node(1);
  node.engine().RemoveClient("job", 0, 1);
  const auto attach = [&](const std::function<void(arena::ArenaHeader*)>& change) {
    FakeClient client;
    change(client.header());
    return client.Attach(&node.engine(), "job", 0, 2).code();
  };
  const auto kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(attach([](auto* header) { header->magic = 1; }), kBad);
  EXPECT_EQ(attach([](auto* header) { ++header->layout_version; }), kBad);
  EXPECT_EQ(attach([](auto* header) { header->segment_bytes += 4096; }), kBad);
  EXPECT_EQ(attach([](auto* header) { header->slots_offset = 0; }), kBad);
  EXPECT_EQ(attach([](auto* header) { header->slab_offset = 0; }), kBad);
  EXPECT_EQ(attach([](auto* header) { header->slot_count = 1; }), kBad);
  FakeClient client;
  ArenaSegment wrong_size = client.Segment();
  wrong_size.bytes *= 2;
  EXPECT_EQ(node.engine().AddClient("job", 0, 2, wrong_size).status().code(), kBad);
  EXPECT_EQ(node.engine().AddClient("job", 0, 2, {dup(0), arena::kMinBytes}).status().code(), kBad);
  EXPECT_EQ(node.engine().AddClient("job", 1, 2, client.Segment()).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(client.Attach(&node.engine(), "job", 0, 2).ok());
  EXPECT_EQ(node.engine().AddSegment("job", 0, 2, 2, client.Segment()).code(), kBad);
  EXPECT_TRUE(node.engine().AddSegment("job", 0, 2, 1, client.Segment()).ok());
  EXPECT_EQ(node.engine().AddSegment("job", 0, 1, 2, client.Segment()).code(),
            absl::StatusCode::kNotFound);
}

TEST(HostileClientTest, FurtherSegment_HoldsTensors) {
  TestNode node(1);
  FakeClient& client = node.client(0);
  FakeClient memory;  // Another memfd of the same size: its slab is segment 1's.
  const auto place = memory.Put(std::vector<float>{1.5f});
  ASSERT_TRUE(node.engine().AddSegment("job", 0, 1, 1, memory.Segment()).ok());
  const auto ref = arena::MakeRef(1, arena::RefOffset(place));
  auto descriptor =
      client.Describe(Operation::kAllreduce, DType::kFloat32, Reduction::kSum, 1, ref, ref);
  descriptor.prescale = 2.0;
  EXPECT_EQ(client.Run(descriptor).code, Code::kOk);
  EXPECT_EQ(memory.Get<float>(place, 1)[0], 3.0f);
}

TEST(HostileClientTest, ProcessDies_WhatItSubmittedIsCarriedOut_AndItsDeathIsTold) {
  TestNode node(2);
  const pid_t pid = fork();
  if (pid == 0) {
    pause();
    _exit(0);
  }
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  ASSERT_GE(pidfd, 0);
  ASSERT_TRUE(node.engine().SetClientProcess("job", 1, 1, pid, pidfd).ok());
  FakeClient& dying = node.client(1);
  const auto ticket = dying.Submit(dying.Describe(Operation::kBarrier));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  ASSERT_TRUE(Eventually([&] { return !node.deaths().empty(); }));
  EXPECT_EQ(node.deaths()[0].rank, 1);
  EXPECT_EQ(node.deaths()[0].pid, pid);
  FakeClient& other = node.client(0);
  EXPECT_EQ(other.Run(other.Describe(Operation::kBarrier)).code, Code::kOk);
  EXPECT_EQ(dying.Wait(ticket).code, Code::kOk);
  // The rank may have another client.
  FakeClient next;
  EXPECT_TRUE(next.Attach(&node.engine(), "job", 1, 2).ok());
}

}  // namespace
}  // namespace ringd::daemon
