#include "daemon/engine/segment/shared_segment.h"

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <vector>

#include "common/base/sealed_memory.h"
#include "gtest/gtest.h"
#include "proto/segment_view.h"

namespace ringd::daemon {
namespace {

class SharedSegmentTest : public testing::Test {
 protected:
  SharedSegmentTest() : segment_(*SharedSegment::Create(kRanks)) {
    base_ = mmap(nullptr, segment::SegmentBytes(kRanks), PROT_READ | PROT_WRITE, MAP_SHARED,
                 segment_->fd(), 0);
    view_ = segment::View(static_cast<std::byte*>(base_), kRanks);
  }
  ~SharedSegmentTest() override { munmap(base_, segment::SegmentBytes(kRanks)); }

  static arena::Descriptor Sum(uint64_t count) {
    arena::Descriptor description{};
    description.operation = Operation::kAllreduce;
    description.dtype = DType::kFloat32;
    description.reduction = Reduction::kSum;
    description.count = count;
    description.prescale = description.postscale = 1.0;
    description.ndim = 1;
    description.dims[0] = static_cast<uint32_t>(count);
    description.signature = 99;
    return description;
  }
  void Publish(uint32_t rank, uint64_t sequence, const arena::Descriptor& description,
               const std::vector<float>& data) {
    const uint32_t index = view_.NextSlot(rank);
    view_.Open(rank, index);
    view_.slot(rank, index).description = description;
    std::strcpy(view_.slot(rank, index).site, "train.py:7");
    view_.Publish(rank, index,
                  {sequence, segment::SignatureOf(description), data.data(),
                   static_cast<uint32_t>(data.size() * sizeof(float))});
  }

  static constexpr int kRanks = 3;
  std::unique_ptr<SharedSegment> segment_;
  void* base_ = nullptr;
  segment::View view_;
};

TEST_F(SharedSegmentTest, IsFor_TwoToSixtyFourRanks) {
  EXPECT_FALSE(SharedSegment::IsFor(1));
  EXPECT_TRUE(SharedSegment::IsFor(2));
  EXPECT_TRUE(SharedSegment::IsFor(64));
  EXPECT_FALSE(SharedSegment::IsFor(65));
}

TEST_F(SharedSegmentTest, Create_IsSealedAndSaysWhatItIs) {
  EXPECT_EQ(CheckSealedMemory(segment_->fd(), segment::SegmentBytes(kRanks)), 0);
  EXPECT_EQ(view_.header().magic, segment::kMagic);
  EXPECT_EQ(view_.header().rank_count, 3u);
}

TEST_F(SharedSegmentTest, Take_OfWhatARankPublished_IsARequest) {
  Publish(1, 5, Sum(3), {1, 2, 3});
  EXPECT_EQ(segment_->Newest(1), 5u);
  const auto request = segment_->Take(1, 5);
  ASSERT_NE(request, nullptr);
  EXPECT_TRUE(request->direct);
  EXPECT_EQ(request->sequence, 5u);
  EXPECT_EQ(request->count, 3u);
  EXPECT_EQ(DescribeRequest(*request), "allreduce float32[3] sum at train.py:7");
  float third;
  std::memcpy(&third, request->buffer.input + 8, sizeof(third));
  EXPECT_EQ(third, 3.0f);
  EXPECT_NE(request->buffer.output, request->buffer.input);
  EXPECT_EQ(segment_->Take(1, 4), nullptr);
  EXPECT_EQ(segment_->Take(0, 5), nullptr);
}

TEST_F(SharedSegmentTest, Take_HasTheLastTwo) {
  for (uint64_t sequence : {3, 4, 9}) Publish(0, sequence, Sum(1), {static_cast<float>(sequence)});
  EXPECT_EQ(segment_->Take(0, 3), nullptr);
  for (uint64_t sequence : {4, 9}) {
    const auto request = segment_->Take(0, sequence);
    ASSERT_NE(request, nullptr);
    float value;
    std::memcpy(&value, request->buffer.input, sizeof(value));
    EXPECT_EQ(value, static_cast<float>(sequence));
  }
}

TEST_F(SharedSegmentTest, Take_OfNonsense_IsNotThere) {
  auto bad = Sum(4);
  bad.count = 1025;
  Publish(0, 1, bad, {1});
  EXPECT_EQ(segment_->Take(0, 1), nullptr);
  bad = Sum(1);
  bad.operation = Operation::kAlltoall;
  Publish(0, 2, bad, {1});
  EXPECT_EQ(segment_->Take(0, 2), nullptr);
  bad = Sum(1);
  bad.operation = Operation::kBroadcast;
  bad.root = 3;
  Publish(0, 3, bad, {1});
  EXPECT_EQ(segment_->Take(0, 3), nullptr);
  bad = Sum(1);
  bad.ndim = 200;
  Publish(0, 4, bad, {1});
  EXPECT_EQ(segment_->Take(0, 4), nullptr);
  view_.line(0).notes[0].sequence.store(~uint64_t{0});
  view_.line(0).notes[1].sequence.store(~uint64_t{0});
  EXPECT_EQ(segment_->Newest(0), 0u);
}

TEST_F(SharedSegmentTest, Publish_ForARank_IsWhatItWouldHavePublished) {
  Publish(0, 7, Sum(3), {1, 2, 3});
  auto request = segment_->Take(0, 7);
  segment_->Publish(2, *request);
  const int index = view_.Find(2, 7);
  ASSERT_GE(index, 0);
  EXPECT_EQ(view_.line(2).flag.load(), 7u);
  EXPECT_EQ(view_.line(2).notes[index].signature.load(), segment::SignatureOf(Sum(3)));
  EXPECT_EQ(std::memcmp(view_.Data(2, index, 12), view_.Data(0, view_.Find(0, 7), 12), 12), 0);
  request->sequence = 6;
  segment_->Publish(2, *request);  // Older than what is there: nothing.
  EXPECT_EQ(view_.Find(2, 6), -1);
}

TEST_F(SharedSegmentTest, Attention_RingAndClosed) {
  EXPECT_EQ(view_.header().attention.load(), 0u);
  segment_->SetWaiting(true);
  EXPECT_EQ(view_.header().attention.load(), uint32_t{segment::kRing});
  segment_->Close();
  segment_->SetWaiting(false);
  EXPECT_EQ(view_.header().attention.load(), uint32_t{segment::kClosed});
}

}  // namespace
}  // namespace ringd::daemon
