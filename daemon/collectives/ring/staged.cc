#include "daemon/collectives/ring/staged.h"

#include <string.h>

namespace ringd::daemon {
namespace {

std::vector<std::byte*> Places(std::optional<AlignedBuffer>* memory, uint32_t count) {
  memory->emplace(size_t{count} * kRingPieceBytes);
  std::vector<std::byte*> places;
  for (uint32_t i = 0; i < count; ++i)
    places.push_back((*memory)->get() + size_t{i} * kRingPieceBytes);
  return places;
}

}  // namespace

StagedAlgorithm::StagedAlgorithm(uint64_t block_count, const PieceCursor::BlockAt& sent,
                                 const PieceCursor::BlockAt& received)
    : send_(block_count, sent),
      receive_(block_count, received),
      granted_(block_count, received),
      send_bytes_(StreamBytes(block_count, sent)),
      receive_bytes_(StreamBytes(block_count, received)) {
  for (uint32_t i = 0; i < kStagingPieces && !granted_.at_end(); ++i) granted_.Advance();
}

const std::byte* StagedAlgorithm::TakePiece() {
  Taken taken;
  const std::byte* piece = nullptr;
  if (BeginsHere(send_.block())) {
    if (!own_memory_.has_value()) free_own_ = Places(&own_memory_, kOwnPieces);
    if (free_own_.empty()) return nullptr;
    taken.is_own = true;
    taken.place = free_own_.back();
    free_own_.pop_back();
    piece = MakeOwn(send_.block(), send_.begin(), send_.bytes(), taken.place);
  } else {
    if (passing_.empty()) return nullptr;
    taken.place = passing_.front();
    passing_.pop_front();
    piece = taken.place;
  }
  taken_.push_back(taken);
  send_.Advance();
  return piece;
}

void StagedAlgorithm::PieceSent() {
  const Taken taken = taken_.front();
  taken_.pop_front();
  if (taken.is_own) {
    free_own_.push_back(taken.place);
  } else {
    ReleaseStaging(taken.place);
  }
}

std::byte* StagedAlgorithm::ReceiveBuffer() {
  if (receiving_ == nullptr) {
    if (!staging_memory_.has_value()) free_staging_ = Places(&staging_memory_, kStagingPieces);
    receiving_ = free_staging_.back();
    free_staging_.pop_back();
  }
  return receiving_;
}

void StagedAlgorithm::Received(const std::byte* data) {
  std::byte* const place = ReceiveBuffer();
  const uint32_t bytes = receive_.bytes();
  if (data != place) memcpy(place, data, bytes);
  receiving_ = nullptr;
  if (EndsHere(receive_.block())) {
    Consume(receive_.block(), receive_.begin(), bytes, place);
    receive_.Advance();
    ReleaseStaging(place);
  } else {
    Pass(receive_.block(), receive_.begin(), bytes, place);
    passing_.push_back(place);
    receive_.Advance();
  }
}

void StagedAlgorithm::ReleaseStaging(std::byte* place) {
  free_staging_.push_back(place);
  if (!granted_.at_end()) granted_.Advance();
}

}  // namespace ringd::daemon
